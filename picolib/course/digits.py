"""Digits: rank r contributes 10^r, so digit r of any sum counts the contributions of rank r.

On 4 ranks a complete sum reads 1111; 1101 lacks rank 1; 0100 is rank 2's number alone; 2111 has rank 3's twice.
Behind the point each number also carries where it stood in the input, so that a right sum in the wrong place is
seen: element i of rank r is 10^r + i/2^14, which float64 adds without rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

PLACE = 1 / 2**14


class Number(NamedTuple):
    """What one element of an output says: how often each rank is in it, and the place it comes from (or None)."""

    counts: tuple[int, ...]
    place: int | None

    @property
    def text(self) -> str:
        """The digits as they are read: the last rank's first ("1101")."""
        return "".join(map(str, reversed(self.counts)))


def contribution(rank: int, length: int) -> torch.Tensor:
    """The input of `rank`: `length` float64 numbers whose digits say "rank", whose fractions say where."""
    return 10.0**rank + torch.arange(length, dtype=torch.float64) * PLACE


def read(value: float, world_size: int) -> Number | None:
    """The counts and the place behind a number; None when it is no sum of contributions."""
    if not 0 <= value < 10**world_size:
        return None
    whole = int(value)
    counts = tuple(int(d) for d in reversed(str(whole).zfill(world_size)))
    places = (value - whole) / PLACE
    total = sum(counts)
    if places != int(places) or (total == 0 and places):
        return None
    place, rest = divmod(int(places), total) if total else (0, 1)
    return Number(counts, None if rest else place)


def read_all(tensor: torch.Tensor, world_size: int) -> list[Number] | None:
    """Each element of a tensor read as digits; None as soon as one is no sum of contributions."""
    numbers = [read(value, world_size) for value in tensor.detach().double().flatten().tolist()]
    return None if any(n is None for n in numbers) else numbers  # type: ignore[return-value]


def written(tensor: torch.Tensor, world_size: int, at_most: int = 8) -> str:
    """A tensor for a table: digits where its elements are some, plain numbers where not."""
    texts = []
    for value in tensor.detach().double().flatten().tolist():
        number = read(value, world_size)
        texts.append(number.text if number else f"{value:.7g}")
    more = f" … ({len(texts)} numbers)" if len(texts) > at_most else ""
    return " ".join(texts[:at_most]) + more


def piece_of(numbers: Sequence[Number] | None, length: int, pieces: int) -> int | None:
    """Which of `pieces` equal chunks of a vector of `length` these numbers are; None when not exactly one."""
    if not numbers or not pieces or length % pieces:
        return None
    size = length // pieces
    places = [number.place for number in numbers]
    if len(places) != size or None in places or places[0] % size:  # type: ignore[operator]
        return None
    first = places[0]
    return first // size if places == list(range(first, first + size)) else None  # type: ignore
