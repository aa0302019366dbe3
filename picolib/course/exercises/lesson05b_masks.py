"""Exercise 5.6: judging masks of dropout, call by call and rank by rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from picolib.course.exercises.lesson05b_common import who

SIGMAS = 6.0
NEAR = 8  # places: neighbours that are dropped together are looked for elsewhere
LIKE = 10.0  # of likeness: 15.5 for one mask of 240 numbers and itself, 1 or 2 for two that are independent


def judge_masks(attempt: Any) -> str | None:
    """Values, who agrees with whom, how calls differ, how many are dropped, and from what it all follows."""
    groups = attempt.case.inputs[0][0]["groups"]
    for rank in range(attempt.world_size):
        text = _value_fault(attempt, rank)
        if text:
            return f"{who(groups, rank)}: {text}"
    # A mask that comes twice makes rates vary more than chance does, so it is looked for first.
    for look in (_call_faults, _repeated, _repeating, _moved, _rates, _alike, _from_the_stream):
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
    given = attempt.case.inputs[rank][0]
    for run in attempt.outputs[rank]["runs"]:
        xs = given["x"][given["back"] :] if run == "back" else given["x"]
        for call, x in zip(_calls(attempt, rank, run), xs, strict=True):
            if call["y"] is None:
                return f"your function must return a tensor like x, {given['shape']}, {x.dtype}, not {call['kind']}."
            if not call["kept"]:
                return "x has changed: what is asked for is a new tensor, and not in place."
            text = _scale_fault(x, call["y"], given["grad"], call["gradient"], given["p"])
            if text:
                return text
    return None


def _rates(attempt: Any, ranks: Sequence[int]) -> str | None:
    for rank in ranks:
        text = _rate_fault(torch.stack(_masks(attempt, rank)), attempt.case.inputs[0][0]["p"])
        if text:
            return f"rank {rank}: {text}"
    return None


def _rate_fault(masks: torch.Tensor, p: float) -> str | None:
    dropped, count, neighbours = int((~masks).sum()), masks.numel(), masks[:, 1:] == masks[:, :-1]
    rate = dropped / count
    # Pairs of neighbours overlap, so their count varies more than that of independent ones: 1.4 times at most.
    if _unlikely(int(neighbours.sum()), neighbours.numel(), rate * rate + (1 - rate) * (1 - rate), 1.5 * SIGMAS):
        return "neighbours are dropped together, or one instead of the other: each number has a chance of its own."
    if _unlikely(dropped, count, p):
        return f"with p = {p} {dropped} of {count} numbers are dropped: about {p * count:.0f} are right."
    return None


def _unlikely(found: int, count: int, chance: float, sigmas: float = SIGMAS) -> bool:
    return abs(found - chance * count) > sigmas * (count * chance * (1 - chance)) ** 0.5


def _scale_fault(
    x: torch.Tensor, y: torch.Tensor, grad: torch.Tensor, gradient: torch.Tensor | None, p: float
) -> str | None:
    kept = y != 0
    if torch.allclose(y, x):
        return f"nothing is dropped, with p = {p}."
    if not torch.allclose(y[kept], x[kept] / (1 - p), rtol=1e-4):
        if torch.allclose(y[kept], x[kept], rtol=1e-4):
            return f"what is kept must be divided by 1 - p = {1 - p:g}, so that the mean stays: as F.dropout does."
        if torch.allclose(y[kept], x[kept] / p, rtol=1e-4):
            return f"p = {p} is the share that is dropped, as in F.dropout, and not the one that is kept."
        return "what is kept must be x / (1 - p), and what is dropped 0: as F.dropout does."
    if gradient is None:
        return "values are right, but x gets no gradient: use x itself, without detach, data or no_grad."
    if not torch.allclose(gradient, grad * kept / (1 - p), rtol=1e-4):
        return (
            "values are right, but the gradient of x is not the incoming one times 1 / (1 - p) where it is kept, and 0 "
            "where it is dropped."
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


def _pairs(attempt: Any, ranks: Sequence[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """All pairs of (rank, call) whose masks have to be independent."""
    calls = range(len(_cut(attempt)))
    for one, other in itertools.combinations(itertools.product(calls, ranks), 2):
        if one[0] != other[0] or _cut(attempt)[one[0]]:
            yield one, other


def _repeated(attempt: Any, ranks: Sequence[int]) -> str | None:
    """A mask of an earlier call comes once more; looked for between calls of one kind first."""
    masks, cut = {rank: _masks(attempt, rank) for rank in ranks}, _cut(attempt)
    pairs = sorted(_pairs(attempt, ranks), key=lambda pair: _KINDS.index((cut[pair[0][0]], cut[pair[1][0]])))
    for (call, rank), (later, other) in pairs:
        if call == later or not torch.equal(masks[rank][call], masks[other][later]):
            continue
        whose = f"on rank {rank}" if rank == other else f"of rank {rank}, on rank {other}"
        return (
            f"{_name(attempt, later)} has the mask of {_name(attempt, call)} again, {whose}: "
            f"{_WHY[cut[call], cut[later]]} The same numbers would be dropped in every layer and step. Each call needs "
            "another mask."
        )
    return None


_WHY = {
    (True, True): "is it seeded with the same number at each call, or is the common stream put back too far?",
    (False, False): "is the common stream put back too far?",
    (True, False): "is it drawn from the common stream, which is then put back?",
    (False, True): "is it drawn from the common stream, which is then put back?",
}
_KINDS = list(_WHY)


def _likeness(attempt: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How alike two masks are, in standard deviations, for each number of places that one is moved (around the end)."""
    p, n = attempt.case.inputs[0][0]["p"], len(one)
    first, second = (torch.fft.rfft(mask.double() - (1 - p)) for mask in (one, other))
    return torch.fft.irfft(first * second.conj(), n) / (p * (1 - p) * n**0.5)


