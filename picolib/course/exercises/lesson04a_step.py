"""Exercise 4.1: a step of ZeRO-1. Each rank steps on its own part, with optimizer state for that part alone.

In the digits case the gradients say from whom they come, and the parameters where they stand: parameter i is i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from picolib.course import digits
from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04a_adam import Adam
from picolib.course.exercises.lesson04a_common import (
    by_torch_alone,
    elements_in,
    nothing_ready_made,
    too_many_bytes,
)
from picolib.course.words import apart, number_of, ranks_text, times

SMALL = ((2, 3), (4,), (1,))  # 11 parameters: no number of ranks above 1 divides that
SMALL_CHANGE = 32  # numbers in state beside the moments: counts of steps, some lengths
NOTHING = "0"  # stands for a gradient that is 0, as padding is
LARGE = ((17, 29), (64,), (1,), (21, 21))  # 999
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def step_cases(world_size: int, seed: int) -> list[Case]:
    """Eleven parameters with gradients in digits, then 999 with random ones, over some steps; nobody knows how many."""
    random = generator(seed, world_size)
    return [_case("digits", SMALL, world_size, random), _case("float64", LARGE, world_size, random)]


def _case(kind: str, shapes: tuple, n: int, random: torch.Generator) -> Case:
    steps, total = int(torch.randint(4, 13, (), generator=random)), sum(_lengths(shapes))
    lr, one, two = (torch.rand(3, generator=random, dtype=torch.float64) * 0.1).tolist()
    adam = {"lr": 0.01 + lr, "betas": (0.85 + one, 0.85 + two)}
    if kind == "digits":
        start = torch.arange(total, dtype=torch.float64)
        ranks = [[digits.contribution(rank, total)] * steps for rank in range(n)]
    else:
        start = torch.randn(total, dtype=torch.float64, generator=random)
        ranks = [
            [torch.randn(total, dtype=torch.float64, generator=random) for _ in range(steps)] for _ in range(n)
        ]  # fmt: skip
    given = [{"shapes": shapes, "start": start, "gradients": gradients, "adam": adam} for gradients in ranks]
    return Case(kind, tuple((one,) for one in given), (_one_process(given),) * n)


def _lengths(shapes: Sequence[tuple]) -> list[int]:
    return [torch.Size(shape).numel() for shape in shapes]


def _one_process(given: list[dict]) -> list[torch.Tensor]:
    """The parameters after each step."""
    flat, state, adam, after = given[0]["start"].clone(), {}, Adam(**given[0]["adam"]), []
    for gradients in zip(*(rank["gradients"] for rank in given), strict=True):
        adam(flat, torch.stack(gradients).mean(0), state)
        after.append(flat.clone())
    return after


def take_steps(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: some steps by the learner's function. What it left after each, and what `update` was called with."""
    (given,) = arguments
    shapes = given["shapes"]
    parts = given["start"].split(_lengths(shapes))
    parameters = [nn.Parameter(part.view(shape).clone()) for part, shape in zip(parts, shapes, strict=True)]
    update, state, after, calls = Adam(**given["adam"]), {}, [], []
    update.calls.clear()
    with nothing_ready_made():
        for gradient in given["gradients"]:
            for p, part in zip(parameters, gradient.split(_lengths(shapes)), strict=True):
                p.grad = part.view(p.shape).clone()
            fn(parameters, state, update)
            after.append(torch.cat([p.detach().flatten().clone() for p in parameters]))
            calls.append(list(update.calls))
            update.calls.clear()
    return {"after": after, "calls": calls, "kept": elements_in(state)}


# The verdict ---------------------------------------------------------------------------------------------------


def judge_steps(attempt: Any) -> str | None:
    """Right gradients for the own part, right parameters everywhere after each step, a share of state, and no more
    bytes than an all-reduce."""
    looks = (_never_called, _gradients, _state, _parts, _memory_of_steps, _parameters, _bytes)
    return next((text for look in looks if (text := look(attempt))), None)


