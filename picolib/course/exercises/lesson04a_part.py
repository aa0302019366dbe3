"""Exercise 4.1: with which part of the parameters and of the mean gradient each rank has called `update`.

In the digits case the gradients say from whom they come, and the parameters where they stand: parameter i is i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import digits
from picolib.course.words import ranks_text, times

SMALL_CHANGE = 32  # numbers in state beside the moments: counts of steps, some lengths
NOTHING = "0"  # stands for a gradient that is 0, as padding is


def lengths(shapes: Sequence[tuple]) -> list[int]:
    """Numbers in each tensor of these shapes."""
    return [torch.Size(shape).numel() for shape in shapes]


def parameter_count(attempt: Any) -> int:
    """How many numbers the parameters of a case are."""
    return sum(lengths(attempt.inputs()[0]["shapes"]))


def padded_count(attempt: Any) -> int:
    """The most that they can be with padding: each tensor by itself, to a multiple of the ranks."""
    n = attempt.world_size
    return sum(-(-length // n) * n for length in lengths(attempt.inputs()[0]["shapes"]))


def _handed(attempt: Any, rank: int, factor: int = 1) -> list[tuple[float, digits.Number | None | str]]:
    """(number of the part, its gradient times N read as digits) of each element that `update` was given first."""
    n, calls = attempt.world_size, attempt.outputs[rank]["calls"][0]
    part, gradient = (torch.cat([call[name].flatten().double() for call in calls] or [torch.zeros(0)])
                      for name in ("part", "gradient"))  # fmt: skip
    scaled = (gradient * n * factor / digits.PLACE).round() * digits.PLACE
    read = [digits.read(x, n) if x else NOTHING for x in scaled.tolist()]
    return list(zip(part.tolist(), read, strict=True))


def _read(attempt: Any, rank: int, factor: int = 1) -> list[digits.Number | None]:
    """What was given to `update` in the first step, times N, read as digits (padding, where it is 0, left out)."""
    return [number for _, number in _handed(attempt, rank, factor) if number != NOTHING]


def places(attempt: Any, rank: int) -> list[tuple[float, int | None]]:
    """(number of the part, place of its gradient) of the elements whose gradient is the mean of everybody's."""
    every = (1,) * attempt.world_size
    return [(x, g.place) for x, g in _handed(attempt, rank) if isinstance(g, digits.Number) and g.counts == every]


def gradients_fault(attempt: Any) -> str | None:
    """In the digits case: of whom the gradients are made that `update` was given."""
    n = attempt.world_size
    if attempt.case.kind != "digits" or n == 1:
        return None
    if {place for rank in range(n) for _, place in places(attempt, rank)} == set(range(parameter_count(attempt))):
        return None  # what else there is may be padding, whatever stands in it
    for rank in range(n):
        counts = {number.counts if number else None for number in _read(attempt, rank)}
        if counts and counts != {(1,) * n}:
            return _whose(attempt, rank, counts)
    return None


def _whose(attempt: Any, rank: int, counts: set) -> str:
    n = attempt.world_size
    what = f"rank {rank}: the gradient that update gets is"
    alone = [tuple(k if r == rank else 0 for r in range(n)) for k in (n, 1)]
    if counts == {(n,) * n}:
        return (
            f"{what} exactly {times(n)} too big: the sum over the ranks, not divided. (Adam hides it: its steps come "
            "out as if nothing were wrong.)"
        )
    if len(counts) == 1 and next(iter(counts)) in alone:
        return f"{what} still its own{'' if alone[0] in counts else ', divided'}: no other rank's is in it."
    if all(number and number.counts == (1,) * n for number in _read(attempt, rank, n)):
        return f"{what} exactly {times(n)} too small. Was it divided twice?"
    one = next((c for c in counts if c and 0 in c and max(c) == 1), None)
    if one:
        missing = [r for r in range(n) if not one[r]]
        return f"{what} not the mean: {ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing."
    value = next(x for call in attempt.outputs[rank]["calls"][0] for x in call["gradient"].flatten().tolist() if x)
    if not math.isfinite(value):
        return f"{what} {value:g}. Is something divided by 0, such as by `rank` on rank 0?"
    if abs(value - (10**n - 1) / 9 * n) < 1e-2:
        return f"{what} exactly {times(n * n)} too big: the sum is multiplied by {n}, where it should be divided."
    divisor = (10**n - 1) / 9 / value  # of the sum, whose digits are all 1
    if abs(divisor - round(divisor)) < 1e-2 and round(divisor) > 0:
        return f"{what} the sum divided by {round(divisor)}, and there are {n} ranks."
    return f"{what} not the mean over the {n} ranks."


def state_fault(attempt: Any) -> str | None:
    """Two moments for the own part, and nothing for the others'."""
    n, total = attempt.world_size, parameter_count(attempt)
    most = padded_count(attempt) // n
    for rank, output in enumerate(attempt.outputs):
        stepped = max(sum(call["part"].numel() for call in calls) for calls in output["calls"])
        if n > 1 and stepped > most:
            ratio = min(stepped, total) / (total / n) if stepped < total + n else stepped / (total / n)
            return (
                f"rank {rank}: its state holds {ratio:.1f}x of its share. update is called with {stepped:,} of "
                f"{total:,} numbers, and keeps two moments for each; its share is 1/{n} of them."
            )
        more = output["kept"] - 2 * stepped - SMALL_CHANGE
        if n > 1 and more > 0:
            return (
                f"rank {rank}: after the last step there are {more:,} numbers in state that are not the moments of its "
                "part. What update keeps is all that may be kept from step to step."
            )
    return None


def parts_fault(attempt: Any) -> str | None:
    """In the digits case: each parameter belongs to one rank, and meets its own gradient."""
    n, total = attempt.world_size, parameter_count(attempt)
    if attempt.case.kind != "digits" or n == 1:
        return None
    owners: dict[int, list[int]] = {}
    for rank in range(n):
        for _, place in places(attempt, rank):
            owners.setdefault(place, []).append(rank)
        wrong = _mismatch(attempt, rank)
        if wrong:
            return wrong
    nobodys = [place for place in range(total) if place not in owners]
    if nobodys:
        which = f"element {nobodys[0]}" if len(nobodys) == 1 else f"elements {nobodys[0]} to {nobodys[-1]}"
        return (
            f"Of {total} parameters {which} (counted from 0) {'is' if len(nobodys) == 1 else 'are'} in nobody's part: "
            f"{total} does not divide by {n}. Put zeros behind the gradients, and behind the parameters, until it does."
        )
    twice = next((place for place in owners if len(owners[place]) > 1), None)
    if twice is not None:
        return (
            f"element {twice} (counted from 0) is in the parts of {ranks_text(owners[twice])}: a parameter has one "
            "owner."
        )
    return None


def _mismatch(attempt: Any, rank: int) -> str | None:
    """Parameter i is i before the first step, so a part says which parameters are in it."""
    pair = next((pair for pair in places(attempt, rank) if round(pair[0]) != pair[1]), None)
    if pair is None:
        return None
    return (
        f"rank {rank}: in its part parameter {round(pair[0])} (counted from 0) meets the gradient of parameter "
        f"{pair[1]}. Lay parameters and gradients out in the same way, and cut both into the same parts."
    )
