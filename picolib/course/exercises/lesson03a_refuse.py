"""Where all-reduce and its like are allowed, what else could do the whole exercise: refused, or named afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from picolib.course.exercise import COLLECTIVES


@contextlib.contextmanager
def no_ready_made_ddp() -> Iterator[None]:
    """In a rank: whoever makes a DistributedDataParallel in this block, picolib's or torch's, is told to build it."""
    from picolib.parallel.ddp import DistributedDataParallel

    why = "DistributedDataParallel does what this exercise asks for: here you write it yourself."
    with refused(why, DistributedDataParallel, torch.nn.parallel.DistributedDataParallel):
        yield


@contextlib.contextmanager
def refused(why: str, *classes: Any) -> Iterator[None]:
    """In a rank: whoever makes one of these in this block gets a RuntimeError that says why not."""
    originals = [owner.__init__ for owner in classes]

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(why)

    for owner in classes:
        owner.__init__ = refuse
    try:
        yield
    finally:
        for owner, original in zip(classes, originals, strict=True):
            owner.__init__ = original


def only(*names: str) -> Callable[[Any], str | None]:
    """A rule: of all collectives only these may be called. (`allows` must hold all, so that this one speaks.)"""

    def rule(attempt: Any) -> str | None:
        for rank, record in enumerate(attempt.ranks):
            other = next((c[0] for c in record.collectives if c[0] in COLLECTIVES and c[0] not in names), None)
            if other or record.sends:
                what = f"called {other}" if other else "sent messages of its own"
                return f"rank {rank} {what}; here {' and '.join(names)} {'is' if len(names) == 1 else 'are'} enough."
        return no_barrier(attempt)

    return rule


def no_barrier(attempt: Any) -> str | None:
    """A rule: an all-reduce is one already."""
    for rank, record in enumerate(attempt.ranks):
        if any(name == "barrier" for name, *_ in record.collectives):
            return (
                f"rank {rank} called barrier. No all-reduce is over before every rank has come to it: a barrier beside "
                "it only costs time."
            )
    return None
