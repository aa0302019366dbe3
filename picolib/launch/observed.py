"""One rank's calls and messages, from their announcement to their end.

`Observer` counts for the trace and, where there is a board, announces, compares and checks. What it
hands out (`Call`, `Message`) is told when the rank blocks and when the call is over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.launch import misuse
from picolib.launch.announce import Announcer, Group, Post
from picolib.launch.blocking import NOT_BLOCKED, Timed, Waiting
from picolib.launch.board import COLLECTIVE, RECV, RETURNED, SEND, Board
from picolib.launch.memory import Range, fingerprint, range_of
from picolib.launch.misuse import NAMES
from picolib.launch.network import Delay
from picolib.launch.parts import Part
from picolib.launch.places import Place, find_place
from picolib.launch.trace import Recorder

_MANY_PENDING = 256  # more handles in flight are not searched for overlapping memory


class Call:
    """One collective of one group, from its start to `done()`."""

    __slots__ = ("observer", "name", "post", "place", "tallied", "async_op", "in_world", "threads", "start",
                 "now")  # fmt: skip
    delay = None  # torch's own collectives do not go through slow-motion links

    def __init__(
        self, observer: Observer, name: tuple[str, str | None, str | None], post: Post | None, place: Place,
        tallied: bool, async_op: bool, in_world: bool = False,
    ) -> None:  # fmt: skip
        self.observer, self.name, self.post, self.place = observer, name, post, place
        self.tallied, self.async_op, self.in_world = tallied, async_op, in_world
        self.threads = observer.announcer.threads if post is not None and tallied else None
        self.now = observer.recorder.now
        self.start = self.now()

    @property
    def label(self) -> str:
        """For the trace: "all_reduce[ring]", with the caller's label behind it."""
        name, algorithm, label = self.name
        return (f"{name}[{algorithm}]" if algorithm else name) + (f" {label}" if label else "")

    def waiting(self, on_board: bool = True) -> Waiting | Timed:
        """This rank is blocked in this collective. On the board that is a wait for torch's own, without a time-out of
        its own (`on_board`); picolib's are there with their messages."""
        recorder, inner = self.observer.recorder, NOT_BLOCKED
        if self.post is not None and not self.tallied and on_board:
            place = find_place().text if self.async_op else self.place.text
            what = (COLLECTIVE, self.post.channel, self.post.number, 0, 0)
            inner = Waiting(self.observer.announcer.threads, what, place)
        return inner if recorder.events is None else Timed(recorder, self.label, inner)

    def message(self, kind: int, peer: int, nbytes: int, chunk: int | None, step: int | None) -> Part | None:
        """Count a message of this collective to or from global rank `peer`; None when nobody needs to know more."""
        observer, recorder = self.observer, self.observer.recorder
        observer.messages_posted += self.in_world
        if kind == SEND:
            recorder.sent(peer, nbytes)
        if self.threads is None and recorder.events is None:
            return None
        part = Part(self, kind, peer, nbytes)
        if self.threads is not None:
            with self.threads.lock:
                part.index = observer.announcer.writer.tally(self.post.tally, kind == RECV, peer)
        if recorder.events is not None:
            part.start, part.note = self.now(), {"chunk": chunk, "step": step}
        return part

    def done(self) -> None:
        """The collective has finished on this rank."""
        self._record("collective", self.now)

    def _record(self, kind: str, now: Callable[[], float]) -> None:
        if self.observer.recorder.events is not None:
            self.observer.recorder.event(kind, self.start, label=self.label, call=self.label, end=now())

    def abandon(self) -> None:
        """The collective has failed on this rank."""

    def handle_created(self, work: Any = None) -> None:
        """The learner has a handle of this collective."""
        self.async_op = True

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: Any, *exc: object) -> None:
        if kind is None:
            self._record("wait", self.observer.recorder.now)
            self.done()


