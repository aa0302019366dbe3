"""Exercise 5.1: Megatron's f and g, each one pass of nothing and one of an all-reduce."""

from __future__ import annotations

from typing import Any

import torch

from picolib.course.exercise import Exercise
from picolib.course.exercises.borrowed import borrowed
from picolib.course.exercises.lesson05a_common import (
    ALLOWED,
    LESSON,
    in_the_graph,
    of_the_learner,
    only_all_reduce,
    other_numbers,
    reduced,
    same,
)
from picolib.course.exercises.lesson05a_rounds import conjugate_cases, run_both
from picolib.course.words import number_of, times

TASK = {"f": "nothing forward, an all-reduce backward", "g": "an all-reduce forward, nothing backward"}


def judge_both(attempt: Any) -> str | None:
    """Forward, backward, what was left alone, and how many all-reduces; then the gradient check's word."""
    for rank, output in enumerate(attempt.outputs):
        if output["kind"]:
            return f"rank {rank}: your function returned {output['kind']}: return both functions, f and g."
    swapped = _swapped(attempt)
    if swapped:
        return swapped
    for number in range(len(attempt.outputs[0]["rounds"])):
        for name in "fg":
            for rank in range(attempt.world_size):
                text = _fault(attempt, number, name, rank)
                if text:
                    return text
    return _twice_fault(attempt) or _count_fault(attempt) or _checked_fault(attempt) or in_the_graph(attempt)


