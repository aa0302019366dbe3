"""Inputs that differ by rank, and the right answers, computed in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from picolib.course import digits
from picolib.course.exercise import Case

Reference = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def generator(seed: int, world_size: int) -> torch.Generator:
    """Random numbers that are new in every check, so that no answer can be known beforehand."""
    return torch.Generator().manual_seed(seed * 1009 + world_size)


def vectors(
    reference: Reference, per_rank: int, *, pieces: bool = True, many: int = 625, exact: bool = False
) -> Callable[[int, int], list[Case]]:
    """Cases for a function of one vector: digits, random float32 and, on 3 ranks, bfloat16.

    per_rank: elements in the digits case, for each rank (the vector has world size times as many), 0 for a single
    element. many: the same for the random case. pieces: whether the vector is thought of as one chunk a rank.
    exact: numbers are moved, not added.
    """

    def cases(world_size: int, seed: int) -> list[Case]:
        random = generator(seed, world_size)
        chunks = world_size if pieces else 0
        small, large = max(1, per_rank * world_size), many * world_size
        given = [("digits", [digits.contribution(r, small) for r in range(world_size)])]
        given.append(("float32", [torch.randn(large, generator=random) for _ in range(world_size)]))
        if world_size == 3:
            half = [torch.randn(8 * world_size, generator=random).bfloat16() for _ in range(world_size)]
            given.append(("bfloat16", half))
        return [case(kind, tensors, reference, chunks, exact) for kind, tensors in given]

    return cases


def case(
    kind: str, tensors: Sequence[torch.Tensor], reference: Reference, pieces: int = 0, exact: bool = False
) -> Case:
    """One tensor a rank, and what the reference makes of them."""
    expected = reference([t.clone() for t in tensors])
    return Case(kind, tuple((t,) for t in tensors), tuple(expected), pieces, exact)


def total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum over ranks, computed in float64 and rounded once."""
    return torch.stack([t.double() for t in tensors]).sum(0).to(tensors[0].dtype)


def all_reduced(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What an all-reduce leaves on each rank."""
    return [total(tensors) for _ in tensors]


def reduce_scattered(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a reduce-scatter leaves on each rank: chunk r of the sum on rank r."""
    return list(total(tensors).chunk(len(tensors)))


def nbytes(tensor: torch.Tensor) -> int:
    """Size of a tensor's elements in bytes."""
    return tensor.numel() * tensor.element_size()