class Message:
    """One point-to-point message of the learner's, as its sender or its receiver sees it."""

    __slots__ = ("observer", "kind", "peer", "nbytes", "post", "place", "start", "memory", "sample", "pending", "end",
                 "delay")  # fmt: skip

    def __init__(self, observer: Observer, kind: int, peer: int, nbytes: int) -> None:
        self.observer, self.kind, self.peer, self.nbytes = observer, kind, peer, nbytes
        self.post: Post | None = None
        self.place = ""
        self.pending = False
        self.memory: Range | None = None
        self.sample: bytes | None = None
        self.start = observer.recorder.now()
        self.end: float | None = None
        self.delay: Delay | None = None  # of plain torch messages, with slow-motion links

    def waiting(self, on_board: bool = True) -> Waiting | Timed:
        """This rank is blocked until the message has gone through (see `Call.waiting`)."""
        recorder, inner = self.observer.recorder, NOT_BLOCKED
        if self.post is not None and on_board:
            place = find_place().text if self.pending else self.place
            what = (self.kind, self.post.channel, self.post.number, self.peer, 0)
            inner = Waiting(self.observer.announcer.threads, what, place)
        return inner if recorder.events is None else Timed(recorder, NAMES[self.kind], inner)

    def handle_created(self, work: Any = None) -> None:
        """The learner has a handle and must wait for it: until then the tensor must be left alone."""
        if self.observer.announcer is not None and not self.pending:
            self.pending = True
            self.observer.pending[id(self)] = self
            if self.kind == SEND and self.memory is not None:
                self.sample = fingerprint(self.memory)

    def abandon(self) -> None:
        """The wait has failed or timed out: the handle is used up."""
        self.pending = False
        self.observer.pending.pop(id(self), None)

    def done(self) -> None:
        """The message has been handed over (sender) or has arrived (receiver)."""
        if self.observer.recorder.events is not None:
            self._record()
        if self.pending:
            self.abandon()
            if self.sample is not None and fingerprint(self.memory) != self.sample:
                self.observer.announcer.fail(misuse.changed(self))

    def done_at(self, moment: float) -> None:
        """The same at a time that was planned (slow-motion links)."""
        self.end = max(self.start, moment)
        self.done()

    def _record(self) -> None:
        name, peer = NAMES[self.kind], self.peer if self.peer >= 0 else None
        self.observer.recorder.event(name, self.start, peer=peer, nbytes=self.nbytes, label=name, end=self.end)


