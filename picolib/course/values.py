"""What is wrong with an output: from None and shapes, over factors, to digits and places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import digits, sums
from picolib.course.words import apart, ranks_text, times

ROUNDING = 4.0  # how many times the error bound of a sum may be exceeded: orders of adding differ


def tolerance(case: Any, expected: torch.Tensor) -> float:
    """How far a right output may be from the exact one: it grows with ranks, with the numbers, and with the dtype."""
    if not expected.is_floating_point():
        return 0.0
    inputs = [t for args in case.inputs for t in args if isinstance(t, torch.Tensor) and t.numel()]
    largest = max((float(t.detach().double().abs().max()) for t in inputs), default=1.0)
    scale = max(largest * case.world_size, float(expected.double().abs().max()) if expected.numel() else 0.0)
    return ROUNDING * case.world_size * torch.finfo(expected.dtype).eps * scale


def agrees(got: Any, expected: Any, case: Any) -> bool:
    """Whether an output is right, up to rounding for tensors of floats."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
            return False
        if case.exact:
            return torch.equal(got, expected)
        error = (got.double() - expected.double()).abs().max().item() if got.numel() else 0.0
        return error <= tolerance(case, expected)  # a NaN is never <=
    if isinstance(expected, float):
        return isinstance(got, (int, float)) and math.isclose(got, expected, rel_tol=1e-9)
    return type(got) is type(expected) and got == expected


def wrong_ranks(attempt: Any) -> list[int]:
    """The ranks whose output is not what it should be."""
    pairs = zip(attempt.outputs, attempt.case.expected, strict=True)
    return [rank for rank, (got, expected) in enumerate(pairs) if not agrees(got, expected, attempt.case)]


def diagnose(attempt: Any) -> str | None:
    """The fault of the outputs in words, the most telling one first; None when all are right."""
    wrong = wrong_ranks(attempt)
    if not wrong:
        return None
    for explain in (
        _nothing,
        _kind,
        _elsewhere,
        _rebound,
        _overwritten,
        _factor,
        _own_input,
        sums.who_is_missing,
        sums.wrong_place,
        sums.mixed_places,
    ):
        text = explain(attempt, wrong)
        if text:
            return text
    return _first_number(attempt, wrong)


def _nothing(attempt: Any, wrong: Sequence[int]) -> str | None:
    empty = [rank for rank in wrong if attempt.outputs[rank] is None]
    return f"{ranks_text(empty)} returned None. Every rank must return its result." if empty else None


def _kind(attempt: Any, wrong: Sequence[int]) -> str | None:
    for rank in wrong:
        got, expected = attempt.outputs[rank], attempt.case.expected[rank]
        if not isinstance(expected, torch.Tensor):
            continue
        if not isinstance(got, torch.Tensor):
            return f"rank {rank} returned {_described(got)}; a tensor is asked for."
        if got.shape != expected.shape:
            return f"rank {rank} ended with shape {list(got.shape)}; {list(expected.shape)} is right."
        if got.dtype != expected.dtype:
            return f"rank {rank} ended with {_dtype(got)}; the input is {_dtype(expected)}, and so must the output be."
    return None


def _described(value: Any) -> str:
    odd = isinstance(value, dict) and set(value) == {"type"}
    name = value["type"] if odd else type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def shown(value: Any) -> str:
    """A value as a learner would write it; of an object that could not travel, its type."""
    return _described(value) if isinstance(value, dict) and set(value) == {"type"} else repr(value)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _elsewhere(attempt: Any, wrong: Sequence[int]) -> str | None:
    """The right result was returned as a new tensor, where the argument should have been changed."""
    if attempt.exercise.output != "argument":
        return None
    case = attempt.case
    returned = [agrees(record.returned, case.expected[r], case) for r, record in enumerate(attempt.ranks)]
    if not all(returned[rank] for rank in wrong):
        return None
    return (
        "The result is right, but not in place: you return a new tensor, and the argument itself does not hold it. "
        "Write into the argument, for example with x.copy_(result)."
    )


def _rebound(attempt: Any, wrong: Sequence[int]) -> str | None:
    """`x = ...` where the tensor itself was to be changed."""
    name = attempt.ranks[wrong[0]].rebound if attempt.exercise.output == "argument" else ""
    if not name or sums.too_few(attempt):
        return None
    return (
        f"{name} was rebound: `{name} = ...` gives the name to another tensor, and the caller's tensor is unchanged by "
        f"what follows ({ranks_text(wrong)}). Write into it: {name}[:] = ..., {name}.copy_(...) or {name} += ..."
    )


def _overwritten(attempt: Any, wrong: Sequence[int]) -> str | None:
    """What should have been returned was received into the argument, which has to stay as it is."""
    name, case = attempt.exercise.keeps, attempt.case
    there = [rank for rank in wrong if name and agrees(attempt.ranks[rank].kept, case.expected[rank], case)]
    if not there:
        return None
    return (
        f"on {ranks_text(there)} recv has overwritten {name}: that holds now what you should return, and what you "
        f"return was never filled. Receive into a tensor of its own, and return that."
    )


