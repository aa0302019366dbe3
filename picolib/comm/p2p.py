"""Point-to-point messages: the one module that asks torch.distributed to move bytes.

A collective sees its group through a `Link`: its own rank, the size, `send` and `recv`. Both return a
`Handle` at once, so that several messages can be under way at the same time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm.groups import Group
from picolib.launch import monitor
from picolib.launch.board import RECV, SEND
from picolib.launch.monitor import NOTHING

# The last bytes of a receive buffer, seen as one number: 8 bytes where there are that many, else fewer.
_WINDOWS = [(8, ctypes.c_uint64), (4, ctypes.c_uint32), (2, ctypes.c_uint16), (1, ctypes.c_uint8)]


class Handle:
    """A message under way. `wait()` returns when its tensor may be used again."""

    __slots__ = ("work", "message", "receives", "peer", "_window", "_mark", "__weakref__")
    delayed = False  # whether the end of a send, too, can be seen (in slow motion: slow.py)

    def __init__(self, work: Any, message: Any, receives: bool, peer: int = -1) -> None:
        self.work, self.message, self.receives, self.peer = work, message, receives, peer
        self._window: Any = None

    def wait(self, timeout: object = None) -> bool:
        """Block until the message has been sent, or has arrived. Waiting again returns at once."""
        work, message = self.work, self.message
        if message is None:
            if work is not None:
                work.wait()
        else:
            if work is not None:
                with message.waiting():
                    work.wait()
            message.done()
        self.work = self.message = self._window = None
        return True

    def wait_unseen(self) -> None:
        """`wait()` for a helper thread: the monitor is told later, by the thread that runs the collective."""
        try:
            self.work.wait()
            self.work = None
        except RuntimeError:  # a broken connection: the later wait() raises it where it is seen
            pass

    def has_arrived(self) -> bool:
        """A hint, never blocking: True when `wait()` would return at once, as far as can be seen."""
        if self.work is None:
            return True
        if self._window is not None:
            return self._window.value != self._mark
        return self.work.is_completed()

    def watch(self, tensor: torch.Tensor, sentinel: bytes) -> None:
        """Mark the end of a receive buffer, before the backend has it, so that arrival can be seen.

        gloo's handles say that they are complete only after `wait()`. So the buffer's last bytes are overwritten
        with a number drawn at random once per group: when they have changed, the message is here. This is a hint
        (a message may end in that very number): only the moment of waiting rests on it, never the result.
        """
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes == 0 or tensor.device.type != "cpu":
            return
        width, number = next((w, n) for w, n in _WINDOWS if w <= nbytes)
        self._mark = int.from_bytes(sentinel[:width], "little")
        self._window = number.from_address(tensor.data_ptr() + nbytes - width)
        self._window.value = self._mark


NOTHING_TO_WAIT_FOR = Handle(None, None, receives=False)


class Link:
    """One collective's access to its group. Ranks are places in the group: 0 to size - 1."""

    __slots__ = ("rank", "size", "_members", "_process_group", "_group", "_backend", "_tag", "_call", "_polled",
                 "_observed")  # fmt: skip
    _fields = __slots__

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        group: Group,
        tag: int,
        device: torch.device,
        call: Any = None,
        polled: bool = False,
    ) -> None:
        self.rank, self.size, self._members = group.rank, group.size, range(group.size)
        self._process_group, self._group, self._tag = process_group, group, tag
        self._backend = group.backend(process_group, device)
        self._call, self._polled = call, polled
        self._observed = monitor.observer() is not None

    def among(self, members: Sequence[int]) -> Link:
        """The same for some of the ranks, which this one is among: `members[i]` becomes rank i."""
        part = object.__new__(type(self))
        for name in self._fields:
            setattr(part, name, getattr(self, name))
        part._members = [self._members[m] for m in members]
        part.rank, part.size = list(members).index(self.rank), len(members)
        return part

    def borrow(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        """A buffer of `rows` rows like the vector `like`, for the algorithm to `give_back` when it has ended well."""
        return self._group.borrow(like, rows)

    def give_back(self, buffer: torch.Tensor) -> None:
        """The buffer's messages have been waited for, and its contents are used."""
        self._group.give_back(buffer)

    def send(self, tensor: torch.Tensor, to: int, chunk: int | None = None, step: int | None = None) -> Handle:
        """Start to send a contiguous tensor; it must not change before the handle was waited for.

        `chunk` and `step` say what travels, for pictures drawn from a trace. Empty tensors are not sent at all:
        both sides know the sizes.
        """
        if not tensor.numel():
            return NOTHING_TO_WAIT_FOR
        to = self._members[to]
        message = self._tell(SEND, tensor, to, chunk, step) if self._observed else None
        work = self._backend.send([tensor], to, self._tag)
        if message is None and not self._polled:
            return work  # the backend's own handle has wait() too
        return Handle(work, message, False, to)

    def recv(self, tensor: torch.Tensor, source: int, chunk: int | None = None, step: int | None = None) -> Handle:
        """Start to receive into a contiguous tensor; its contents are undefined until the handle was waited for."""
        if not tensor.numel():
            return NOTHING_TO_WAIT_FOR
        source = self._members[source]
        message = self._tell(RECV, tensor, source, chunk, step) if self._observed else None
        if message is None and not self._polled:
            return self._backend.recv([tensor], source, self._tag)
        return self._receive(tensor, source, Handle(None, message, True, source))

    def _tell(self, kind: int, tensor: torch.Tensor, peer: int, chunk: int | None, step: int | None) -> Any:
        return self._call.message(kind, self._group.ranks[peer], tensor.numel() * tensor.element_size(), chunk, step)

    def _receive(self, tensor: torch.Tensor, source: int, handle: Handle) -> Handle:
        """Let the backend have the buffer; marked before, where somebody looks whether the message has come."""
        if self._polled:
            handle.watch(tensor, self._group.sentinel)
        handle.work = self._backend.recv([tensor], source, self._tag)
        return handle

    def post_send(self, tensor: torch.Tensor, to: int) -> Handle:
        """Start to send a message of the user's, which may be empty."""
        message = monitor.send(tensor, self._process_group, self._group.ranks[to], self._tag)
        return Handle(self._backend.send([tensor], to, self._tag), None if message is NOTHING else message, False, to)

    def post_recv(self, tensor: torch.Tensor, source: int) -> Handle:
        """Start to receive a message of the user's, which may be empty."""
        message = monitor.recv(tensor, self._process_group, self._group.ranks[source], self._tag)
        return self._receive(tensor, source, Handle(None, None if message is NOTHING else message, True, source))

    def recv_from_anyone(self, tensor: torch.Tensor) -> int:
        """Receive from whoever sends first; return the sender's rank."""
        work = self._process_group.recv_anysource([tensor], self._tag)  # announces itself to the monitor
        work.wait()
        return work._source_rank()