class Observer:
    """Counts, and with a board announces and checks, what this rank communicates."""

    def __init__(self, board: Board | None, rank: int, world_size: int, events: bool) -> None:
        self.rank = rank
        self.recorder = Recorder(rank, world_size, events)
        self.messages_posted = 0  # in the world group: torch counts them with its collectives
        self.pending: dict[int, Message] = {}
        self.announcer = Announcer(board, rank, self.issued) if board is not None else None

    def collective(
        self,
        name: str,
        group: Any,
        tensors: Sequence[torch.Tensor],
        op: Any = None,
        root: int | None = None,
        algorithm: str | None = None,
        label: str | None = None,
        async_op: bool = False,
        strict_shapes: bool = True,
        splits: tuple[Sequence[int], Sequence[int]] | None = None,
        place: Place | None = None,
        extra: tuple[str, Any] | None = None,
    ) -> Call:
        """The group's next collective (see `monitor.collective`). `extra` is one more field of the signature."""
        self.recorder.calls[name] += 1
        tallied = algorithm is not None and algorithm != "native"
        in_world = group is None or group is dist.group.WORLD
        if self.announcer is None:
            return Call(self, (name, algorithm, label), None, NO_PLACE, tallied, async_op, in_world)
        known = group if isinstance(group, Group) else self.announcer.group(group)
        place = place or find_place(sys._getframe(2))  # this function and `monitor.collective` are nobody's place
        kinds = tuple([(t.dtype, t.shape if strict_shapes else None) for t in tensors])
        op = op if op is None or isinstance(op, str) else op_name(op)
        signature = self.announcer.signature(
            (name, kinds, op, root, algorithm, label, extra and str(extra)),
            lambda: _described(name, kinds, op, root, algorithm, label, extra),
        )
        detail = json.dumps({"send": list(splits[0]), "recv": list(splits[1])}) if splits is not None else ""
        post = self.announcer.post(COLLECTIVE, known, 0, 0, signature, place, 0, detail, tallied)
        if post is not None:
            address = tensors[0].data_ptr() if tensors else 0
            self.announcer.compare_collective(known, post, splits is not None, address)
        return Call(self, (name, algorithm, label), post, place, tallied, async_op, in_world)

    def message(
        self, kind: int, tensor: torch.Tensor, group: Any, peer: int, tag: int = 0, place: Place | None = None
    ) -> Message:
        """The next message to or from global rank `peer` (see `monitor.send`)."""
        nbytes = tensor.numel() * tensor.element_size()
        if kind == SEND:
            self.recorder.sent(peer, nbytes)
        self.messages_posted += group is None or group is dist.group.WORLD
        message = Message(self, kind, peer, nbytes)
        if self.announcer is not None:
            self._announce(message, tensor, group, tag, place or find_place())
        return message

    def _announce(self, message: Message, tensor: torch.Tensor, group: Any, tag: int, place: Place) -> None:
        known = self.announcer.group(group)
        kind, peer, announcer = message.kind, message.peer, self.announcer
        if peer == self.rank:
            announcer.fail(misuse.to_oneself(message, place))
        signature = announcer.signature(
            ("message", tensor.dtype, tensor.shape),
            lambda: {"name": "message", "shapes": [list(tensor.shape)], "dtypes": [_dtype(tensor.dtype)]},
        )
        message.place, message.memory = place.text, range_of(tensor)
        message.post = announcer.post(kind, known, peer, tag, signature, place, message.nbytes)
        if message.post is not None:
            announcer.compare_message(kind, known, peer, tag, message.post)
        if 0 < len(self.pending) <= _MANY_PENDING:
            self._check_overlap(message)

    def _check_overlap(self, message: Message) -> None:
        for other in self.pending.values():
            both_read = message.kind == other.kind == SEND
            if not both_read and other.memory is not None and message.memory.overlaps(other.memory):
                self.announcer.fail(misuse.overlap(message, other))

    def returned(self) -> None:
        """The learner's function is through (see `monitor.returned`)."""
        if self.announcer is None:
            return
        left = list(self.pending.values())
        if left:
            self.announcer.fail(misuse.not_waited_for(left))
        with self.announcer.threads.lock:
            self.announcer.writer.set_state(RETURNED)
            self.announcer.writer.set_issued(self.issued())

    def stop(self) -> None:
        """End the sampler's thread."""
        if self.announcer is not None:
            self.announcer.threads.stop()

    def issued(self) -> int:
        """Collectives that torch has started in the world group, from Python or by itself."""
        try:
            # a message is counted here just before torch counts it: in between the difference is one too small
            return max(0, dist.group.WORLD._get_sequence_number_for_group() - self.messages_posted)
        except (AttributeError, RuntimeError):  # no group any more, or a backend that doesn't count
            return 0


NO_PLACE = Place("", 0, None, True)
_op_names: dict[Any, str] = {}


def op_name(op: Any) -> str:
    """ "SUM" for torch's ReduceOp.SUM, in any of the forms that it comes in."""
    kind = getattr(op, "op", op)
    name = _op_names.get(kind)
    if name is None:
        text = getattr(kind, "name", None) or str(kind).rsplit(".", 1)[-1].split(":")[0].rstrip(">")
        name = _op_names[kind] = text
    return name


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(name: str, kinds: Any, op: Any, root: Any, algorithm: Any, label: Any, extra: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "dtypes": [_dtype(dtype) for dtype, _ in kinds]}
    if any(shape is not None for _, shape in kinds):
        fields["shapes"] = [list(shape) for _, shape in kinds if shape is not None]
    fields.update({"op": op, "root": root, "algorithm": algorithm, "label": label})
    if extra is not None:
        fields[extra[0]] = extra[1]
    return {key: value for key, value in fields.items() if value is not None}