def _factor(attempt: Any, wrong: Sequence[int]) -> str | None:
    """Every number of the output is the right one times the same factor."""
    factors = {_ratio(attempt.outputs[r], attempt.case.expected[r]) for r in wrong}
    if len(factors) != 1 or (factor := factors.pop()) is None:
        return None
    what = "gradient" if "gradients" in attempt.exercise.tags else "number"
    who = "every rank" if len(wrong) == attempt.world_size else ranks_text(wrong)
    if factor > 1:
        guess = "Was it summed where it should be averaged, or added twice?"
        return f"{who}: every {what} is exactly {times(factor)} too big. {guess}"
    guess = "Was it divided where it should be summed, or divided twice?"
    return f"{who}: every {what} is exactly {times(1 / factor)} too small. {guess}"


def _ratio(got: Any, expected: Any) -> float | None:
    if not isinstance(expected, torch.Tensor) or not expected.numel() or not expected.double().all():
        return None
    ratios = got.double() / expected.double()
    first = float(ratios.flatten()[0])
    even = bool(((ratios - first).abs() <= 1e-6 * abs(first)).all())
    usual = math.isfinite(first) and first > 0 and any(abs(f - round(f)) < 1e-6 for f in (first, 1 / first))
    return round(first, 6) if even and usual and abs(first - 1) > 1e-6 else None


def _own_input(attempt: Any, wrong: Sequence[int]) -> str | None:
    inputs = attempt.inputs() if attempt.case.inputs[0] else []
    same = [r for r in wrong if inputs and _equal(attempt.outputs[r], inputs[r])]
    if len(same) != len(wrong):
        return None
    if attempt.exercise.output == "returned" and all(attempt.ranks[r].shares for r in same):
        return f"on {ranks_text(same)} you return {attempt.exercise.keeps} itself, as it was: return what has arrived."
    return f"{ranks_text(same)} still {_has(same)} the input as it was: nothing that arrived has been put there."


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)


def _has(ranks: Sequence[int]) -> str:
    return "holds" if len(ranks) == 1 else "hold"


def _first_number(attempt: Any, wrong: Sequence[int]) -> str:
    rank = wrong[0]
    got, expected = attempt.outputs[rank], attempt.case.expected[rank]
    if not isinstance(expected, torch.Tensor):
        return f"rank {rank} ended with {got!r}; {expected!r} is right."
    off = (got.double() - expected.double()).abs().flatten()
    index = int(torch.where(torch.isnan(off), torch.full_like(off, math.inf), off).argmax())
    values = float(got.flatten()[index]), float(expected.flatten()[index])
    kind = f" ({_dtype(expected)})" if attempt.case.kind != "digits" else ""
    texts = apart(*values)
    lacking = sums.too_few_bytes(attempt)
    return f"rank {rank}, element {index}{kind}: {texts[0]}, where {texts[1]} is right.{lacking}"


def table(attempt: Any) -> str:
    """Your outputs beside the right ones, a line a rank; empty where nothing can be set side by side."""
    case, n = attempt.case, attempt.world_size
    if case.kind != "digits" or not attempt.ranks or not isinstance(case.expected[0], torch.Tensor):
        return ""
    rows = [("", "yours", "right")]
    for rank, (got, expected) in enumerate(zip(attempt.outputs, case.expected, strict=True)):
        mark = "" if agrees(got, expected, case) else "  <-"
        mine = _mine(attempt, got, expected)
        order = (
            sums.order(attempt, digits.read_all(expected, n) or [])
            if f"({attempt.exercise.piece}s " in mine and "mixed" not in mine
            else ""
        )
        rows.append((f"rank {rank}", mine, digits.written(expected, n) + order + mark))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    head = f"On {n} ranks rank r contributes 10^r: digit r counts what came from rank r."
    return "\n".join([head, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows)])


def _mine(attempt: Any, got: Any, expected: torch.Tensor) -> str:
    """What a rank ended with; where only the place is wrong, the place too."""
    if not isinstance(got, torch.Tensor):
        return "nothing" if got is None else _described(got)
    text = digits.written(got, attempt.world_size)
    if got.shape != expected.shape:
        return f"{text} (shape {list(got.shape)})"
    if got.dtype != expected.dtype:
        return f"{text} ({_dtype(got)})"
    if text != digits.written(expected, attempt.world_size) or torch.equal(got, expected):
        return text
    numbers = digits.read_all(got, attempt.world_size)
    if not numbers:
        return text
    if any(number.place is None for number in numbers):
        return f"{text} ({attempt.exercise.piece}s mixed)" if attempt.case.pieces else f"{text} (mixed)"
    return text + (sums.order(attempt, numbers) or sums.place_name(attempt, numbers[0].place))
