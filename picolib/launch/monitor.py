"""What a rank tells about its communication while it runs.

`instrument` (for plain `torch.distributed` calls) and `picolib.comm` both announce here what they
are about to do. Without a monitor (a process that picolib did not start) every call is a no-op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Call:
    """One collective of one group, from its start to `done()`."""

    def done(self) -> None:
        """The collective has finished on this rank."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """This rank is blocked inside the collective."""
        yield

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *exc: object) -> None:
        self.done()


class Message:
    """One point-to-point message, as its sender or its receiver sees it."""

    def done(self) -> None:
        """The message has been handed over (sender) or has arrived (receiver)."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """This rank is blocked until the message has gone through."""
        yield

    def handle_created(self, work: Any) -> None:
        """`work` is the handle that the learner must wait for."""


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
) -> Call:
    """Announce the group's next collective; raise MismatchError when another rank called a different one."""
    return Call()


def send(
    tensor: torch.Tensor, group: Any, dst: int, tag: int = 0, call: Call | None = None, note: dict | None = None
) -> Message:
    """Announce a message to global rank `dst`; `call` is the picolib collective that it belongs to."""
    return Message()


def recv(
    tensor: torch.Tensor, group: Any, src: int, tag: int = 0, call: Call | None = None, note: dict | None = None
) -> Message:
    """Announce that this rank waits for a message from global rank `src`."""
    return Message()


def native(name: str, group: Any, payload_bytes: int, **details: Any) -> None:
    """Record a collective of torch's own: its payload is known, its bytes on the wire are not."""


@contextmanager
def suspended() -> Iterator[None]:
    """Calls inside are not instrumented (picolib.comm announces its own use of torch.distributed itself)."""
    yield


def start(board: Any, rank: int, world_size: int, checked: bool = True, trace: bool = False) -> None:
    """Called once in each rank, after init_process_group and before the learner's function."""


def report() -> dict:
    """Counters and events of this rank, plain data for `Trace`."""
    return {}