def _rights(attempt: Any, number: int, name: str, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The right output and the right gradient of x."""
    of_ranks = [inputs[0][number][name] for inputs in attempt.case.inputs]
    x, grad = of_ranks[rank]
    total = sum(pair[name == "f"] for pair in of_ranks)
    return (x, total) if name == "f" else (total, grad)


def _swapped(attempt: Any) -> str | None:
    sums = [sum(inputs[0][0][name][0] for inputs in attempt.case.inputs) for name in "fg"]
    for rank, output in enumerate(attempt.outputs):
        got, own = [output["rounds"][0][name]["y"] for name in "fg"], attempt.case.inputs[rank][0][0]["g"][0]
        if same(got[0], sums[0]) and same(got[1], own):
            return f"rank {rank}: f sums forward and g does not: the two are swapped. f: {TASK['f']}; g: {TASK['g']}."
    return None


def _fault(attempt: Any, number: int, name: str, rank: int) -> str | None:
    got = attempt.outputs[rank]["rounds"][number][name]
    y, gradient = _rights(attempt, number, name, rank)
    x, grad = attempt.case.inputs[rank][0][number][name]
    head = f"rank {rank}: {name}"
    if got["y"] is None or got["y"].shape != y.shape:
        what = f"{head}(x) must be a tensor like x, {list(y.shape)}, not {got['kind']}."
        return what + (" dist.all_reduce works in place and returns None." if got["kind"] == "NoneType" else "")
    if not got["kept"][0]:
        return f"{head} has changed its argument: all_reduce adds up in place, so give it a copy, x.clone()."
    if got["y"].dtype != y.dtype:
        return f"{head}(x) is of {_dtype(got['y'])}, and x of {_dtype(y)}: keep the dtype, as x.clone() does."
    if not same(got["y"], y):
        why = _of_one(attempt, number, name, "y") or _why_forward(name, got["y"], x, y, attempt.world_size)
        return f"{head}(x) is {_text(attempt, got['y'])}, and {_text(attempt, y)} is right. {why}"
    if got["fits"] and got["x"] is None:
        return (
            f"{head}'s backward pass returned None, so x gets no gradient: return the gradient (dist.all_reduce works "
            "in place, and itself returns None)."
        )
    if not got["fits"]:
        return f"{head}(x) has no graph, so x gets no gradient: return the class's apply(x), and both passes with it."
    if not same(got["x"], gradient):
        shown = f"{head}: the gradient of x is {_text(attempt, got['x'])}, and {_text(attempt, gradient)} is right. "
        return shown + (
            _of_one(attempt, number, name, "x") or _why_backward(name, got["x"], grad, gradient, attempt.world_size)
        )
    if not got["kept"][1]:
        return (
            f"{head}'s backward pass has changed the gradient that it was given, which others may be using: all_reduce "
            "adds up in place, so give it a copy, grad.clone()."
        )
    return None


def _of_one(attempt: Any, number: int, name: str, what: str) -> str:
    """What to say where all ranks hold the same, which is what one of them gave; empty where not."""
    given = [inputs[0][number][name][what == "x"] for inputs in attempt.case.inputs]
    held = [output["rounds"][number][name][what] for output in attempt.outputs]
    if attempt.case.kind != "powers" or any(one is None or not same(one, held[0]) for one in held):
        return ""
    whose = next((rank for rank, one in enumerate(given) if same(held[0], one)), None)
    others = any(not same(one, given[0]) for one in given)
    return (
        f"All ranks hold what rank {whose} gave: an all-reduce adds up, op=SUM." if whose is not None and others else ""
    )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _text(attempt: Any, tensor: torch.Tensor) -> str:
    value = float(tensor.flatten()[0])
    whole = attempt.case.kind == "powers" and value == int(value) and value >= 1
    return f"`{int(value):0{attempt.world_size}d}`" if whole else f"{value:.6g}"


def _why_forward(name: str, got: torch.Tensor, x: torch.Tensor, right: torch.Tensor, n: int) -> str:
    if name == "f":
        return f"f does {TASK['f']}: all ranks have the same x, and each goes on with it."
    if same(got, x):
        return "That is the rank's own: g's forward pass adds up the summands of all ranks."
    if same(got * n, right):
        return f"It is {times(n)} too small: summands are added up, not averaged."
    return "It is the sum over the ranks."


def _why_backward(name: str, got: torch.Tensor, own: torch.Tensor, right: torch.Tensor, n: int) -> str:
    for factor in (n, n * n, 1 / n):
        if same(got, right * factor):
            size = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
            return f"Every gradient is exactly {size}. " + (
                _FACTOR[name] if factor > 1 else "Nothing is averaged here: there is one loss, and one batch."
            )
    if name == "f" and same(got, own):
        return (
            "That is what reached this rank alone: its part of the layer knows its own share of the gradient. The "
            "shares of all ranks have to be added up."
        )
    return f"{name} does {TASK[name]}."


_FACTOR = {
    "f": "Is it added up twice?",
    "g": "g's backward pass sums as well. All ranks go on alike with the sum, to one loss: each has the whole gradient "
    "already, and once more is once a rank.",
}


def _twice_fault(attempt: Any) -> str | None:
    """Of calls that are alive together, and of g without a graph."""
    of_ranks = [inputs[0][:2] for inputs in attempt.case.inputs]
    for rank, output in enumerate(attempt.outputs):
        got = output["twice"]
        if got is None:
            continue
        if not same(got["f"], sum(one["f"][1] for rounds in of_ranks for one in rounds)):
            return (
                f"rank {rank}: x enters two layers through f, as those of q and k, and its gradient is not the sum of "
                "both. Does each call of the backward pass return a tensor of its own?"
            )
        total = sum(rounds[0]["g"][0] for rounds in of_ranks)
        if not same(got["g"], total):
            return f"rank {rank}: what g returned has changed with its next call: return a new tensor in each call."
        if not same(got["bare"], total):
            return (
                f"rank {rank}: under torch.no_grad(), as a model generates, g(x) is not the sum. The forward pass adds "
                "up whether somebody wants a gradient or not."
            )
    return None


def _count_fault(attempt: Any) -> str | None:
    right = {"f forward": 0, "f backward": 1, "g forward": 1, "g backward": 0}
    for rank, record in enumerate(map(of_the_learner, attempt.ranks)):
        for label, count in right.items():
            name, way = label.split()
            made = next((len(calls) for calls in reduced(record, label) if len(calls) != count), None)
            if made is not None:
                return (
                    f"The values are right, but {name}'s {way} pass made {number_of(made, 'all-reduce')} on rank "
                    f"{rank}; {count or 'none'} {'is' if count == 1 else 'are'} right. {name}: {TASK[name]}."
                )
            sizes = [one[name][0].numel() for one in attempt.case.inputs[rank][0]]
            other = other_numbers(record, label, sizes)
            if other:
                return (
                    f"The values are right, but {name}'s {way} pass all-reduces {number_of(other[0], 'number')} on "
                    f"rank {rank}, and x has {other[1]}: the sum itself is what an all-reduce leaves."
                )
    return None


def _checked_fault(attempt: Any) -> str | None:
    text = attempt.outputs[0]["checked"]
    return f"The first calls are right, but the gradient check over all ranks says: {text}" if text else None


def ignoring(attempt: Any) -> list[int]:
    """Ranks that are right though every all-reduce left something else."""
    found = []
    for rank, output in enumerate(attempt.outputs):
        one = output["rounds"][0] if output["rounds"] else {}
        rights = {name: _rights(attempt, 0, name, rank) for name in one}
        if one and (same(one["f"]["x"], rights["f"][1]) or same(one["g"]["y"], rights["g"][0])):
            found.append(rank)
    return found


def _instead(attempt: Any) -> str | None:
    for output in attempt.outputs:
        output.setdefault("instead", "torch.autograd.Function and dist.all_reduce")
    return borrowed(attempt)


EXERCISE = Exercise(
    id="5.1",
    function="f_and_g",
    title="f and g",
    lesson=LESSON,
    sitting="05A",
    difficulty=2,
    minutes=8,
    task="Two functions: one sums over the ranks in its backward pass only, the other in its forward pass only.",
    cases=conjugate_cases,
    call=run_both,
    judge=judge_both,
    ignores=ignoring,
    sizes=(4, 3, 2),
    allows=ALLOWED | {"spmd_gradcheck"},
    raised=(
        (
            "leaf Variable that requires grad",
            "all_reduce changes the tensor that it is given, and x is somebody else's: give it x.clone().",
        ),
    ),
    rules=(_instead, only_all_reduce("One dist.all_reduce does it.")),
    tags=("gradients",),
    verified="gradients equal to differences, with one number of one rank moved at a time; one all-reduce each",
    hints=(
        "A torch.autograd.Function has two passes. For each of the four: does it add up over the ranks, or pass on?",
        "f adds up on the way back only, g on the way there only. dist.all_reduce works in place, so it wants a copy, "
        "and what it has summed is returned.",
        "total = grad.clone(), dist.all_reduce(total), return total. g's backward: return grad, and nothing else.",
    ),
)
