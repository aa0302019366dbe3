"""Judging one attempt: the first thing that is wrong with it, in words; the order is from gross to fine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from picolib.course import digits, replay, values
from picolib.course.exercise import COLLECTIVES
from picolib.course.trial import Attempt
from picolib.course.words import number_of, ranks_text


@dataclass(frozen=True)
class Fault:
    """What is wrong: a text, and where it helps a table and the first difference from the reference."""

    text: str
    table: str = ""
    divergence: str = ""


def judge(attempt: Attempt) -> Fault | None:
    """The fault of an attempt that has run or failed; None when there is none."""
    if attempt.error is not None:
        return Fault(explained(attempt))
    for look in (_forbidden, _unwaited, _rules):
        text = look(attempt)
        if text:
            return Fault(text)
    silent = _silent(attempt)
    if silent:
        return Fault(silent, values.table(attempt))
    text = attempt.exercise.judge(attempt) if attempt.exercise.judge else _values(attempt)
    if text:
        return Fault(text, values.table(attempt), first_divergence(attempt))
    text = _traffic(attempt) or _steps(attempt) or _bits(attempt) or _kept(attempt) or _carried(attempt)
    return Fault(text, "", first_divergence(attempt)) if text else None


def explained(attempt: Attempt) -> str:
    """The error that ended a run, in the words of a check."""
    name, text = type(attempt.error).__name__, str(attempt.error)
    if name == "RankTimeout":
        return "Your function was not through in time: is there a loop without end?\n" + text
    if name == "DeadlockError" and attempt.exercise.blocked:
        return f"{text}\n\n{attempt.exercise.blocked}"
    return text


def _forbidden(attempt: Attempt) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        for name, _, owned in record.collectives:
            if name in attempt.exercise.allows or (not owned and name not in COLLECTIVES):
                continue
            whose = "picolib's own" if owned else "torch's own"
            return (
                f"rank {rank} called {whose} {name}. This exercise is about doing it yourself, "
                "with messages from one rank to another."
            )
    return None


def _unwaited(attempt: Attempt) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        for kind, peer, *_ in record.unwaited:
            verb, way = ("isend", "to") if kind == "send" else ("irecv", "from")
            return (
                f"rank {rank} started an {verb} {way} rank {peer} and never waited for it. "
                "Until wait() has returned nobody knows whether the message has gone through."
            )
    return None


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
        text = _compare(rank, record.sends, allowed, attempt.exercise.formula)
        if text:
            return f"The values are right, but {text}"
    return None


def _compare(rank: int, sends: list[list], allowed: Any, formula: str) -> str | None:
    nbytes, peers = sum(s[2] for s in sends), {s[1] for s in sends}
    symbols = f" = {formula}" if formula else ""
    if allowed.to is not None and not peers <= allowed.to:
        stranger = min(peers - allowed.to)
        right = f"only to {ranks_text(allowed.to)}" if allowed.to else "to nobody"
        return f"rank {rank} sent to rank {stranger}; here it sends {right}."
    if allowed.nbytes is not None and nbytes != allowed.nbytes:
        ratio = f": {nbytes / allowed.nbytes:.1f}x the bytes" if allowed.nbytes else ""
        return f"rank {rank} sent {number_of(nbytes, 'byte')}, where {allowed.nbytes:,}{symbols} are right{ratio}."
    if allowed.messages is not None and len(sends) != allowed.messages:
        sent = number_of(len(sends), "message")
        return f"rank {rank} sent {sent}, where {allowed.messages:,} {_are(allowed.messages)} right."
    return None


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
        return (
            f"The values are right, but {name} was changed on {ranks_text(changed)}: it must stay as it is. "
            "Receive and add in a tensor of your own."
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


def _contributors(values: list[float], n: int) -> set[int]:
    numbers = [number for value in values if (number := digits.read(value, n))]
    return {rank for number in numbers for rank, count in enumerate(number.counts) if count}


def first_divergence(attempt: Attempt) -> str:
    """The first message where the learner's ranks leave the reference: "step 2: rank 1 sent chunk 0; …"."""
    script = attempt.exercise.script
    if script is None or not attempt.ranks:
        return ""
    plans = [list(script(attempt.world_size, rank)) for rank in range(attempt.world_size)]
    longest = max(max(map(len, plans)), max(len(r.sends) for r in attempt.ranks))
    for step in range(longest):
        for rank, record in enumerate(attempt.ranks):
            text = _difference(attempt, rank, record.sends[step : step + 1], plans[rank][step : step + 1])
            if text:
                return f"First difference from the reference, step {step + 1}: {text}"
    return ""


def _difference(attempt: Attempt, rank: int, sent: list, planned: list) -> str | None:
    if not sent and not planned:
        return None
    if not planned:
        what = number_of(sent[0][2], "byte")
        return f"rank {rank} sent {what} to rank {sent[0][1]}; the reference sends nothing any more."
    plan = planned[0]
    should = f"chunk {plan.chunk}" if plan.chunk is not None else "the tensor"
    should = should.replace("chunk", attempt.exercise.piece)
    if not sent:
        return f"rank {rank} sent nothing; the reference sends {should} to rank {plan.peer}."
    chunk = _chunk_sent(attempt, sent[0])
    same_peer, same_chunk = sent[0][1] == plan.peer, plan.chunk is None or chunk is None or chunk == plan.chunk
    if same_peer and same_chunk:
        return None
    what = should if chunk is None or chunk == plan.chunk else f"{attempt.exercise.piece} {chunk}"
    if chunk == "all":
        what = "the whole tensor"
    to = "" if same_peer else f" to rank {sent[0][1]}"
    return f"rank {rank} sent {what}{to}; the reference sends {should}{'' if same_peer else f' to rank {plan.peer}'}."


def _chunk_sent(attempt: Attempt, sent: list) -> Any:
    """Which chunk a message carried, read from its digits; "all" for the whole tensor, None when unknown."""
    case = attempt.case
    if case.kind != "digits" or not case.pieces or sent[4] is None:
        return None
    length = case.inputs[0][0].numel()
    numbers = digits.read_all(torch.tensor(sent[4], dtype=torch.float64), attempt.world_size)
    if numbers and len(numbers) == length and case.pieces > 1:
        return "all"
    return digits.piece_of(numbers, length, case.pieces)
