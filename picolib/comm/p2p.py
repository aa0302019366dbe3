"""Point-to-point messages: the one module that asks torch.distributed to move bytes.

A collective sees its group through a `Link`: its own rank, the size, `send` and `recv`. Both return a
`Handle` at once, so that several messages can be under way at the same time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm.groups import Group
from picolib.launch import monitor

# The last bytes of a receive buffer, seen as one number: 8 bytes where there are that many, else fewer.
_WINDOWS = [(8, ctypes.c_uint64), (4, ctypes.c_uint32), (2, ctypes.c_uint16), (1, ctypes.c_uint8)]


class Handle:
    """A message under way. `wait()` returns when its tensor may be used again."""

    __slots__ = ("work", "message", "receives", "_window", "_mark")

    def __init__(self, work: Any, message: monitor.Message | None, receives: bool) -> None:
        self.work, self.message, self.receives = work, message, receives
        self._window: Any = None

    def wait(self) -> None:
        """Block until the message has been sent, or has arrived."""
        work, message = self.work, self.message
        if work is None:
            return
        if message is None:
            work.wait()
        else:
            with message.waiting():
                work.wait()
            message.done()
        self.work = self.message = self._window = None

    def watch(self, tensor: torch.Tensor, sentinel: bytes) -> None:
        """Mark the end of a receive buffer, before it is handed to the backend, so that arrival can be seen.

        gloo's handles say whether they are complete only after `wait()`. So the buffer's last bytes are
        overwritten with a number drawn at random once per group: when they have changed, the message is here.
        This is a hint (a message may end in that very number); nothing but the moment of waiting rests on it.
        """
        nbytes = tensor.numel() * tensor.element_size()
        for width, number in _WINDOWS:
            if width <= nbytes:
                self._mark = int.from_bytes(sentinel[:width], "little")
                self._window = number.from_address(tensor.data_ptr() + nbytes - width)
                self._window.value = self._mark
                return

    def has_arrived(self) -> bool:
        """A hint, never blocking: True when `wait()` would return at once, as far as can be seen."""
        if self.work is None:
            return True
        if self._window is not None and self._window.value != self._mark:
            return True
        return self.work.is_completed()


class Link:
    """One collective's access to its group. Ranks are group ranks: 0 to size - 1."""

    __slots__ = ("rank", "size", "_process_group", "_group", "_tag", "_call", "_polled")

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        group: Group,
        tag: int,
        call: monitor.Call | None = None,
        polled: bool = False,
    ) -> None:
        self.rank, self.size = group.rank, group.size
        self._process_group, self._group, self._tag, self._call = process_group, group, tag, call
        self._polled = polled

    def send(self, tensor: torch.Tensor, to: int, chunk: Any = None, step: int | None = None) -> Handle:
        """Start to send a contiguous tensor; it must not change before the handle was waited for.

        `chunk` and `step` say what travels, for the pictures drawn from a trace.
        """
        note = {"chunk": chunk, "step": step}
        message = monitor.send(tensor, self._process_group, self._group.ranks[to], self._tag, self._call, note)
        return Handle(self._process_group.send([tensor], to, self._tag), message, receives=False)

    def recv(self, tensor: torch.Tensor, source: int, chunk: Any = None, step: int | None = None) -> Handle:
        """Start to receive into a contiguous tensor; its contents are undefined until the handle was waited for."""
        note = {"chunk": chunk, "step": step}
        message = monitor.recv(tensor, self._process_group, self._group.ranks[source], self._tag, self._call, note)
        handle = Handle(None, message, receives=True)
        if self._polled:
            handle.watch(tensor, self._group.sentinel)
        handle.work = self._process_group.recv([tensor], source, self._tag)
        return handle
