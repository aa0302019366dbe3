"""What is wrong with an output: from None and shapes, over factors, to digits and places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import digits
from picolib.course.words import number_of, ranks_text, times

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
    for explain in (_nothing, _kind, _elsewhere, _factor, _own_input, _digits, _place):
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
    if isinstance(value, dict) and set(value) == {"type"}:
        return f"a {value['type']}"
    return f"a {type(value).__name__}"


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
    return f"{ranks_text(same)} still {_has(same)} the input as it was: nothing that arrived has been put there."


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)


def _has(ranks: Sequence[int]) -> str:
    return "holds" if len(ranks) == 1 else "hold"


def _digits(attempt: Any, wrong: Sequence[int]) -> str | None:
    """Who is missing, who came twice: read from the digits of the first number that is wrong."""
    if attempt.case.kind != "digits":
        return None
    pairs = list(_read_pairs(attempt, wrong))
    for explain in (_someone_elses, _too_often, _alone, _missing):
        for rank, _, got, right in pairs:
            text = explain(got, right)
            if text:
                where = place_name(attempt, right.place)
                text = f"`{got.text}` on rank {rank}{where}, where `{right.text}` is right: {text}"
                return text + _all_there(attempt, rank) + _too_few(attempt)
    return None


def _all_there(attempt: Any, rank: int) -> str:
    """Whether the output has the right numbers in another order."""
    got, expected = (t.detach().double().flatten() for t in (attempt.outputs[rank], attempt.case.expected[rank]))
    same = got.numel() > 1 and torch.equal(got.sort().values, expected.sort().values)
    return " All numbers are there, in the wrong order." if same else ""


def _too_few(attempt: Any) -> str:
    """What the number of messages adds to a sum that lacks somebody."""
    if attempt.exercise.traffic is None:
        return ""
    for rank, record in enumerate(attempt.ranks):
        needed, sent = attempt.exercise.traffic(attempt.case, rank).messages, len(record.sends)
        if needed is not None and sent < needed:
            short = "one step short" if needed - sent == 1 else "too few steps"
            return f" Rank {rank} sent {number_of(sent, 'message')}, and {needed} are needed: {short}."
    return ""


def _read_pairs(attempt: Any, wrong: Sequence[int]) -> Any:
    """(rank, index, what is there, what should be) of every number that can be read and is wrong."""
    n = attempt.world_size
    for rank in wrong:
        got, expected = attempt.outputs[rank], attempt.case.expected[rank]
        for index, value in enumerate(got.detach().double().flatten().tolist()):
            there, right = digits.read(value, n), digits.read(float(expected.flatten()[index]), n)
            if there and right and there != right:
                yield rank, index, there, right


def place_name(attempt: Any, place: int | None) -> str:
    """ " (chunk 2)" where the case has chunks."""
    length = attempt.case.inputs[0][0].numel() if attempt.case.pieces else 0
    if place is None or not length or length % attempt.case.pieces:
        return ""
    return f" ({attempt.exercise.piece} {place // (length // attempt.case.pieces)})"


def _someone_elses(got: digits.Number, right: digits.Number) -> str | None:
    if sum(got.counts) != 1 or sum(right.counts) != 1 or got.counts == right.counts:
        return None
    return f"that is rank {got.counts.index(1)}'s number, and rank {right.counts.index(1)}'s belongs there."


def _too_often(got: digits.Number, right: digits.Number) -> str | None:
    twice = [r for r, (g, e) in enumerate(zip(got.counts, right.counts, strict=True)) if g > e and g > 1]
    if not twice:
        return None
    counted = ", ".join(f"rank {r}'s number {number_of(got.counts[r], 'time')}" for r in twice)
    return f"it holds {counted}. Something was added that should have been copied, or added once too often."


def _alone(got: digits.Number, right: digits.Number) -> str | None:
    if sum(got.counts) != 1 or sum(right.counts) <= 2:
        return None
    rank = got.counts.index(1)
    return f"only rank {rank}'s number is there. What arrived was copied where it should be added, or never came here."


def _missing(got: digits.Number, right: digits.Number) -> str | None:
    missing = [r for r, (g, e) in enumerate(zip(got.counts, right.counts, strict=True)) if g < e]
    if not missing:
        return None
    return f"{ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing."


def _place(attempt: Any, wrong: Sequence[int]) -> str | None:
    """The sums are right, but stand where others should."""
    if attempt.case.kind != "digits":
        return None
    for rank, index, got, right in _read_pairs(attempt, wrong):
        if got.counts == right.counts and got.place is not None and got.place != right.place:
            there, here = place_name(attempt, got.place), place_name(attempt, right.place)
            there = there.strip(" ()") or f"element {got.place}"
            here = here.strip(" ()") or f"element {right.place}"
            return f"rank {rank} holds {there} where {here} belongs (number {index} of its result)."
    return None


def _first_number(attempt: Any, wrong: Sequence[int]) -> str:
    rank = wrong[0]
    got, expected = attempt.outputs[rank], attempt.case.expected[rank]
    if not isinstance(expected, torch.Tensor):
        return f"rank {rank} ended with {got!r}; {expected!r} is right."
    off = (got.double() - expected.double()).abs().flatten()
    index = int(torch.where(torch.isnan(off), torch.full_like(off, math.inf), off).argmax())
    values = float(got.flatten()[index]), float(expected.flatten()[index])
    kind = f" ({_dtype(expected)})" if attempt.case.kind != "digits" else ""
    texts = [f"{value:.6g}" for value in values]
    if texts[0] == texts[1]:
        texts = [f"{value:.17g}" for value in values]
    return f"rank {rank}, element {index}{kind}: {texts[0]}, where {texts[1]} is right."


def table(attempt: Any) -> str:
    """Your outputs beside the right ones, a line a rank; empty where nothing can be set side by side."""
    case, n = attempt.case, attempt.world_size
    if case.kind != "digits" or not attempt.ranks or not isinstance(case.expected[0], torch.Tensor):
        return ""
    rows = [("", "yours", "right")]
    for rank, (got, expected) in enumerate(zip(attempt.outputs, case.expected, strict=True)):
        mark = "" if agrees(got, expected, case) else "  <-"
        rows.append((f"rank {rank}", _mine(attempt, got, expected), digits.written(expected, n) + mark))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    head = f"On {n} ranks rank r contributes 10^r: digit r counts what came from rank r."
    return "\n".join([head, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows)])


def _mine(attempt: Any, got: Any, expected: torch.Tensor) -> str:
    """What a rank ended with; where only the place is wrong, the place too."""
    if not isinstance(got, torch.Tensor):
        return "nothing" if got is None else _described(got)
    text = digits.written(got, attempt.world_size)
    if text != digits.written(expected, attempt.world_size) or torch.equal(got, expected):
        return text
    numbers = digits.read_all(got, attempt.world_size)
    return text + (place_name(attempt, numbers[0].place) if numbers else "")