def steps_ignored(attempt: Any) -> list[int]:
    """Ranks that hand right means to `update` in a case in which the sums that they were given were changed."""
    n = attempt.world_size
    right = [bool(_places(attempt, rank)) for rank in range(n)]
    return [rank for rank, record in enumerate(attempt.ranks) if right[rank] and by_torch_alone(record)]


def _total(attempt: Any) -> int:
    return sum(_lengths(attempt.inputs()[0]["shapes"]))


def _most(attempt: Any) -> int:
    """Parameters with padding, where each tensor is padded by itself."""
    n = attempt.world_size
    return sum(-(-length // n) * n for length in _lengths(attempt.inputs()[0]["shapes"]))


def _never_called(attempt: Any) -> str | None:
    for step in range(len(attempt.outputs[0]["calls"])):
        idle = [rank for rank, output in enumerate(attempt.outputs) if not output["calls"][step]]
        if len(idle) == attempt.world_size or (idle and _every_rank_has_a_part(attempt)):
            return (
                f"{ranks_text(idle)} never called update in step {step + 1}: every rank steps on its own part, with "
                "update(part, gradient, state), in every step."
            )
    return None


def _every_rank_has_a_part(attempt: Any) -> bool:
    return _total(attempt) > attempt.world_size


def _numbers(attempt: Any, rank: int, factor: int = 1) -> list[digits.Number | None]:
    """What was given to `update` in the first step, times N, read as digits (padding, where it is 0, left out)."""
    return [number for _, number in _handed(attempt, rank, factor) if number != NOTHING]


def _handed(attempt: Any, rank: int, factor: int = 1) -> list[tuple[float, digits.Number | None | str]]:
    """(number of the part, its gradient times N read as digits) of each element that `update` was given first."""
    n, calls = attempt.world_size, attempt.outputs[rank]["calls"][0]
    part, gradient = (torch.cat([call[name].flatten().double() for call in calls] or [torch.zeros(0)])
                      for name in ("part", "gradient"))  # fmt: skip
    scaled = (gradient * n * factor / digits.PLACE).round() * digits.PLACE
    read = [digits.read(x, n) if x else NOTHING for x in scaled.tolist()]
    return list(zip(part.tolist(), read, strict=True))


def _places(attempt: Any, rank: int) -> list[tuple[float, int | None]]:
    """(number of the part, place of its gradient) of the elements whose gradient is the mean of everybody's."""
    every = (1,) * attempt.world_size
    return [(x, g.place) for x, g in _handed(attempt, rank) if isinstance(g, digits.Number) and g.counts == every]


def _gradients(attempt: Any) -> str | None:
    """In the digits case: of whom the gradients are made that `update` was given."""
    n = attempt.world_size
    if attempt.case.kind != "digits" or n == 1:
        return None
    if {place for rank in range(n) for _, place in _places(attempt, rank)} == set(range(_total(attempt))):
        return None  # what else there is may be padding, whatever stands in it
    for rank in range(n):
        counts = {number.counts if number else None for number in _numbers(attempt, rank)}
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
    if all(number and number.counts == (1,) * n for number in _numbers(attempt, rank, n)):
        return f"{what} exactly {times(n)} too small. Was it divided twice?"
    one = next((c for c in counts if c and 0 in c and max(c) == 1), None)
    if one:
        missing = [r for r in range(n) if not one[r]]
        return f"{what} not the mean: {ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing."
    value = next(x for call in attempt.outputs[rank]["calls"][0] for x in call["gradient"].flatten().tolist() if x)
    divisor = (10**n - 1) / 9 / value  # of the sum, whose digits are all 1
    if abs(divisor - round(divisor)) < 1e-2 and round(divisor) > 0:
        return f"{what} the sum divided by {round(divisor)}, and there are {n} ranks."
    return f"{what} not the mean over the {n} ranks."


def _state(attempt: Any) -> str | None:
    """Two moments for the own part, and nothing for the others'."""
    n, total = attempt.world_size, _total(attempt)
    most = _most(attempt) // n
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


def _parts(attempt: Any) -> str | None:
    """In the digits case: each parameter belongs to one rank, and meets its own gradient."""
    n, total = attempt.world_size, _total(attempt)
    if attempt.case.kind != "digits" or n == 1:
        return None
    owners: dict[int, list[int]] = {}
    for rank in range(n):
        for _, place in _places(attempt, rank):
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
    pair = next((pair for pair in _places(attempt, rank) if round(pair[0]) != pair[1]), None)
    if pair is None:
        return None
    return (
        f"rank {rank}: in its part parameter {round(pair[0])} (counted from 0) meets the gradient of parameter "
        f"{pair[1]}. Lay parameters and gradients out in the same way, and cut both into the same parts."
    )


def _memory_of_steps(attempt: Any) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        later = enumerate(output["calls"][1:], start=2)
        again = next((step for step, calls in later if any(call["fresh"] for call in calls)), None)
        if again is not None:
            return (
                f"rank {rank}: in step {again} update begins with an empty state, so its moments are lost. What "
                "you keep from step to step belongs into `state`, the same dict in every step."
            )
    return None


def _parameters(attempt: Any) -> str | None:
    expected = attempt.case.expected[0]
    for step, right in enumerate(expected):
        got = [output["after"][step] for output in attempt.outputs]
        wrong = [rank for rank, flat in enumerate(got) if not _right(flat, right)]
        if wrong:
            before = attempt.inputs()[0]["start"] if step == 0 else expected[step - 1]
            again = "" if step == 0 else f"Steps up to {step} are right. In step {step + 1}, "
            return again + _fault(attempt, wrong[0], got, right, before)
    return None


def _right(flat: torch.Tensor, right: torch.Tensor) -> bool:
    return flat.shape == right.shape and torch.allclose(flat, right, **CLOSE)


def _fault(attempt: Any, rank: int, got: list[torch.Tensor], right: torch.Tensor, before: torch.Tensor) -> str:
    mine, total = got[rank], _total(attempt)
    if mine.shape != right.shape:
        return f"rank {rank} ends with {number_of(len(mine), 'parameter')}; it was given {total}."
    stayed, moved = torch.isclose(mine, before, rtol=0, atol=1e-13), torch.isclose(mine, right, **CLOSE)
    if bool(stayed.all()):
        return (
            f"rank {rank}: no parameter has moved, though update was called: what it has changed is a copy of a part. "
            "Gather the parts after it, and write the result into the parameters, such as p.data.copy_(...)."
        )
    if bool((stayed | moved).all()):
        return (
            f"rank {rank}'s parameters differ from the other ranks': its own part has moved, and "
            f"{int((stayed & ~moved).sum())} of {total} have not. They belong to other ranks, who have stepped on them "
            "and told nobody: gather the parts."
        )
    index = int((mine - right).abs().nan_to_num(nan=float("inf")).argmax())
    if any(torch.allclose(mine[k:], right[:-k], **CLOSE) for k in range(1, attempt.world_size)):
        return f"rank {rank}: the numbers are right, a few places too far back. The zeros belong behind, not in front."
    if bool((mine.sort().values - right.sort().values).abs().max() < 1e-9):
        return (
            f"rank {rank}: the right numbers in the wrong places. Cut the flat tensor up in the order in which it was "
            "put together."
        )
    texts = apart(float(mine[index]), float(right[index]))
    close = torch.allclose(mine, right, rtol=1e-5, atol=1e-6)
    odd = " Somewhere they went through float32: make room with torch.empty_like(...), in their dtype." if close else ""
    same = all(torch.allclose(mine, other, **CLOSE) for other in got)
    who = "all ranks agree, but not with one process:" if same else f"rank {rank}:"
    return f"{who} parameter {index} (counted from 0) is {texts[0]}, where {texts[1]} is right.{odd}"


def _bytes(attempt: Any) -> str | None:
    """Judged where padding is small."""
    if attempt.case.kind == "digits":
        return None
    steps = len(attempt.case.expected[0])
    return too_many_bytes(attempt, _total(attempt), _most(attempt), steps)
