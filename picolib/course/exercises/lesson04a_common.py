"""What the exercises of sitting 04A share: refusing what is ready-made, and what a rank's collectives send."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from picolib.course.exercise import COLLECTIVES

FLOAT64 = 8  # bytes


def sent_bytes(record: Any, world_size: int) -> float:
    """The least bytes that a rank's collectives send with float64 numbers, and those of its messages.

    By formula, whatever algorithm was chosen; where one rank sends to all, or all to one, the mean over the ranks.
    """
    elements = sum(_whole(*call, world_size) for call in record.collectives if call[0] in COLLECTIVES)
    return elements * FLOAT64 * (world_size - 1) / world_size + sum(entry[2] for entry in record.sends)


def _whole(name: str, noted: int, by_picolib: bool, n: int) -> int:
    """Elements of a collective's whole tensor, twice for an all-reduce. Noted are those of an all-gather's or a
    reduce-scatter's output; of picolib's, those of the input (see `observe`)."""
    if name.startswith("all_reduce"):
        return 2 * noted
    is_part = (name.startswith("reduce_scatter") and not by_picolib) or (name.startswith("all_gather") and by_picolib)
    return noted * n if is_part else noted


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
    """How many numbers can be reached from here: each storage of tensors once, arrays, bytes (8 are one) and lists.

    A number that has a name of its own, such as a count of steps, is not counted.
    """
    seen = set() if seen is None else seen
    if isinstance(state, torch.Tensor):
        storage = state.untyped_storage()
        known = storage.data_ptr() in seen
        seen.add(storage.data_ptr())
        return 0 if known else storage.nbytes() // state.element_size()
    if isinstance(state, dict):
        return sum(elements_in(value, seen) for value in state.values() if not isinstance(value, (int, float)))
    if isinstance(state, (list, tuple)):
        return sum(elements_in(value, seen) for value in state)
    if isinstance(state, (bytes, bytearray)):
        return len(state) // FLOAT64
    return int(getattr(state, "size", isinstance(state, (int, float))))


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


def by_torch_alone(record: Any) -> bool:
    """Whether a rank has called no collective of picolib's: of those the results are not changed (see `ignores`)."""
    return not any(owned for _, _, owned in record.collectives)
