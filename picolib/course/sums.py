"""What is wrong with sums of digits: who is missing, who came twice, which chunk stands where another belongs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import digits
from picolib.course.words import number_of, ranks_text
from picolib.launch.wording import listed


def who_is_missing(attempt: Any, wrong: Sequence[int]) -> str | None:
    """Who is missing, who came twice: read from the digits of the first number that is wrong."""
    if attempt.case.kind != "digits":
        return None
    below = [rank for rank in wrong if (attempt.outputs[rank].detach().double() < 0).any()]
    if below:
        return f"numbers on {ranks_text(below)} are negative: something was subtracted that should have been added."
    pairs = list(_read_pairs(attempt, wrong))
    if largest_kept(attempt, pairs, wrong):
        last = f"rank {attempt.world_size - 1}'s number"
        return f"every rank ends with {last} alone, the largest. Was the larger of two kept, instead of both added?"
    for explain in (_someone_elses, _too_often, _alone, _missing):
        for rank, _, got, right in pairs:
            text = explain(got, right)
            if text:
                where = place_name(attempt, right.place)
                text = f"`{got.text}` on rank {rank}{where}, where `{right.text}` is right: {text}"
                text += _all_there(attempt, rank) + too_few(attempt)
                return text + (_besides(attempt, wrong) if explain in (_alone, _missing) else "")
    return None


def _besides(attempt: Any, wrong: Sequence[int]) -> str:
    """What is whole and stands in the wrong place says more of an index than what is missing elsewhere."""
    text = wrong_place(attempt, wrong)
    return f" And {text} Is it received into the right {attempt.exercise.piece}?" if text else ""


def _all_there(attempt: Any, rank: int) -> str:
    """Whether the output has the right numbers in another order."""
    got, expected = (t.detach().double().flatten() for t in (attempt.outputs[rank], attempt.case.expected[rank]))
    same = got.numel() > 1 and torch.equal(got.sort().values, expected.sort().values)
    return " All numbers are there, in the wrong order." if same else ""


def too_few(attempt: Any) -> str:
    """What the number of messages adds to a sum that lacks somebody."""
    if attempt.exercise.traffic is None:
        return ""
    for rank, record in enumerate(attempt.ranks):
        needed, sent = attempt.exercise.traffic(attempt.case, rank).messages, len(record.sends)
        if needed is not None and sent < needed:
            text = f" Rank {rank} sent {number_of(sent, 'message')}, and {needed} {_are(needed)} needed"
            return f"{text}: {_short_by(needed - sent)} short." if sent and attempt.exercise.script else f"{text}."
    return ""


def too_few_bytes(attempt: Any) -> str:
    """What the number of bytes adds to a number that nothing else explains."""
    if attempt.exercise.traffic is None:
        return ""
    for rank, record in enumerate(attempt.ranks):
        needed, sent = attempt.exercise.traffic(attempt.case, rank).nbytes, sum(s[2] for s in record.sends)
        if needed is not None and sent < needed:
            return f" Rank {rank} sent {number_of(sent, 'byte')}, and {needed:,} {_are(needed)} needed."
    return ""


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _short_by(count: int) -> str:
    """Where each message of the reference is a step of its own, a message too few is a step too few."""
    return "one step" if count == 1 else f"{count} steps"


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


def order(attempt: Any, numbers: Sequence[digits.Number]) -> str:
    """ " (chunks 0, 3, 2, 1)" for numbers from more than one chunk."""
    length = attempt.case.inputs[0][0].numel() if attempt.case.pieces else 0
    if not length or length % attempt.case.pieces or any(number.place is None for number in numbers):
        return ""
    size = length // attempt.case.pieces
    found = [numbers[start].place // size for start in range(0, len(numbers), size)]  # type: ignore[operator]
    return f" ({attempt.exercise.piece}s {', '.join(map(str, found))})" if len(found) > 1 else ""


def _someone_elses(got: digits.Number, right: digits.Number) -> str | None:
    if sum(got.counts) != 1 or sum(right.counts) != 1 or got.counts == right.counts:
        return None
    return f"that is rank {got.counts.index(1)}'s number, and rank {right.counts.index(1)}'s belongs there."


def _too_often(got: digits.Number, right: digits.Number) -> str | None:
    more = [r for r, (g, e) in enumerate(zip(got.counts, right.counts, strict=True)) if g > e]
    if not more or (sum(got.counts) == 1 and not sum(right.counts)):
        return None
    counted = listed([f"rank {r}'s number {number_of(got.counts[r], 'time')}" for r in more])
    never = [r for r in more if not right.counts[r]]
    also = f", and {_numbers(never)} does not belong there" if never else ""
    return f"it holds {counted}{also}. Something was added that should have been copied, or added once too often."


def _numbers(ranks: Sequence[int]) -> str:
    return " or ".join(f"rank {r}'s" for r in ranks)


def largest_kept(attempt: Any, pairs: Sequence[Any], wrong: Sequence[int]) -> bool:
    """Whether all that is wrong is the last rank's number, where sums of all belong: the work of max()."""
    n = attempt.world_size
    alone = (0,) * (n - 1) + (1,)
    full = [right for *_, got, right in pairs if got.counts == alone and sum(right.counts) == n]
    return n > 2 and len(wrong) == n and 0 < len(full) == len(pairs)


def _alone(got: digits.Number, right: digits.Number) -> str | None:
    if sum(got.counts) != 1 or sum(right.counts) <= 2:
        return None
    rank = got.counts.index(1)
    return f"only rank {rank}'s number is there. What arrived was copied where it should be added, or never came here."


def _missing(got: digits.Number, right: digits.Number) -> str | None:
    missing = [r for r, (g, e) in enumerate(zip(got.counts, right.counts, strict=True)) if g < e]
    if not missing:
        return None
    if not sum(got.counts):
        return "nothing is there. Was it zeroed, or never written?"
    return f"{ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing."


def wrong_place(attempt: Any, wrong: Sequence[int]) -> str | None:
    """The sums are right, but stand where others should."""
    if attempt.case.kind != "digits" or mixed(attempt):
        return None  # of parts of several places the mean may look like a place, by chance
    for rank, index, got, right in _read_pairs(attempt, wrong):
        if got.counts == right.counts and got.place is not None and got.place != right.place:
            there, here = place_name(attempt, got.place), place_name(attempt, right.place)
            there = there.strip(" ()") or f"element {got.place}"
            here = here.strip(" ()") or f"element {right.place}"
            return f"rank {rank} holds {there} where {here} belongs (number {index} of its result)."
    return None


def mixed(attempt: Any) -> bool:
    """Whether a number in some output is a sum of different places."""
    n = attempt.world_size
    tensors = [output for output in attempt.outputs if isinstance(output, torch.Tensor)]
    found = [digits.read(value, n) for t in tensors for value in t.detach().double().flatten().tolist()]
    return any(number is not None and number.place is None and sum(number.counts) > 1 for number in found)


def mixed_places(attempt: Any, wrong: Sequence[int]) -> str | None:
    """Each rank's number is there as often as it should be, but from different places: another chunk was added."""
    if attempt.case.kind != "digits":
        return None
    for rank, _, got, right in _read_pairs(attempt, wrong):
        if got.counts == right.counts and got.place is None and sum(got.counts) > 1:
            piece = attempt.exercise.piece if place_name(attempt, right.place) else "element"
            here = place_name(attempt, right.place).strip(" ()") or f"element {right.place}"
            return (
                f"`{got.text}` on rank {rank}: everybody is in the sum of {here}, but with parts of other {piece}s: "
                f"the wrong index is added. Compare which {piece} arrives with which it is added to."
            )
    return None
