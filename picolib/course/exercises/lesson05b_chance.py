"""Exercise 5.6: how alike masks are, moved by any number of places, and how surprised one may be.

A right answer must not be refused by chance. Numbers of a mask that agree by chance are rarely many (10 standard
deviations, for masks of some thousand numbers); but F.dropout on a CPU may draw from one cycle of 2^31 numbers, at a
random place in it, so once in some hundred checks two of hundreds of masks do overlap. A mistake makes it happen at
each call. So several pairs of masks have to be alike before something is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SAME_PLACES = 0.15  # correlation number by number: 9 standard deviations for masks of 3600 numbers
MOVED = 0.5  # correlation when one is moved: 30 of them
WITHIN = 0.25  # correlation of a mask with itself, moved: 15 of them
TWICE, MANY = 2, 4  # pairs of masks that are alike in place, and moved
MANY_CALLS = 1000  # seeds of 16 bits come again in so many calls, some 8 times, and those of 31 bits do not
SIGMAS = 6.0


@dataclass(frozen=True)
class Alike:
    """Two of the masks (their numbers, the earlier one first), by how many places one is moved, and the correlation."""

    one: int
    other: int
    places: int
    correlation: float


def unlikely(found: int, count: int, chance: float) -> bool:
    """Whether so many of `count`, each with this chance, are further from the mean than chance brings them."""
    return abs(found - chance * count) > SIGMAS * (count * chance * (1 - chance)) ** 0.5


def repetition(mask: torch.Tensor) -> int | None:
    """After how many places a mask comes again, if it does (the first of them)."""
    itself = by_places(standard(mask[None]), 0)[0, 1 : len(mask) // 2 + 1]
    most = itself.abs().max()  # also at multiples of the first, and there a little less or more
    return int((itself.abs() >= 0.9 * most).nonzero()[0]) + 1 if most > WITHIN else None


def alike(masks: torch.Tensor) -> list[Alike]:
    """Pairs of masks [m, n] that should be independent and are not: number by number, or else moved.

    So few that it may be chance are not returned.
    """
    rows, same, moved = standard(masks), [], []
    for one in range(len(rows) - 1):
        found = by_places(rows[one:], 0)[1:]
        for other, correlations in enumerate(found.tolist(), start=one + 1):
            if abs(correlations[0]) > SAME_PLACES:
                same.append(Alike(one, other, 0, correlations[0]))
        sizes, places = found[:, 1:].abs().max(1)
        for row in (sizes > MOVED).nonzero().flatten().tolist():
            place = int(places[row]) + 1
            moved.append(Alike(one, one + 1 + row, min(place, rows.shape[1] - place), float(found[row, place])))
    return same if len(same) >= TWICE else moved if len(moved) >= MANY else []


def standard(masks: torch.Tensor) -> torch.Tensor:
    """Masks [m, n] as numbers of mean 0 and length 1; a mask of one kind of numbers only becomes zeros."""
    numbers = masks.float()
    numbers = numbers - numbers.mean(1, keepdim=True)
    return numbers / numbers.norm(dim=1, keepdim=True).clamp_min(1e-6)


def by_places(rows: torch.Tensor, one: int) -> torch.Tensor:
    """Correlations [m, n] of row `one` with each row, the latter moved by 0, 1, 2, ... places, around the end."""
    spectra = torch.fft.rfft(rows)
    return torch.fft.irfft(spectra[one].conj() * spectra, rows.shape[1])
