"""What a rank tells about its communication while it runs.

`instrument` (for plain `torch.distributed` calls) and `picolib.comm` both announce here what they
are about to do. Without a monitor (a process that picolib did not start) every call is a no-op.

    call = monitor.collective("all_reduce", group, [tensor], op="SUM", algorithm="ring")
    message = monitor.send(tensor, group, dst=1, tag=7)
    with message.waiting():
        work.wait()
    message.done()
    call.done()

What the board can't see, so that a mistake there ends in the time-out or goes unnoticed:

- unlabelled collectives of one kind and shape that changed places but come from one line on both ranks
  (`for t in tensors: dist.all_reduce(t)` over lists in different orders), or from lines that differ anyway;
- a tensor that changed after `isend` only between the sampled words of a large message, or on a GPU;
- shapes and dtypes of collectives that torch starts in C++ (DDP's reducer, functional collectives); that
  a rank waits in one of them for a rank that has stopped is seen, on processors, in the world group;
- waits outside the process group: `store.wait`, `Future.wait`, a CUDA stream under NCCL;
- anything while another thread of the rank still runs code of the learner's (it might yet answer).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from picolib.launch import network
from picolib.launch.board import RECV, SEND
from picolib.launch.observed import Call, Message, Observer

_observer: Observer | None = None
_suspension = threading.local()


class _Nothing:
    """The answer where nothing is observed: as a call, as a message, and as what surrounds a wait."""

    def done(self) -> None:
        """Nothing to do."""

    def done_at(self, moment: float) -> None:
        """Nothing to do."""

    def abandon(self) -> None:
        """Nothing to do."""

    def handle_created(self, work: Any = None) -> None:
        """Nothing to do."""

    def waiting(self) -> _Nothing:
        """Nothing to do."""
        return self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


NOTHING = _Nothing()


def collective(
    name: str,
    group: Any,
    tensors: Sequence[torch.Tensor] = (),
    *,
    op: Any = None,
    root: int | None = None,
    algorithm: str | None = None,
    label: str | None = None,
    async_op: bool = False,
    strict_shapes: bool = True,
    splits: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Call | _Nothing:
    """Announce the group's next collective, before any of its data move.

    Args:
        name: torch's name, such as "all_reduce".
        group: a process group, None for the world.
        tensors: this rank's inputs (for their shapes and dtypes).
        op, root, algorithm, label: must be equal on all ranks; root is a global rank.
        async_op: the learner gets a handle.
        strict_shapes: False where ranks may bring different shapes.
        splits: what this rank (sends to, receives from) each member; compared with the others' for all-to-all.

    Raises:
        MismatchError: another rank of the group has announced a different call in this place.
    """
    if _observer is None:
        return NOTHING
    return _observer.collective(name, group, tensors, op, root, algorithm, label, async_op, strict_shapes, splits)


def send(tensor: torch.Tensor, group: Any, dst: int, tag: int = 0) -> Message | _Nothing:
    """Announce a message to global rank `dst`. (Those of a collective are announced by `Call.message`.)

    Raises:
        MismatchError: the receiver has announced a buffer of another size or dtype.
    """
    return NOTHING if _observer is None else _observer.message(SEND, tensor, group, dst, tag)


def recv(tensor: torch.Tensor, group: Any, src: int, tag: int = 0) -> Message | _Nothing:
    """Announce that this rank receives a message from global rank `src`; the counterpart of `send`."""
    return NOTHING if _observer is None else _observer.message(RECV, tensor, group, src, tag)


def native(name: str, group: Any, payload_bytes: int, **details: Any) -> None:
    """Record a collective of torch's own: its payload is known, its bytes on the wire are not."""
    if _observer is not None:
        _observer.recorder.native_call(name, payload_bytes)


def mark(label: str, start: float) -> None:
    """Record something of the learner's own from `start` (`now()` of then) until now, for the timeline."""
    if _observer is not None:
        _observer.recorder.event("mark", start, label=label)


def compute(label: str, start: float, end: float) -> None:
    """Record pretended compute, for the timeline."""
    if _observer is not None:
        _observer.recorder.event("compute", start, label=label, end=end)


def now() -> float:
    """Seconds of time.monotonic(); with slow-motion links, what this rank's clock says."""
    return time.monotonic() if _observer is None else _observer.recorder.now()


def goes_on() -> None:
    """A rank that sleeps on purpose is making progress, however long it takes."""
    if _observer is not None and _observer.announcer is not None:
        with _observer.announcer.threads.lock:
            _observer.announcer.writer.step()


class suspended:
    """Context manager: calls inside are not instrumented (picolib.comm announces its own use of torch.distributed)."""

    __slots__ = ()

    def __enter__(self) -> None:
        _suspension.depth = getattr(_suspension, "depth", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _suspension.depth -= 1


def is_suspended() -> bool:
    """Whether this thread is inside `suspended()`."""
    return getattr(_suspension, "depth", 0) > 0


def observer() -> Observer | None:
    """The running observer of this process, for `instrument`."""
    return _observer


def resume(observed: Observer) -> None:
    """Put another observer in place of the running one (the benchmark alternates between two)."""
    global _observer
    _observer = observed


def start(board: Any, rank: int, world_size: int, checked: bool = True, trace: bool = False) -> None:
    """Called once in each rank, after init_process_group and before the learner's function.

    Args:
        board: the run's `Board`, or None (then only the counters remain, as with `checked=False`).
    """
    global _observer
    from picolib.launch import instrument

    stop()
    _observer = Observer(board if checked else None, rank, world_size, trace)
    if network.current is not None:
        _observer.recorder.now = network.current.clock.now
    if instrument.install() and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def stop() -> None:
    """Observe no longer; for processes that serve several runs."""
    if _observer is not None:
        _observer.stop()
    _forget()


def _forget() -> None:
    """Also in a process that a rank has forked (a DataLoader's worker): it is no rank."""
    global _observer
    _observer = None


def returned() -> None:
    """The learner's function is through: say so on the board, and look for what it has left undone.

    Raises:
        MismatchError: a handle of isend or irecv was never waited for.
    """
    if _observer is not None:
        _observer.returned()


def report() -> dict[str, Any]:
    """Counters and events of this rank, plain data for `Trace`."""
    return {} if _observer is None else _observer.recorder.report()
