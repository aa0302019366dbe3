"""Judging one attempt: the first thing that is wrong with it, in words; the order is from gross to fine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from picolib.course import crosscheck, digits, replay, values
from picolib.course.divergence import first_divergence, same_messages
from picolib.course.ended import explained
from picolib.course.exercise import COLLECTIVES
from picolib.course.records import Attempt
from picolib.course.remarks import from_anybody
from picolib.course.words import number_of, ranks_text
from picolib.launch.wording import source_line

UNREADABLE = (
    "What your function left behind cannot be judged, so it counts as not passed: does it return, and change, "
    "all that its docstring asks for, and nothing else?"
)


@dataclass(frozen=True)
class Fault:
    """What is wrong: a text, and where it helps a table and the first difference from the reference."""

    text: str
    table: str = ""
    divergence: str = ""
    cause: Exception | None = None  # what went wrong in the judgement itself, for whoever writes exercises


def judge(attempt: Attempt) -> Fault | None:
    """The fault of an attempt that has run or failed; None when there is none.

    Functions leave behind what no exercise has thought of. Where the judgement fails on it, that is a fault too.
    """
    try:
        return _first_fault(attempt)
    except Exception as error:
        return Fault(UNREADABLE, cause=error)


def _first_fault(attempt: Attempt) -> Fault | None:
    if attempt.error is not None:
        # Changed results may lead anywhere: an error, or a loop that does not end, is no fault then.
        return None if attempt.case.tampered == "all-reduces" else Fault(explained(attempt))
    if attempt.case.tampered:
        text = crosscheck.ignored(attempt) if attempt.case.tampered == "all-reduces" else crosscheck.unused(attempt)
        return Fault(text) if text else None
    for look in (_stored, _forbidden, _unwaited, _early, _rules):
        text = look(attempt)
        if text:
            return Fault(text)
    silent = _silent(attempt)
    if silent:
        return Fault(silent, values.table(attempt))
    text = attempt.exercise.judge(attempt) if attempt.exercise.judge else _values(attempt)
    if text:
        return Fault(text, values.table(attempt), first_divergence(attempt) or same_messages(attempt))
    for look in (_disagreement, _traffic, _steps, _bits, _kept, _carried, _by_luck):
        text = look(attempt)
        if text:
            return Fault(text, "", first_divergence(attempt))
    return None


def _stored(attempt: Attempt) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        if record.store_used:
            ways = "collectives" if attempt.exercise.allows & COLLECTIVES else "messages"
            return (
                f"rank {rank} used the store ({record.store_used}), which ranks need to find each other. "
                f"What they tell each other has to travel in {ways}."
            )
    return None


def _forbidden(attempt: Attempt) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        for name, _, owned in record.collectives:
            if name in attempt.exercise.allows or (not owned and name not in COLLECTIVES):
                continue
            whose = "picolib's own" if owned else "torch's own"
            return f"rank {rank} called {whose} {name}. {_instead(attempt.exercise.allows)}"
    return None


def _instead(allows: frozenset[str]) -> str:
    if not allows:
        return "Nothing needs to be sent here: its number and the world size tell a rank all it needs."
    how = "the collectives that it allows" if allows & COLLECTIVES else "messages from one rank to another"
    return f"This exercise is about doing it yourself, with {how}."


def _unwaited(attempt: Attempt) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        for entry in record.unwaited[:1]:
            text = (
                f"rank {rank} started {_called(entry)} and never waited for it. "
                f"Until wait() has returned nobody knows whether {_what_of(entry)} has gone through."
            )
            return f"{text} {attempt.exercise.unwaited}".rstrip()
    return None


def _called(entry: list) -> str:
    """ "an irecv from rank 3", "an asynchronous all_reduce"."""
    if entry[0] == "collective":
        return f"an asynchronous {entry[1]}"
    verb, way = ("isend", "to") if entry[0] == "send" else ("irecv", "from")
    return f"an {verb} {way} rank {entry[1]}" if entry[1] >= 0 else f"an {verb} {way} any rank"


def _what_of(entry: list) -> str:
    return "it" if entry[0] == "collective" else "the message"


def _early(attempt: Attempt) -> str | None:
    """A tensor was used while something was still being written to it."""
    for rank, record in enumerate(attempt.ranks):
        for entry, place in record.early[:1]:
            where = f"\n      {source_line(*json.loads(place)[:2])}" if place else ""
            return (
                f"rank {rank} started {_called(entry)}, and used its tensor before wait(): "
                f"until then nobody knows what is in it.{where}\nCall wait() first, then use the tensor."
            )
    return None


def _disagreement(attempt: Attempt) -> str | None:
    return crosscheck.disagreement(attempt) if attempt.exercise.traffic else None


def _rules(attempt: Attempt) -> str | None:
    return next((text for rule in attempt.exercise.rules if (text := rule(attempt))), None)


def _silent(attempt: Attempt) -> str | None:
    """Nothing was sent where something must be: then a right value was not come by honestly."""
    allowed = (
        [attempt.exercise.traffic(attempt.case, r) for r in range(attempt.world_size)]
        if attempt.exercise.traffic
        else []
    )
    if not any(t.messages for t in allowed) or any(record.sends for record in attempt.ranks):
        return None
    return (
        f"0 messages were sent between the {attempt.world_size} ranks. A rank knows its own numbers only: "
        "what the others hold has to be sent."
    )


def _values(attempt: Attempt) -> str | None:
    return values.diagnose(attempt) if attempt.case.expected is not None else None


def _traffic(attempt: Attempt) -> str | None:
    if attempt.exercise.traffic is None:
        return None
    for rank, record in enumerate(attempt.ranks):
        allowed = attempt.exercise.traffic(attempt.case, rank)
        given = attempt.inputs()[rank]
        element = given.element_size() if isinstance(given, torch.Tensor) else 0
        text = _compare(rank, record.sends, allowed, attempt.exercise.formula, element)
        if text:
            return f"The values are right, but {text}"
    return None


def _compare(rank: int, sends: list[list], allowed: Any, formula: str, element: int) -> str | None:
    nbytes, peers = sum(s[2] for s in sends), {s[1] for s in sends}
    symbols = f" = {formula}" if formula else ""
    if allowed.to is not None and not peers <= allowed.to:
        stranger = min(peers - allowed.to)
        right = f"only to {ranks_text(allowed.to)}" if allowed.to else "to nobody"
        return f"rank {rank} sent to rank {stranger}; here it sends {right}."
    if allowed.nbytes is not None and nbytes != allowed.nbytes:
        odd = _other_dtype(sends, element) if element else None
        if odd and len(sends) == allowed.messages:
            return f"rank {rank} sent numbers of {odd} bytes each, and those of x have {element}: keep the dtype of x."
        ratio = f": {nbytes / allowed.nbytes:.1f}x the bytes" if allowed.nbytes else ""
        return f"rank {rank} sent {number_of(nbytes, 'byte')}, where {allowed.nbytes:,}{symbols} are right{ratio}."
    if allowed.messages is not None and len(sends) != allowed.messages:
        sent = number_of(len(sends), "message")
        return f"rank {rank} sent {sent}, where {allowed.messages:,} {_are(allowed.messages)} right."
    return None


def _other_dtype(sends: list[list], element: int) -> int | None:
    """Bytes of a number in the first message that holds others than x does; None where that is not known."""
    sizes = [s[2] // len(s[4]) for s in sends if s[4]]
    return next((size for size in sizes if size != element), None)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _steps(attempt: Attempt) -> str | None:
    if attempt.exercise.steps is None:
        return None
    taken, needed = replay.steps([r.entries for r in attempt.ranks]), attempt.exercise.steps(attempt.world_size)
    if taken <= needed:
        return None
    n = attempt.world_size
    return f"The values are right, but on {n} ranks it takes {number_of(taken, 'step')}; {needed} suffice."


def _bits(attempt: Attempt) -> str | None:
    if not attempt.exercise.same_bits:
        return None
    first = attempt.outputs[0]
    differing = [
        r for r, out in enumerate(attempt.outputs) if isinstance(out, torch.Tensor) and not torch.equal(out, first)
    ]
    if not differing:
        return None
    return (
        f"{ranks_text(differing)} and rank 0 end with different bits: they added in a different order. "
        "Then replicas drift apart; let all ranks take the same sum."
    )


def _kept(attempt: Attempt) -> str | None:
    """The argument is as it was, and what is returned does not live in it."""
    name = attempt.exercise.keeps
    if not name:
        return None
    inputs = attempt.inputs()
    changed = [r for r, record in enumerate(attempt.ranks) if not _same(record.kept, inputs[r])]
    if changed:
        return f"The values are right, but {name} was changed on {ranks_text(changed)}: it must stay as it is. " + (
            "Receive and add in a tensor of your own." if attempt.exercise.traffic else "Change a copy of it."
        )
    shared = [r for r, record in enumerate(attempt.ranks) if record.shares]
    if shared:
        return (
            f"The values are right, but on {ranks_text(shared)} you returned {name} itself, or a part of it: "
            f"return a new tensor, such as {name}.clone()."
        )
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return isinstance(one, dict) and set(one) == set(other) and all(_same(one[k], other[k]) for k in other)
    if isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def _carried(attempt: Attempt) -> str | None:
    """Whose numbers a rank ends with, those must be in the messages sent to it: read from their digits."""
    case, n = attempt.case, attempt.world_size
    if case.kind != "digits" or attempt.exercise.traffic is None or case.expected is None:
        return None
    for rank, expected in enumerate(case.expected):
        contents = [s[4] for record in attempt.ranks for s in record.sends if s[1] == rank]
        if None in contents:
            continue  # too long to have been kept
        came = _contributors([value for message in contents for value in message], n)
        missing = _contributors(expected.flatten().tolist(), n) - came - {rank}
        if missing:
            return (
                f"The values are right, but no message to rank {rank} carries the number of {ranks_text(missing)}: "
                "it came there by another way. What a rank ends with has to come in its messages."
            )
    return None


def _by_luck(attempt: Attempt) -> str | None:
    """A rank that several others send to has received from whoever came first."""
    text = from_anybody(attempt.code)
    if not text or all(len({entry[1] for entry in record.receives}) < 2 for record in attempt.ranks):
        return None
    return f"The values are right, but by luck: {text}"


def _contributors(values: list[float], n: int) -> set[int]:
    numbers = [number for value in values if (number := digits.read(value, n))]
    return {rank for number in numbers for rank, count in enumerate(number.counts) if count}
