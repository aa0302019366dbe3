"""What is wrong with gradients that should be averages over ranks, and are not: exercise 0.3's diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import digits
from picolib.course.words import apart, number_of, ranks_text, times

Gradients = dict[str, torch.Tensor]


def fault(attempt: Any, faults: Sequence[tuple[int, str]], reduced: Sequence[int]) -> str:
    """In words. faults: (rank, parameter) of each wrong gradient; reduced: elements of rank 0's all-reduces."""
    names = list(dict.fromkeys(name for _, name in faults))
    rank = faults[0][0]
    got, right, own = attempt.outputs[rank], attempt.case.expected[rank], attempt.inputs()[rank]
    wrong = {name: got[name] for name in names}
    everything = len(names) == len(right)
    text = _nothing_sent(attempt, reduced) if everything else None
    for explain in (_own, _largest, _someone_missing, _factor, _rounded):
        text = text or explain(attempt, rank, wrong, right, own)
    return text or _other(rank, wrong, right)


def _nothing_sent(attempt: Any, reduced: Sequence[int]) -> str | None:
    others = [name for name, *_ in attempt.ranks[0].collectives if name not in ("all_reduce", "barrier")]
    if others:
        return f"rank 0 called {others[0]}: every rank needs the mean, and all_reduce leaves the sum on every rank."
    if any(count > 1 for count in reduced) or any(record.sends for record in attempt.ranks):
        return None
    why = "Averaging the loss changes a number on the screen, not the gradients." if reduced else _NONE
    return f"0 gradients were sent: every rank still has its own. {why}"


_NONE = "Nothing was all-reduced."


def _factor(attempt: Any, rank: int, wrong: Gradients, right: Gradients, own: Gradients) -> str | None:
    """All wrong gradients are the right ones times one number."""
    ratios = torch.cat([(wrong[name] / right[name]).flatten() for name in wrong])
    factor, n = float(ratios[0]), attempt.world_size
    whole = any(abs(number - round(number)) < 1e-6 for number in (factor, 1 / factor, n / factor) if factor > 0)
    if not whole or not torch.allclose(ratios, ratios[:1], rtol=1e-9):
        return None
    word = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
    which = "every gradient is" if len(wrong) == len(right) else f"{_listed(wrong)}: the gradient is"
    return f"rank {rank}: {which} exactly {word}. {_guess(factor, n, len(wrong) < len(right))}"


def _guess(factor: float, n: int, some: bool) -> str:
    if abs(factor - n) < 1e-9:
        return f"Was it summed where it should be averaged?{' Is the division inside the loop?' if some else ''}"
    if abs(factor - 1 / n) < 1e-9:
        return "Was it divided twice?"
    divisor = n / factor
    also = " Or has backward run twice, and added its gradients up?" if abs(factor - 2) < 1e-9 else ""
    if abs(divisor - round(divisor)) < 1e-6:
        return f"It is the sum divided by {round(divisor)}, and there are {n} ranks.{also}"
    return f"What was it multiplied or divided by?{also}"


def _own(attempt: Any, rank: int, wrong: Gradients, right: Gradients, own: Gradients) -> str | None:
    """What this rank began with, as it was or divided."""
    n = attempt.world_size
    found = (
        how
        for factor, how in ((1.0, ""), (1 / n, f", divided by {n}"))
        if all(torch.allclose(wrong[name], own[name] * factor, rtol=1e-10) for name in wrong)
    )
    how = next(found, None)
    if how is None:
        return None
    if len(wrong) == len(right):
        return (
            f"rank {rank} still has its own gradients{how}: what was all-reduced is another tensor. An all-reduce "
            "changes the tensor that it is given, so give it p.grad itself, not a copy and not the parameter."
        )
    verb = "differs from the mean: it is" if len(wrong) == 1 else "differ from the mean: they are"
    return f"rank {rank}: {_listed(wrong)} {verb} still the rank's own{how}; the others are right."


def _largest(attempt: Any, rank: int, wrong: Gradients, right: Gradients, own: Gradients) -> str | None:
    for name, kind in (("amax", "largest"), ("amin", "smallest")):
        kept = {k: getattr(torch.stack([g[k] for g in attempt.inputs()]), name)(0) for k in wrong}
        if all(torch.allclose(wrong[k], kept[k]) for k in wrong):
            return f"rank {rank}: the gradients are the {kind} over the ranks. op=SUM, the default, adds them."
    return None


def _someone_missing(attempt: Any, rank: int, wrong: Gradients, right: Gradients, own: Gradients) -> str | None:
    """Read from the digits of the sum."""
    name, n = next(iter(wrong)), attempt.world_size
    number = digits.read(float(wrong[name].flatten()[0]) * n, n) if attempt.case.kind == "digits" else None
    missing = [r for r, count in enumerate(number.counts) if not count] if number else []
    if not missing or max(number.counts) > 1:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"rank {rank}: {ranks_text(missing)} {verb} missing from the mean of {_listed(wrong)}."


def _rounded(attempt: Any, rank: int, wrong: Gradients, right: Gradients, own: Gradients) -> str | None:
    if not all(torch.allclose(wrong[name], right[name], rtol=1e-2, atol=1e-2) for name in wrong):
        return None
    return _other(rank, wrong, right) + " They are close: was it rounded to a smaller dtype on the way?"


def _other(rank: int, wrong: Gradients, right: Gradients) -> str:
    name = next(iter(wrong))
    index = int((wrong[name] - right[name]).abs().nan_to_num(nan=float("inf")).argmax())
    texts = apart(float(wrong[name].flatten()[index]), float(right[name].flatten()[index]))
    which = "all gradients" if len(wrong) == len(right) else _listed(wrong)
    verb = "differs" if len(wrong) == 1 else "differ"
    rest = "" if len(wrong) == len(right) else "; the other gradients are right"
    values = f"`{name}` has {texts[0]} where {texts[1]} is right"
    return f"rank {rank}: {which} {verb} from the mean over the ranks{rest}. {values}."


def _listed(wrong: Gradients) -> str:
    first, *rest = wrong
    return f"`{first}`" + (f" and {number_of(len(rest), 'more parameter')}" if rest else "")