def _moved(attempt: Any, ranks: Sequence[int]) -> str | None:
    """A mask is nearly another one, or another one moved by some places."""
    masks = {rank: _masks(attempt, rank) for rank in ranks}
    for (call, rank), (later, other) in _pairs(attempt, ranks):
        like = _likeness(attempt, masks[rank][call], masks[other][later])
        place, n = int(like.argmax()), len(like)
        if like[place] < LIKE:
            continue
        head = f"{_name(attempt, call)} on rank {rank} and {_name(attempt, later)} on rank {other}: the two masks are "
        shift = min(place, n - place)
        if not shift:
            alike = int((masks[rank][call] == masks[other][later]).sum())
            p = attempt.case.inputs[0][0]["p"]
            return (
                f"{head}alike in {alike} of {n} places, and independent ones are in about "
                f"{(p * p + (1 - p) * (1 - p)) * n:.0f}: a part of their masks is common. Draw all of it anew."
            )
        return f"{head}the same but for {shift} place{'s' if shift > 1 else ''}: twins, one step behind the other."
    return None


def _repeating(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Within one mask the same comes again and again: one row's mask, used for all rows."""
    for rank in ranks:
        for call, mask in enumerate(_masks(attempt, rank)):
            like = _likeness(attempt, mask, mask)[NEAR : len(mask) // 2]
            if like.max() >= LIKE + 1:
                return (
                    f"{_name(attempt, call)} on rank {rank}: the mask repeats itself after {NEAR + int(like.argmax())} "
                    "numbers. Each number has a chance of its own: draw a mask of the shape of x."
                )
    return None


def _alike(attempt: Any, ranks: Sequence[int]) -> str | None:
    """Where cut, two ranks agree more or less often than chance says, or always drop equally many."""
    p, cut = attempt.case.inputs[0][0]["p"], _cut(attempt)
    for one, other in itertools.combinations(ranks, 2):
        masks = [
            torch.stack([m for m, c in zip(_masks(attempt, rank), cut, strict=True) if c]) for rank in (one, other)
        ]
        agree, count, chance = int((masks[0] == masks[1]).sum()), masks[0].numel(), p * p + (1 - p) * (1 - p)
        if _unlikely(agree, count, chance):
            return (
                f"where x is cut, ranks {one} and {other} do the same to {agree} of {count} numbers, and independent "
                f"masks do so to about {chance * count:.0f}: a part of their masks is common."
            )
        if len(set(masks[0].sum(1).tolist())) == 1:
            return (
                f"where x is cut, rank {one} drops exactly {int((~masks[0][0]).sum())} numbers in each of "
                f"{len(masks[0])} calls: each number has a chance of its own, so their count differs."
            )
        if torch.equal(masks[0].sum(1), masks[1].sum(1)):
            return (
                f"where x is cut, ranks {one} and {other} drop equally many numbers in each of {len(masks[0])} calls: "
                "is it one mask in another order? Independent masks differ in that, too."
            )
    return None


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
