"""Halving and doubling need a power of two. Any other number of ranks is folded into one first.

Of n ranks with p the largest power of two that fits, the first 2·(n-p) ranks form neighbouring pairs. The odd
one of each pair hands its data to the even one and steps aside, which leaves p ranks. n = 6:

    rank     0  1   2  3   4  5
    place    0  -   1  -   2  3      (p = 4; ranks 1 and 3 step aside)

Ranks of consecutive places own consecutive chunks: places a to b-1 stand for ranks rank_at(a) to rank_at(b) - 1.
"""

from __future__ import annotations

from typing import NamedTuple


class Fold(NamedTuple):
    """n ranks seen as `power` places; `pairs` of the places stand for two ranks."""

    power: int
    pairs: int

    def rank_at(self, place: int) -> int:
        """The rank at a place; for place = power, the number of ranks."""
        return 2 * place if place < self.pairs else place + self.pairs

    def place_of(self, rank: int) -> int | None:
        """The place of a rank, None when it has stepped aside."""
        if rank >= 2 * self.pairs:
            return rank - self.pairs
        return None if rank % 2 else rank // 2

    def has_pair(self, rank: int) -> bool:
        """Whether a rank gave its data to a neighbour, or took it."""
        return rank < 2 * self.pairs

    def ranks(self) -> list[int]:
        """The ranks that stay, by place."""
        return [self.rank_at(place) for place in range(self.power)]


def fold(size: int) -> Fold:
    """The fold of `size` ranks: 8 -> Fold(8, 0), 6 -> Fold(4, 2)."""
    power = 1 << (size.bit_length() - 1)
    return Fold(power, size - power)
