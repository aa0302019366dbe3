"""What exercises about averaged gradients share: known gradients, and what is wrong with those that ranks end with.

The loss is the sum of w·x over all parameters w, so the gradient of w is x, whatever the values of w are. In the digits
case rank r's x is 10^r, and behind the point stands which parameter it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from picolib.course import digits, values
from picolib.course.exercise import COLLECTIVES, Case
from picolib.course.exercises.lesson03a_refuse import no_barrier
from picolib.course.words import apart, number_of, ranks_text, times

Gradients = dict[str, torch.Tensor]


def given(shapes: Mapping[str, tuple], rank: int, kind: str, random: torch.Generator, dtype: torch.dtype) -> Gradients:
    """The gradients of one rank: digits, or random numbers."""
    if kind == "digits":
        numbers = [10.0**rank + place * digits.PLACE for place in range(len(shapes))]
        return {
            name: torch.full(shape, x, dtype=dtype) for (name, shape), x in zip(shapes.items(), numbers, strict=True)
        }
    return {name: torch.randn(shape, generator=random).to(dtype) for name, shape in shapes.items()}


def stored_by_columns(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in other memory; of a matrix its columns are stored one after the other, so that it is not contiguous."""
    return tensor.t().contiguous().t().clone() if tensor.ndim == 2 else tensor.clone()


NO_VIEW = (
    r"view size is not compatible",
    "A gradient need not be contiguous: read it with flatten() or reshape(-1), and write with p.grad.copy_(…).",
)
NO_PARAMETER = (
    r"(?s)NoneType' object has no attribute 'copy_'",
    "Every parameter has a .grad by then. What has none is no parameter: have a part of the flat tensor and its "
    "parameter changed places, as in `for p, part in zip(parts, bucket)`?",
)
COPIED = (
    " Their gradients are not contiguous: flatten() and reshape(-1) make copies of them, and what is written into a "
    "copy is lost. Write into p.grad itself, p.grad.copy_(part.view_as(p))."
)


def lost_in_a_copy(got: Sequence[Gradients], own: Sequence[Gradients]) -> bool:
    """Whether on every rank the matrices, which `stored_by_columns` has stored so, have kept their gradients."""
    same = {name: all(torch.equal(g[name], o[name]) for g, o in zip(got, own, strict=True)) for name in own[0]}
    return any(same.values()) and all(kept == (own[0][name].ndim == 2) for name, kept in same.items())


def only_all_reduce(attempt: Any) -> str | None:
    """A rule: no other collective, and nothing ready-made. (`allows` must hold all, so that this rule speaks.)"""
    for rank, record in enumerate(attempt.ranks):
        for name, *_ in record.collectives:
            if name.startswith("parallel."):
                return f"rank {rank} called picolib's own {name}. Here you write it yourself, with all_reduce."
            if name in COLLECTIVES - {"all_reduce"}:
                return f"rank {rank} called {name}; here all_reduce is enough."
    return no_barrier(attempt)


def in_own_dtype(attempt: Any) -> str | None:
    """A rule: gradients travel in a dtype that holds what theirs does."""
    own = _floating(attempt.case.inputs[0])
    for rank, record in enumerate(attempt.ranks):
        for entry in record.reductions:
            dtype = getattr(torch, entry[6], own)
            if dtype.is_floating_point and torch.finfo(dtype).eps > torch.finfo(own).eps:
                return (
                    f"rank {rank} all-reduced gradients in {entry[6]}, and they are {str(own).removeprefix('torch.')}: "
                    "what is rounded on the way stays rounded. Keep the dtype of p.grad."
                )
    return None


