"""Exercise 5.6: twin masks. Dropout in a tensor-parallel group: where masks agree, where they differ, and for how long.

Each rank makes the same calls four times: from a seed, from that seed again, from a state in the middle, and from
another seed. Tensors have no zeros, so a mask is read from what is zero afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from picolib.course import observe
from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson05a_common import ALLOWED, READY_MADE
from picolib.course.exercises.lesson05b_common import GROUPS, LESSON, members, own_group
from picolib.course.exercises.lesson05b_masks import judge_masks

SHAPES = ((240,), (12, 20), (2, 6, 20), (5, 48))  # of as many numbers each, so that masks can be compared
RATES = (0.1, 0.2, 0.25, 0.3, 0.4), (0.5, 0.6)  # of the first case, and of the others
WAYS = GROUPS | {5: [*GROUPS[5], [[0, 1, 2, 3, 4]]]}
NEXT = 3  # numbers of the common stream that are looked at after each call, without drawing them


def dropout_cases(world_size: int, seed: int) -> list[Case]:
    """Each way of making groups, each group with a seed of its own; what is cut and what is not, in random order."""
    random = generator(seed, world_size)
    draw = lambda most: int(torch.randint(most, (), generator=random))  # noqa: E731
    made = []
    for number, groups in enumerate(WAYS[world_size]):
        rates = RATES[min(number, 1)]
        shape, seeds = SHAPES[draw(len(SHAPES))], [draw(1 << 40) for _ in range(2 * len(groups))]
        cut = [True, False, True, True, False, True, True, True, bool(draw(2))]
        dtype = torch.float64 if number else torch.float32
        noise = lambda shape=shape, dtype=dtype: torch.rand(shape, generator=random).to(dtype)  # noqa: E731
        whole = 1 + noise()
        given = {"groups": groups, "p": rates[draw(len(rates))], "cut": cut, "back": 2 + draw(3), "shape": list(shape)}
        given |= {"grad": 1 + noise()}
        inputs = []
        for rank in range(world_size):
            place = groups.index(members(groups, rank))
            # In the first calls all ranks have the same numbers, whatever is said of them: masks don't come from those.
            part = whole + noise()
            x = [whole if index < 3 or not one else part for index, one in enumerate(cut)]
            inputs.append((given | {"x": x, "seeds": seeds[2 * place : 2 * place + 2]},))
        made.append(Case("whole" if len(groups) == 1 else "groups", tuple(inputs), None))
    return made


def run_dropout(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: the same calls from a seed, from it again, from a state in the middle, and from another seed."""
    (given,) = arguments
    group = own_group(given["groups"])
    observe.forget()
    first, other = given["seeds"]
    with calls_into(*READY_MADE) as called:
        runs = {"first": _run(fn, given, group, first), "again": _run(fn, given, group, first)}
        back = runs["first"][given["back"]]["before"]
        runs["back"] = _run(fn, given, group, None, back)
        runs["other"] = _run(fn, given, group, other)
    for run in runs.values():
        for call in run:
            call["before"] = None
    return {"runs": runs, "borrowed": called[:1], "instead": "torch's random functions and F.dropout"}


def _run(fn: Callable, given: dict, group: Any, seed: int | None, state: Any = None) -> list[dict[str, Any]]:
    """All calls after a seed; those from number `back` on after a state."""
    if seed is None:
        torch.set_rng_state(state)
    else:
        torch.manual_seed(seed)
    calls = list(zip(given["x"], given["cut"], strict=True))
    return [
        _call(fn, x, given["grad"], given["p"], cut, group) for x, cut in calls[given["back"] if seed is None else 0 :]
    ]


def _call(fn: Callable, x: torch.Tensor, grad: torch.Tensor, p: float, cut: bool, group: Any) -> dict[str, Any]:
    # Its last dimension first in memory: as after a transpose, which views of one dimension refuse.
    before, variable = torch.get_rng_state(), x.movedim(-1, 0).clone().movedim(0, -1).requires_grad_()
    y = fn(variable, p, cut, group)
    after = torch.Generator()
    after.set_state(torch.get_rng_state())
    following = torch.rand(NEXT, generator=after).tolist()
    tensor = isinstance(y, torch.Tensor)
    kind = f"a tensor of shape {list(y.shape)}, {y.dtype}" if tensor else type(y).__name__
    kept = torch.equal(variable.detach(), x)
    if not tensor or y.shape != x.shape or y.dtype != x.dtype:
        return {"kind": kind, "y": None, "next": following, "before": before, "gradient": None, "kept": kept}
    result = y.detach().clone()
    if y.requires_grad:
        y.backward(grad)
    found = {"kind": kind, "y": result, "next": following, "before": before, "gradient": variable.grad}
    return found | {"kept": kept}


def nothing_sent(attempt: Any) -> str | None:
    """A rule: neither collectives nor messages."""
    for rank, record in enumerate(attempt.ranks):
        if record.collectives or record.sends:
            what = f"called {record.collectives[0][0]}" if record.collectives else "sent messages"
            return (
                f"rank {rank} {what}. Nothing needs to be sent here: the ranks of a group have the same stream, so "
                "what one of them draws from it all of them have drawn."
            )
    return None


EXERCISE = Exercise(
    id="5.6",
    function="tp_dropout",
    title="find the bug: twin masks",
    lesson=LESSON,
    sitting="05B",
    difficulty=3,
    minutes=7,
    task="Dropout in a tensor-parallel group whose masks agree where activations are replicated and differ where they "
    "are cut, all from one common stream.",
    cases=dropout_cases,
    call=run_dropout,
    judge=judge_masks,
    sizes=(4, 3, 5),
    allows=ALLOWED | {"parallel.sequence", "parallel.replicated"},
    rules=(borrowed, nothing_sent),
    tags=("random",),
    verified="masks agree and differ where they should, call after call, and follow from the common stream",
    hints=(
        "Two branches, and each does what the other one should? Not quite: swap them, and a cut region has the same "
        "mask at every call. Where does its seed come from?",
        "A number that all ranks know, and that is another one at each call: drawn from the common stream, outside of "
        "fork_rng: seed = int(torch.randint(1 << 60, ())).",
        "Not cut: return F.dropout(x, p). Cut: draw that number, then inside fork_rng torch.manual_seed(number + "
        "dist.get_rank(group)), and the dropout.",
    ),
)
