"""How numbers and lists of ranks read in the texts of the course."""

from __future__ import annotations

from collections.abc import Iterable


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 2", "ranks 0 and 2", "ranks 1-3"."""
    found = sorted(ranks)
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"ranks {found[0]}-{found[-1]}"
    return "ranks " + ", ".join(map(str, found[:-1])) + f" and {found[-1]}"


def number_of(count: int, noun: str) -> str:
    """ "1 message", "3 messages", "7,500 bytes"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def times(factor: float) -> str:
    """ "4x", "1.5x"."""
    return f"{factor:.3g}x"


def sizes_text(sizes: Iterable[int]) -> str:
    """ "1, 2, 3, 4, 5 ranks", "4 ranks"."""
    found = sorted(sizes)
    return ", ".join(map(str, found)) + (" rank" if found == [1] else " ranks")
