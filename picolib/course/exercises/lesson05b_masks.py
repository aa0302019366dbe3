"""Exercise 5.6: judging masks of dropout, call by call and rank by rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from picolib.course.exercises.lesson05b_chance import MANY_CALLS, alike, repetition, unlikely
from picolib.course.exercises.lesson05b_common import who


def judge_masks(attempt: Any) -> str | None:
    """Values, who agrees with whom, how calls differ, how many are dropped, and from what it all follows."""
    groups = attempt.case.inputs[0][0]["groups"]
    for rank in range(attempt.world_size):
        text = _value_fault(attempt, rank)
        if text:
            return f"{who(groups, rank)}: {text}"
    # A mask that comes twice makes rates vary more than chance does, so it is looked for first.
    for look in (_call_faults, _few, _repeated, _repetitive, _alike, _rates, _counts, _from_the_stream):
        for ranks in groups:
            text = look(attempt, ranks)
            if text:
                return text
    return None


def _calls(attempt: Any, rank: int, run: str = "first") -> list[dict]:
    return attempt.outputs[rank]["runs"][run]


def _masks(attempt: Any, rank: int, run: str = "first") -> list[torch.Tensor]:
    return [call["y"].flatten() != 0 for call in _calls(attempt, rank, run)]


def _cut(attempt: Any) -> list[bool]:
    return attempt.case.inputs[0][0]["cut"]


def _name(attempt: Any, call: int) -> str:
    return f"call {call + 1} ({'cut' if _cut(attempt)[call] else 'not cut'})"


def _value_fault(attempt: Any, rank: int) -> str | None:
    """Each number is dropped or kept and scaled, and so are gradients."""
    given, output = attempt.case.inputs[rank][0], attempt.outputs[rank]
    for run in output["runs"]:
        xs = given["x"][given["back"] :] if run == "back" else given["x"]
        for call, x in zip(_calls(attempt, rank, run), xs, strict=True):
            text = _call_fault(x, call, given["grad"], given["p"])
            if text:
                return text
    x, grad = given["x"][0].flatten()[:60], given["grad"].flatten()[:60]
    return next(filter(None, (_call_fault(x, call, grad, 0.0) for call in output["none"])), None)


def _call_fault(x: torch.Tensor, call: dict, grad: torch.Tensor, p: float) -> str | None:
    if "got" in call:
        return f"your function must return a tensor like x, of shape {list(x.shape)}, {x.dtype}, not {call['got']}."
    if not call["unchanged"]:
        return "x has changed: the function is not to work in place, and the caller still needs its x."
    return _scale_fault(x, call["y"], p) or _gradient_fault(call["y"] != 0, call["gradient"], grad, p)


def _scale_fault(x: torch.Tensor, y: torch.Tensor, p: float) -> str | None:
    kept = y != 0
    if y.isnan().any():
        return f"with p = {p} there is NaN in it: what is kept must be x / (1 - p), and what is dropped 0."
    if p == 0 and int((~kept).sum()) > 1:  # one number of 2^24 may be 0 exactly
        return "with p = 0 nothing is to be dropped."
    if p and torch.allclose(y, x):
        return f"nothing is dropped, with p = {p}."
    if torch.allclose(y[kept], x[kept] / (1 - p), rtol=1e-4):
        return None
    if torch.allclose(y[kept], x[kept], rtol=1e-4):
        return f"what is kept must be divided by 1 - p = {1 - p:g}, so that the mean stays: as F.dropout does."
    if p and torch.allclose(y[kept], x[kept] / p, rtol=1e-4):
        return f"p = {p} is the share that is dropped, as in F.dropout, and not the one that is kept."
    return f"with p = {p}, what is kept must be x / (1 - p), and what is dropped 0: as F.dropout does."


def _gradient_fault(kept: torch.Tensor, gradient: torch.Tensor | None, grad: torch.Tensor, p: float) -> str | None:
    if gradient is None:
        return "values are right, but x gets no gradient: use x itself, without detach, data or no_grad."
    if torch.allclose(gradient, grad * kept / (1 - p), rtol=1e-4):
        return None
    head = "values are right, but the gradient of x is not the incoming one times 1 / (1 - p) where x is kept, and 0"
    if torch.allclose(gradient, kept.to(grad) / (1 - p), rtol=1e-4):
        return f"{head} where it is dropped: the incoming gradient is ignored, and the mask alone comes back."
    return f"{head} where it is dropped."


def _rates(attempt: Any, ranks: Sequence[int]) -> str | None:
    p = attempt.case.inputs[0][0]["p"]
    for rank in ranks:
        masks = torch.stack(_masks(attempt, rank))
        dropped, count = int((~masks).sum()), masks.numel()
        if unlikely(dropped, count, p):
            return (
                f"rank {rank}: with p = {p} {dropped} of {count} numbers are dropped: about {p * count:.0f} are right."
            )
    return None


def _counts(attempt: Any, ranks: Sequence[int]) -> str | None:
    """As many numbers are dropped at each call: of chance, that is nearly impossible."""
    for rank, cut in itertools.product(ranks, (True, False)):
        masks = _masks(attempt, rank) + _masks(attempt, rank, "other")
        counts = [int((~mask).sum()) for mask, one in zip(masks, 2 * _cut(attempt), strict=True) if one is cut]
        if len(set(counts)) == 1:
            return (
                f"where x is {'cut' if cut else 'not cut'}, rank {rank} drops exactly {counts[0]} of {len(masks[0])} "
                "numbers at each call: the count is fixed, but each number has a chance of its own, whatever the "
                "others do, so the count varies, as F.dropout's does."
            )
    return None


def _few(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Many calls have few masks. One may be there twice by chance: F.dropout's own seeds may have 31 bits."""
    for rank in ranks:
        different = attempt.outputs[rank]["different"]
        if different is not None and 1 < different <= MANY_CALLS - 2:
            return (
                f"rank {rank}: {MANY_CALLS} calls (cut) have {different} different masks: the same come again. There "
                "are too few seeds: draw one of 2^31 numbers at least, as torch.randint(1 << 60, ()) does."
            )
    return None


