"""Exercise 4.1: a step of ZeRO-1. Each rank steps on its own part, with optimizer state for that part alone.

What `update` was given is looked at in `lesson04a_part`.
"""

from __future__ import annotations

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
from picolib.course.exercises.lesson04a_part import (
    gradients_fault,
    lengths,
    padded_count,
    parameter_count,
    parts_fault,
    places,
    state_fault,
)
from picolib.course.words import apart, number_of, ranks_text

SMALL = ((2, 3), (4,), (1,))  # 11 parameters: no number of ranks above 1 divides that
LARGE = ((17, 29), (64,), (1,), (21, 21))  # 999
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def step_cases(world_size: int, seed: int) -> list[Case]:
    """Eleven parameters with gradients in digits, then 999 with random ones, over some steps; nobody knows how many."""
    random = generator(seed, world_size)
    return [_case("digits", SMALL, world_size, random), _case("float64", LARGE, world_size, random)]


def _case(kind: str, shapes: tuple, n: int, random: torch.Generator) -> Case:
    steps, total = int(torch.randint(4, 13, (), generator=random)), sum(lengths(shapes))
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
    parts = given["start"].split(lengths(shapes))
    parameters = [nn.Parameter(part.view(shape).clone()) for part, shape in zip(parts, shapes, strict=True)]
    update, state, after, calls = Adam(**given["adam"]), {}, [], []
    update.calls.clear()
    with nothing_ready_made():
        for gradient in given["gradients"]:
            for p, part in zip(parameters, gradient.split(lengths(shapes)), strict=True):
                p.grad = part.view(p.shape).clone()
            fn(parameters, state, update)
            after.append(torch.cat([p.detach().flatten().clone() for p in parameters]))
            calls.append(list(update.calls))
            update.calls.clear()
    return {"after": after, "calls": calls, "kept": elements_in(state)}


def judge_steps(attempt: Any) -> str | None:
    """Right gradients for the own part, right parameters everywhere after each step, a share of state, and no more
    bytes than an all-reduce."""
    looks = (_never_called, gradients_fault, state_fault, parts_fault, _memory_of_steps, _parameters, _bytes)
    return next((text for look in looks if (text := look(attempt))), None)


def steps_ignored(attempt: Any) -> list[int]:
    """Ranks that hand right means to `update` in a case in which the sums that they were given were changed."""
    n = attempt.world_size
    right = [bool(places(attempt, rank)) for rank in range(n)]
    return [rank for rank, record in enumerate(attempt.ranks) if right[rank] and by_torch_alone(record)]


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
    return parameter_count(attempt) > attempt.world_size


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
    mine, total = got[rank], parameter_count(attempt)
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
    return too_many_bytes(attempt, parameter_count(attempt), padded_count(attempt), steps)
