"""What the exercises of sitting 04A share: refusing what is ready-made, and what a rank's collectives send."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from picolib.course.exercise import COLLECTIVES

# The share of its first tensor (see `observe`: the output, where there is one) that a rank sends on N ranks, at least,
# in units of (N-1)/N. Of those with one source or target it is the mean over the ranks.
SHARES = dict.fromkeys(COLLECTIVES, 1) | {"all_reduce": 2, "all_reduce_coalesced": 2}
SCATTERING = (
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
)  # the first tensor is 1/N of the input
FLOAT64 = 8  # bytes


def sent_bytes(record: Any, world_size: int) -> float:
    """The least bytes that a rank's collectives send with float64 numbers, and those of its other messages."""
    native = [call for call in record.collectives if not call[2] and call[0] in COLLECTIVES]
    elements = sum(SHARES[name] * size * (world_size if name in SCATTERING else 1) for name, size, _ in native)
    messages = sum(entry[2] for entry in record.messages if entry[0] == "send")
    return elements * FLOAT64 * (world_size - 1) / world_size + messages


@contextlib.contextmanager
def nothing_ready_made() -> Iterator[None]:
    """In a rank: who makes a ready sharded optimizer or data parallel module here is told to build it."""
    from picolib.parallel.ddp import DistributedDataParallel

    with contextlib.ExitStack() as stack:
        for owner in (DistributedDataParallel, torch.nn.parallel.DistributedDataParallel, torch.optim.Optimizer):
            stack.enter_context(_replaced(owner, "__init__", _unless_ready_made))
        yield


def _unless_ready_made(original: Callable) -> Callable:
    """picolib's and torch's ZeroRedundancyOptimizer are told by their name: importing torch's takes long."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        if name in ("ZeroRedundancyOptimizer", "DistributedDataParallel"):
            raise RuntimeError(f"{name} does what this exercise asks for: here you write it yourself.")
        original(self, *args, **kwargs)

    return __init__


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Callable], Callable]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def elements_in(state: Any, seen: set[int] | None = None) -> int:
    """How many numbers the tensors hold that can be reached from here, each storage once."""
    seen = set() if seen is None else seen
    if isinstance(state, torch.Tensor):
        storage = state.untyped_storage()
        known = storage.data_ptr() in seen
        seen.add(storage.data_ptr())
        return 0 if known else storage.nbytes() // state.element_size()
    if isinstance(state, dict):
        return sum(elements_in(value, seen) for value in state.values())
    if isinstance(state, (list, tuple)):
        return sum(elements_in(value, seen) for value in state)
    return 0


def too_many_bytes(attempt: Any, elements: int, most: int, steps: int = 1) -> str | None:
    """Whether a rank sent more than a reduce-scatter and an all-gather of `elements` numbers, in each step.

    most: elements after padding, in whatever way.
    """
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        sent = sent_bytes(record, n) / steps
        right = 2 * (n - 1) / n * elements * FLOAT64
        if sent > 2 * (n - 1) / n * most * FLOAT64 * 1.001:
            return (
                f"The values are right, but rank {rank} sends {sent:,.0f} bytes a step, where {right:,.0f} = "
                f"2(N-1)/N·Ψ (of {elements:,} numbers of 8 bytes) are right: {sent / right:.1f}x the bytes."
            )
    return None