def _call_faults(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Within each call: masks agree or differ, and the common stream is alike afterwards."""
    masks = {rank: _masks(attempt, rank) for rank in ranks}
    for call, cut in enumerate(_cut(attempt)):
        for one, other in itertools.combinations(ranks, 2):
            same = torch.equal(masks[one][call], masks[other][call])
            if same is cut:
                head = f"{_name(attempt, call)}: ranks {one} and {other} of one group "
                return head + (_TWINS if cut else _different(masks[one][call], masks[other][call], one, other))
        following = [_calls(attempt, rank)[call]["next"] for rank in ranks]
        odd = next((place for place, one in enumerate(following) if one != following[0]), None)
        if odd is not None:
            return (
                f"after {_name(attempt, call)} the ranks' common stream is common no more: its next number is "
                f"{following[0][0]:.4f} on rank {ranks[0]} and {following[odd][0]:.4f} on rank {ranks[odd]}, so they "
                "will drop different numbers where nothing is cut. What a rank draws for itself it draws inside "
                "torch.random.fork_rng(), which puts the stream back."
            )
    return None


_TWINS = (
    "drop the same numbers: twins. Each holds a part of its own there, and the parts' masks have to be independent: "
    "every rank needs a mask of its own."
)


def _different(one: torch.Tensor, other: torch.Tensor, rank: int, other_rank: int) -> str:
    place = int((one != other).int().argmax())
    kept = rank if one[place] else other_rank
    return (
        f"drop different numbers: number {place} is kept on rank {kept} alone. Both hold the same activations there, "
        "and from now on they don't: their mask has to be drawn from the common stream."
    )


def _independent(attempt: Any, ranks: Sequence[int]) -> list[tuple[int, int]]:
    """(call, rank) of each mask that has to be independent of all others: where x is not cut, one for all ranks."""
    return [(call, rank) for call, cut in enumerate(_cut(attempt)) for rank in (ranks if cut else ranks[:1])]


def _repeated(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Masks of earlier calls come once more; looked for between calls of one kind first."""
    masks, cut = {rank: _masks(attempt, rank) for rank in ranks}, _cut(attempt)
    pairs = itertools.combinations(_independent(attempt, ranks), 2)
    again = [(a, b) for a, b in pairs if a[0] != b[0] and torch.equal(masks[a[1]][a[0]], masks[b[1]][b[0]])]
    if len(again) < 2:  # a single one may be chance: F.dropout's own seeds have 31 bits on some machines
        return None
    (call, rank), (later, other) = min(again, key=lambda pair: _KINDS.index((cut[pair[0][0]], cut[pair[1][0]])))
    whose = f"on rank {rank}" if rank == other else f"of rank {rank}, on rank {other}"
    return (
        f"{_name(attempt, later)} has the mask of {_name(attempt, call)} again, {whose}: "
        f"{_WHY[cut[call], cut[later]]} The same numbers would be dropped in every layer and step. Each call needs "
        "another mask."
    )


_WHY = {
    (True, True): "is it seeded with the same number at each call, or is the common stream put back too far?",
    (False, False): "is the common stream put back too far?",
    (True, False): "is it drawn from the common stream, which is then put back?",
    (False, True): "is it drawn from the common stream, which is then put back?",
}
_KINDS = list(_WHY)


def _repetitive(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Within one mask the same comes again: of one row, for instance, or of neighbours."""
    for call, rank in _independent(attempt, ranks):
        places = repetition(_masks(attempt, rank)[call])
        if places:
            what = (
                "neighbours are dropped together, or one instead of the other"
                if places == 1
                else (f"the mask repeats itself after {places} numbers, a repetition within it")
            )
            return (
                f"{_name(attempt, call)} on rank {rank}: {what}. Each number has a chance of its own: "
                "draw a mask of the whole shape of x."
            )
    return None


def _alike(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Masks that tell something about others, of the same call or another one."""
    whose = _independent(attempt, ranks)
    masks = torch.stack([_masks(attempt, rank)[call] for call, rank in whose])
    found = alike(masks)
    if not found:
        return None
    pair = min(found, key=lambda pair: whose[pair.one][0] != whose[pair.other][0])  # of one call first
    (call, rank), (later, other) = whose[pair.one], whose[pair.other]
    where = f"{_name(attempt, call)} on rank {rank} and {_name(attempt, later)} on rank {other}: "
    if pair.places:
        return (
            f"{where}the two masks are {'nearly ' if abs(pair.correlation) < 0.9 else ''}the same but for "
            f"{pair.places} place{'s' if pair.places > 1 else ''} by which one is moved: twins, one behind the other."
        )
    agree, p = int((masks[pair.one] == masks[pair.other]).sum()), attempt.case.inputs[0][0]["p"]
    return (
        f"{where}the same is done to {agree} of {masks.shape[1]} numbers, and independent masks do so to about "
        f"{(p * p + (1 - p) * (1 - p)) * masks.shape[1]:.0f}: a part of their masks is common. Each has to be drawn "
        "anew, all of it."
    )


def _from_the_stream(attempt: Any, ranks: Sequence[int]) -> str | None:
    """The same seed or state, the same masks; another seed, others."""
    back = attempt.case.inputs[0][0]["back"]
    for rank in ranks:
        first = _masks(attempt, rank)
        for run, start, what in (("again", 0, _AGAIN), ("back", back, _PUT_BACK.format(back + 1))):
            for call, mask in enumerate(_masks(attempt, rank, run), start=start):
                if not torch.equal(mask, first[call]):
                    return f"rank {rank}: {what}, and {_name(attempt, call)} drops other numbers. {_ALL}"
        for call, mask in enumerate(_masks(attempt, rank, "other")):
            if torch.equal(mask, first[call]):
                return f"rank {rank}: another torch.manual_seed, and {_name(attempt, call)} has the same mask. {_ALL}"
    return None


_AGAIN = "the same torch.manual_seed once more"
_PUT_BACK = "the common stream put back to where it was before call {} (as checkpoint does, to compute a layer again)"
_ALL = (
    "Everything has to follow from the common stream: no count of calls, no generator that goes on by itself, no fixed "
    "seed. Draw from it what all ranks should know."
)
