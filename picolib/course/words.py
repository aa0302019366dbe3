"""How numbers, sizes and lists of ranks read in the texts of the course."""

from __future__ import annotations

from collections.abc import Iterable

from picolib.launch.wording import ranks as ranks_text  # lists of ranks read alike in every text of picolib

__all__ = ["apart", "number_of", "ranks_text", "sizes_text", "times"]


def number_of(count: int, noun: str) -> str:
    """ "1 message", "3 messages", "7,500 bytes"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def apart(wrong: float, right: float, digits: int = 6) -> tuple[str, str]:
    """Two different numbers in as few digits as keep them apart: a text never shows one as wrong and right."""
    for count in range(digits, 18):
        texts = f"{wrong:.{count}g}", f"{right:.{count}g}"
        if texts[0] != texts[1]:
            break
    return texts


def times(factor: float) -> str:
    """ "4x", "1.5x"."""
    return f"{factor:.3g}x"


def sizes_text(sizes: Iterable[int]) -> str:
    """ "1, 2, 3, 4, 5 ranks", "4 ranks"."""
    found = sorted(sizes)
    return ", ".join(map(str, found)) + (" rank" if found == [1] else " ranks")