def _floating(value: Any) -> torch.dtype:
    """The dtype of the first tensor of floating-point numbers in it; float32 where there is none."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.dtype
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    found = [dtype for one in inside if (dtype := _floating(one)) != torch.float32]
    return found[0] if found else torch.float32


def not_its_own(rank: int, given: Sequence[list], own: Gradients) -> str | None:
    """What a rank gives to its all-reduces are its own gradients, each number once, all by the same factor or none.

    given: the all-reduces' entries (see `notebook.Notebook`) of one backward pass.
    """
    if any(entry[5] is None for entry in given):
        return None
    numbers = torch.tensor(sorted(x for entry in given for x in entry[5]), dtype=torch.float64)
    right = torch.cat([tensor.double().flatten() for tensor in own.values()]).sort().values
    if numbers.shape == right.shape and right.any():
        factor = numbers.abs().sum() / right.abs().sum()
        rounded = max(torch.finfo(tensor.dtype).eps for tensor in own.values())  # where they are divided before
        if torch.allclose(numbers, right * factor, rtol=max(1e-5, 4 * rounded), atol=1e-9):
            return None
    return (
        f"The gradients are right, but what rank {rank} gives to its all-reduces is not its own gradients: what they "
        "add up has come together by another way."
    )


def some_right(case: Case, rank: int, got: Gradients) -> bool:
    """Whether a rank holds what is expected under at least one name."""
    return any(values.agrees(got[name], right, case) for name, right in case.expected[rank].items())


def mean(ranks: Sequence[Gradients]) -> Gradients:
    """What data parallelism leaves on every rank, computed in float64 and rounded once."""
    return {name: torch.stack([g[name].double() for g in ranks]).mean(0).to(ranks[0][name].dtype) for name in ranks[0]}


def fault(case: Case, got: Sequence[Gradients], right: Gradients, own: Sequence[Gradients]) -> str | None:
    """What is wrong with the gradients that the ranks ended with; `own` are those that they began with."""
    for rank, mine in enumerate(got):
        for name, tensor in right.items():
            if not isinstance(mine[name], torch.Tensor) or mine[name].shape != tensor.shape:
                if mine[name] is None:
                    return f"rank {rank}: `{name}` has no gradient any more: its p.grad is None."
                what = f"has shape {list(mine[name].shape)}" if hasattr(mine[name], "shape") else "is no tensor"
                return f"rank {rank}: the gradient of `{name}` {what}; {list(tensor.shape)} is right."
    wrong = [
        (r, name) for r, mine in enumerate(got) for name in right if not values.agrees(mine[name], right[name], case)
    ]
    if not wrong:
        return None
    n, rank = len(got), wrong[0][0]
    names = list(dict.fromkeys(name for _, name in wrong))
    untouched = [name for name in names if all(torch.equal(got[r][name], own[r][name]) for r, k in wrong if k == name)]
    if untouched:
        return _untouched(untouched, len(right))
    return (
        _too_big(got, right, n)
        or _in_different_orders(case, wrong, got)
        or _elsewhere(case, rank, names[0], got[rank], right)
        or _other(rank, names, got[rank], right)
    )


def _untouched(names: Sequence[str], of: int) -> str:
    if len(names) == of:
        return (
            "every parameter still has its own gradient. What an all-reduce leaves in another tensor is not yet in "
            "p.grad: copy it back."
        )
    more = f" and {number_of(len(names) - 1, 'more parameter')}" if len(names) > 1 else ""
    return f"`{names[0]}`{more} still has its own gradient: it was in no all-reduce, or nothing was copied back."


def _too_big(got: Sequence[Gradients], right: Gradients, n: int) -> str | None:
    """All gradients, on all ranks, by the same factor."""
    pairs = [(mine[name].double(), right[name].double()) for mine in got for name in right]
    for factor in {float(n), 1.0 / n, *(k for m in (2, 3, 4) for k in (m, 1.0 / m))} - {1.0}:
        if all(torch.allclose(one, other * factor, rtol=1e-5) for one, other in pairs):
            guess = "Was it summed where it should be averaged?" if factor > 1 else "Was it divided twice?"
            word = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
            return f"every gradient is exactly {word}. {guess}"
    return None


def _in_different_orders(case: Case, wrong: Sequence[tuple[int, str]], got: Sequence[Gradients]) -> str | None:
    """Every rank is in it once, but with different parameters: the places behind the point differ."""
    if case.kind != "digits":
        return None
    for rank, name in wrong:
        numbers = [
            digits.read(x * case.world_size, case.world_size) for x in got[rank][name].double().flatten().tolist()
        ]
        if any(number and set(number.counts) == {1} and number.place is None for number in numbers):
            return (
                f"rank {rank}: `{name}` adds up gradients of different parameters. The ranks put the flat tensor "
                "together in different orders (a set has none): use the same order on every rank."
            )
    return None


def _elsewhere(case: Case, rank: int, name: str, got: Gradients, right: Gradients) -> str | None:
    """Another parameter's gradient, read from behind the point."""
    number = (
        digits.read(float(got[name].flatten()[0]) * case.world_size, case.world_size) if case.kind == "digits" else None
    )
    names = list(right)
    if number is None:
        return None
    if (
        set(number.counts) == {1}
        and number.place is not None
        and number.place < len(names)
        and names[number.place] != name
    ):
        return (
            f"rank {rank}: `{name}` holds the gradient of `{names[number.place]}`. Cut the flat tensor up "
            "in the order in which it was put together."
        )
    missing = [r for r, count in enumerate(number.counts) if count == 0]
    if not missing:
        return None
    who = f"{ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return f"rank {rank}: {who} in the gradient of `{name}`. Was it read before its all-reduce was over?"


def _other(rank: int, names: Sequence[str], got: Gradients, right: Gradients) -> str:
    one, other = got[names[0]].double().flatten(), right[names[0]].double().flatten()
    index = int((one - other).abs().nan_to_num(nan=float("inf")).argmax())
    wrong, exact = apart(float(one[index]), float(other[index]))
    rest = "" if len(names) == len(right) else "; others are right"
    return f"rank {rank}: `{names[0]}` differs from the mean over the ranks: {wrong}, where {exact} is right{rest}."
