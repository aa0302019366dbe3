"""Exercise 5.6: twin masks. Dropout in a tensor-parallel group: where masks agree, where they differ, and for how long.

Each rank makes the same calls four times: from a seed, from that seed again, from a state in the middle, and from
another seed; then with p = 0, and in one case very often. Tensors have no zeros, so a mask is read from what is zero
afterwards.
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
from picolib.course.exercises.lesson05b_chance import MANY_CALLS
from picolib.course.exercises.lesson05b_common import GROUPS, LESSON, members, own_group
from picolib.course.exercises.lesson05b_masks import judge_masks

SHAPES = ((60, 60), (4, 30, 30), (10, 12, 30), (3600,))  # of as many numbers each, so that masks can be compared
RATES = (0.15, 0.2, 0.25, 0.35), (0.55, 0.65, 0.75)  # of the first case of a size, and of the other
WAYS = GROUPS | {5: [[[0, 1, 2, 3, 4]], *GROUPS[5]]}
NEXT = 3  # numbers of the common stream that are looked at after each call, without drawing them
FEW = 2400  # numbers in x of the many calls: a tenth of them is enough to tell masks apart


def dropout_cases(world_size: int, seed: int) -> list[Case]:
    """Each way of making groups, each group with a seed of its own; what is cut and what is not, in random order."""
    random = generator(seed, world_size)
    draw = lambda most: int(torch.randint(most, (), generator=random))  # noqa: E731
    made = []
    for number, groups in enumerate(WAYS[world_size]):
        rates, dtype = RATES[number], (torch.float32, torch.float64)[number]
        shape, seeds = SHAPES[draw(len(SHAPES) - (number == 0))], [draw(1 << 40) for _ in range(2 * len(groups))]
        cut = [True, False, True, True, False, True, True, bool(draw(2)), False]
        numbers = lambda shape=shape, dtype=dtype: 1 + torch.rand(shape, generator=random, dtype=dtype)  # noqa: E731
        whole, given = numbers(), {"groups": groups, "p": rates[draw(len(rates))], "cut": cut, "back": 2 + draw(3)}
        given |= {"shape": list(shape), "grad": numbers()}
        inputs = []
        for rank in range(world_size):
            place = groups.index(members(groups, rank))
            # In the first calls all ranks have the same numbers, whatever is said of them: masks don't come from those.
            part = whole + numbers()
            x = [whole if index < 3 or not one else part for index, one in enumerate(cut)]
            many = (world_size, number, rank) == (4, 0, 0)
            inputs.append((given | {"x": x, "many": many, "seeds": seeds[2 * place : 2 * place + 2]},))
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
        few = given["x"][0].flatten()[:60], given["grad"].flatten()[:60]
        none = [_call(fn, *few, 0.0, cut, group) for cut in (False, True)]
    different = _different_masks(fn, given["p"], group) if given["many"] and "y" in none[1] else None
    for run in (*runs.values(), none):
        for call in run:
            call["before"] = None
    seen = {"runs": runs, "none": none, "different": different}
    return seen | {"borrowed": called[:1], "instead": "torch's random functions and F.dropout"}


def _run(fn: Callable, given: dict, group: Any, seed: int | None, state: Any = None) -> list[dict[str, Any]]:
    """All calls after a seed; those from number `back` on after a state."""
    if seed is None:
        torch.set_rng_state(state)
    else:
        torch.manual_seed(seed)
    calls = list(zip(given["x"], given["cut"], strict=True))[given["back"] if seed is None else 0 :]
    return [_call(fn, x, given["grad"], given["p"], cut, group) for x, cut in calls]


def _call(fn: Callable, x: torch.Tensor, grad: torch.Tensor, p: float, cut: bool, group: Any) -> dict[str, Any]:
    variable = x.clone()
    if x.dtype == torch.float64:  # its last dimension first in memory, as after a transpose: `view` may refuse it
        variable = x.movedim(-1, 0).contiguous().movedim(0, -1)
    before, variable = torch.get_rng_state(), variable.requires_grad_()
    y = fn(variable, p, cut, group)
    after = torch.Generator()
    after.set_state(torch.get_rng_state())
    found = {"next": torch.rand(NEXT, generator=after).tolist(), "before": before}
    if not isinstance(y, torch.Tensor) or (y.shape, y.dtype) != (x.shape, x.dtype):
        return found | {"got": _kind(y)}
    result = y.detach().clone()
    if y.requires_grad:
        y.backward(grad)
    return found | {"y": result, "gradient": variable.grad, "unchanged": torch.equal(variable.detach(), x)}


def _kind(y: Any) -> str:
    return f"a tensor of shape {list(y.shape)}, {y.dtype}" if isinstance(y, torch.Tensor) else type(y).__name__


def _different_masks(fn: Callable, p: float, group: Any) -> int:
    """Of many calls with cut activations: how many masks there are."""
    x = torch.ones(FEW)
    return len({(fn(x, p, True, group) != 0).numpy().tobytes() for _ in range(MANY_CALLS)})


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
