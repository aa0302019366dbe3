"""Exercise 5.5: sequence parallelism. A block whose norm and residual connection see this rank's tokens only.

Each rank is given its own tokens and its own part of the two matrices, so nobody can compute another's share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from picolib.course import observe
from picolib.course.exercise import COLLECTIVES, Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.lesson05a_common import ALLOWED, READY_MADE, same
from picolib.course.exercises.lesson05b_common import LESSON, Called, called, members, own_group, who
from picolib.course.exercises.lesson05b_numbers import WEIGHTS, WIDTH, Whole, block_cases, growth, whole_of
from picolib.course.exercises.lesson05b_told import gradient_fault, output_fault

GATHERS, SCATTERS = ("all_gather_into_tensor", "all_gather"), ("reduce_scatter_tensor", "reduce_scatter")
IN_TURN = 2  # numbers for each token of the group; of its own a norm makes two to six each, and a quarter is its own
HOW = "dist.all_gather_into_tensor, dist.reduce_scatter_tensor and one dist.all_reduce, in functions of your own"


class Sizes(TorchDispatchMode):
    """Inside, counts how many tensors of floats of each size are made. Views don't count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[int] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports the compiler, which takes seconds

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        known = {_place(one) for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)}
        tensors = [one for one in tree_iter(result) if isinstance(one, torch.Tensor) and _place(one) not in known]
        self.found.update(one.numel() for one in tensors if one.is_floating_point())
        return result


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def run_block(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: both passes, step after step with the same weights."""
    (given,) = arguments
    group = own_group(given["groups"])
    weights = [given[name].clone().requires_grad_() for name in WEIGHTS]
    observe.forget()
    with calls_into(*READY_MADE) as names:
        steps = [_step(fn, given, weights, group, number) for number in range(len(given["steps"]))]
    return {"steps": steps, "borrowed": names[:1], "instead": HOW}


def _step(fn: Callable, inputs: dict, weights: list[torch.Tensor], group: Any, number: int) -> dict[str, Any]:
    """Both passes. From the second step on weights have other values, as an optimizer makes them.

    And between the passes another call is made, with other weights, as in a model of several layers.
    """
    x, grad = inputs["steps"][number]
    values = [inputs[name] * growth(number) for name in WEIGHTS]
    for weight, value in zip(weights, values, strict=True):
        weight.data.copy_(value)
        weight.grad = None
    variable = x.clone().requires_grad_()
    given = grad.transpose(0, 1).contiguous().transpose(0, 1)  # as a loss of another layout would hand it back
    observe.note("forward")
    with Sizes() as sizes:
        y = fn(variable, *weights, group)
    if number:
        observe.note("another call")
        fn(x.flip(0).requires_grad_(), *[(2 * value).requires_grad_() for value in values], group)
    observe.note("backward")
    fits = isinstance(y, torch.Tensor) and y.requires_grad and y.shape == grad.shape
    kind = f"a tensor of shape {list(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
    result = y.detach().clone() if isinstance(y, torch.Tensor) else None
    if fits:
        y.backward(given)
    observe.note("between")
    gradients = {name: v.grad for name, v in zip(("x", *WEIGHTS), (variable, *weights), strict=True)}
    kept = [torch.equal(weight.detach(), value) for weight, value in zip(weights, values, strict=True)]
    kept += [torch.equal(variable.detach(), x), torch.equal(given, grad)]
    return {"y": result, "kind": kind, "fits": fits, "kept": kept, "sizes": dict(sizes.found),
            **gradients}  # fmt: skip


def judge_block(attempt: Any) -> str | None:
    """Output, gradients, what was left alone, where the norm works, and the collectives."""
    groups = attempt.case.inputs[0][0]["groups"]
    looks = (output_fault, gradient_fault, _kept_fault, _region_fault, _calls_fault)
    for step in range(len(attempt.outputs[0]["steps"])):
        wholes = [whole_of(attempt, rank, step) for rank in range(attempt.world_size)]
        for look in looks:
            for rank, whole in enumerate(wholes):
                text = look(attempt, rank, step, whole)
                if text:
                    return f"{who(groups, rank)}: {text}"
    return None


def _kept_fault(attempt: Any, rank: int, step: int, whole: Whole) -> str | None:
    kept = attempt.outputs[rank]["steps"][step]["kept"]
    names = [name for name, one in zip((*WEIGHTS, "x", "the incoming gradient"), kept, strict=True) if not one]
    if names:
        return f"{names[0]} has changed: collectives write into what they are given. Give them a tensor of your own."
    return None


def _region_fault(attempt: Any, rank: int, step: int, whole: Whole) -> str | None:
    """The norm has worked on all tokens: there is one number for each of them, in one tensor or one after the other."""
    sizes, tokens = attempt.outputs[rank]["steps"][step]["sizes"], whole.x.shape[0] * whole.x.shape[1]
    statistics = sum(int(size) * count for size, count in sizes.items() if int(size) and tokens % int(size) == 0)
    in_turn = whole.ranks > 3 and statistics >= IN_TURN * tokens
    if whole.ranks == 1 or not (str(tokens) in sizes or in_turn):
        return None
    return (
        f"values and gradients are right, but the norm works on all {tokens} tokens of the group, and this rank's are "
        f"{tokens // whole.ranks}. So each rank computes all of it, and keeps it for the backward pass: that is what "
        "sequence parallelism cuts. First the norm, then the all-gather."
    )


def _calls_fault(attempt: Any, rank: int, step: int, whole: Whole) -> str | None:
    record, full = attempt.ranks[rank], whole.x.numel()
    if whole.ranks == 1:
        return None
    for way in ("forward", "backward"):
        made = called(record, way)[step]
        big = [one.numbers for one in made if one.name == "all_reduce" and one.numbers > WIDTH]
        if big:
            return (
                f"values and gradients are right, but the {way} pass all-reduces {max(big)} numbers: 2x the bytes. An "
                "all-reduce is a reduce-scatter and an all-gather, and here each place needs one of the two only."
            )
        text = _count_fault(made, way, full, full // whole.ranks)
        if text:
            return f"values and gradients are right, but {text}"
    if not same(_added_up(attempt, rank, step), whole.rights()["norm"]):
        return (
            "values and gradients are right, but what the group's ranks give to the norm's all-reduce does not add up "
            "to it: each gives the gradient of its own tokens."
        )
    return None


def _added_up(attempt: Any, rank: int, step: int) -> torch.Tensor | None:
    """The sum of what the ranks of this rank's group have given to the last all-reduce of the backward pass."""
    ranks = members(attempt.case.inputs[0][0]["groups"], rank)
    given = [
        [one.given for one in called(attempt.ranks[rank], "backward")[step] if one.name == "all_reduce"][-1:]
        for rank in ranks
    ]
    numbers = [one[0] for one in given if one and one[0] is not None and len(one[0]) == WIDTH]
    return torch.tensor(numbers, dtype=torch.float64).sum(0) if len(numbers) == len(ranks) else None


def _count_fault(made: list[Called], way: str, full: int, own: int) -> str | None:
    ranks = full // own
    gathers = [one.numbers * (ranks if one.picolibs else 1) for one in made if one.name in GATHERS]
    scatters = [one.numbers / (ranks if one.picolibs else 1) for one in made if one.name in SCATTERS]
    sums = [one.numbers for one in made if one.name == "all_reduce"]
    where = {"forward": ("in front of `up`", "behind `down`"), "backward": ("behind `down`", "in front of `up`")}[way]
    for sizes, name, place in ((gathers, "all-gather", where[0]), (scatters, "reduce-scatter", where[1])):
        if len(sizes) != 1:
            return f"the {way} pass makes {len(sizes)} {name}s; 1 is right, {place}."
    if gathers[0] != full:
        return f"the {way} pass gathers {gathers[0]} numbers, where {full} are right: all tokens, once."
    if scatters[0] != own:
        return f"the {way} pass's reduce-scatter leaves {scatters[0]:g} numbers, where {own} are right: its own tokens."
    if way == "forward" and sums:
        return f"the forward pass makes {len(sums)} all-reduce more; only the norm's gradient needs one, backward."
    if way == "backward" and sums != [WIDTH]:
        return (
            f"the backward pass makes {len(sums)} all-reduces of {sum(sums)} numbers; one of {WIDTH} is right, for the "
            "norm's gradient."
        )
    return None


def only_the_three(attempt: Any) -> str | None:
    """A rule: of all collectives only all-gathers, reduce-scatters and all-reduces, and no messages."""
    for rank, record in enumerate(attempt.ranks):
        fine = {*GATHERS, *SCATTERS, "all_reduce"}
        other = next((name for name, *_ in record.collectives if name in COLLECTIVES - fine), None)
        if other or record.sends:
            what = f"called {other}" if other else "sent messages of its own"
            return f"rank {rank} {what}. Use {HOW}."
        if any(name == "barrier" for name, *_ in record.collectives):
            return f"rank {rank} called barrier: whoever waits for a collective has no need of one."
    return None


def ignoring(attempt: Any) -> list[int]:
    """Ranks that are right where what reduces left other numbers: in the output, x's gradient, or the norm's sum."""
    found = []
    for rank, output in enumerate(attempt.outputs):
        got, added_up = output["steps"][0], _added_up(attempt, rank, 0)
        torchs = any(name in SCATTERS and not owned for name, _, owned in attempt.ranks[rank].collectives)
        whole = whole_of(attempt, rank, 0)
        right = torchs and (same(got["y"], whole.y()) or same(got["x"], whole.rights()["x"]))
        if right or (added_up is not None and same(got["norm"], added_up)):
            found.append(rank)
    return found


EXERCISE = Exercise(
    id="5.5",
    function="sequence_mlp",
    title="sequence parallel",
    lesson=LESSON,
    sitting="05B",
    difficulty=3,
    minutes=12,
    task="A block that keeps its own tokens in norm and residual connection, all-gathers into the first matrix and "
    "reduce-scatters out of the second; and all gradients.",
    cases=block_cases,
    call=run_block,
    judge=judge_block,
    ignores=ignoring,
    sizes=(4, 3, 5),
    allows=ALLOWED | {"parallel.sequence", "parallel.replicated"},
    raised=(
        (
            "invalid tensor type|(expected|same) (dtype|scalar type)",
            "What a collective fills has the dtype of x: x.new_empty(...), and not torch.empty(...), which is float32.",
        ),
        (
            "invalid output tensor list",
            "The output comes first, and is the size of the group times as long as the input: "
            "dist.all_gather_into_tensor(output, input, group=group).",
        ),
        (
            "incorrect number of gradients",
            "backward returns as many things as forward takes beside ctx: return gradient, None, with None for the "
            "group.",
        ),
        (
            "must be Tensor, not|no attribute 'dim'",
            "An autograd function is used by its apply: Gather.apply(x, group), and not Gather(x, group).",
        ),
        ("of the world group", "Ranks of other groups work on other tokens: hand group=group on to every collective."),
        (
            "output tensor size must be|input tensor.* must be the same size|output tensor must have|same type|invalid "
            "tensor size|do not match|sizes? mismatch|outputShape",
            "Sizes: all-gather makes [t * n, b, h] of [n, b, h], reduce-scatter the other way round, with t the size "
            "of the group, dist.get_world_size(group). Forward, gather in front of `up` and scatter behind `down`; "
            "backward the other way round.",
        ),
        ("must be contiguous", "Collectives want numbers that lie one behind the other: hand x.contiguous() to them."),
    ),
    rules=(borrowed, only_the_three),
    tags=("gradients",),
    verified="output and gradients equal one process; two all-gathers, two reduce-scatters and the norm's sum a step",
    hints=(
        "Three autograd functions: Gather (all-gather forward, reduce-scatter backward), Scatter (the other way "
        "round), and Summed for the norm's weight (nothing forward, an all-reduced copy backward, as f in 5.1).",
        "y = x.new_empty(t * len(x), *x.shape[1:]), dist.all_gather_into_tensor(y, x.contiguous(), group=group). "
        "Reduce-scatter: an output of len(x) // t tokens. ctx.group = group hands the group on to backward, which "
        "returns None for it: return gradient, None.",
        "normed = F.rms_norm(x, x.shape[-1:], Summed.apply(norm, group), 1e-6); hidden = F.gelu(F.linear("
        "Gather.apply(normed, group), up)); return x + Scatter.apply(F.linear(hidden, down), group).",
    ),
)
