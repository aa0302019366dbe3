"""Exercise 2.6: an all-reduce by recursive doubling, and the partners that are none."""

from __future__ import annotations

import re
from typing import Any

from picolib.course import values
from picolib.course.ended import ITSELF
from picolib.course.exercise import Case, Exercise, Sent, Traffic
from picolib.course.exercises.bills import log2, partners
from picolib.course.exercises.data import all_reduced, nbytes, vectors
from picolib.course.words import number_of

MUTUAL = "Partners are mutual: whom you send to, from that rank you receive."
ISEND = "In each step start the send with isend, then receive, then wait."
WAITS = re.compile(r"rank (\d+) waits in (send|recv) (?:to|from) rank (\d+)")


def doubling_traffic(case: Case, rank: int) -> Traffic:
    """The whole vector to each partner."""
    met = partners(case.world_size, rank)
    return Traffic(len(met), len(met) * nbytes(case.inputs[rank][0]), frozenset(met))


def doubling_ended(attempt: Any, text: str) -> str | None:
    """Whom a rank meets, and in which order the two of them call."""
    if ITSELF in text or "there is no rank" in text:
        return (
            "The partner is always another rank below N: print whom each rank meets in each step, before it sends. "
            "Its number differs in one bit, another bit in each step."
        )
    waits = {int(rank): (call, int(other)) for rank, call, other in WAITS.findall(text)}
    if not waits:
        return None
    if all(waits.get(other) == (call, rank) for rank, (call, other) in waits.items()):
        return f"Two and two call each other, both the same way round. {ISEND}"
    return f"{MUTUAL} {ISEND}" if len(waits) > 1 else None


def not_mutual(attempt: Any) -> str | None:
    """Somebody sends to a rank that, in the same step, sends to a third one."""
    n = attempt.world_size
    for step in range(log2(n)):
        met = [record.sends[step][1] if len(record.sends) == log2(n) else None for record in attempt.ranks]
        for rank, other in enumerate(met):
            if other is not None and met[other] is not None and met[other] != rank:
                return (
                    f"in step {step + 1} rank {rank} sends to rank {other}, and rank {other} to rank {met[other]}. "
                    f"{MUTUAL}{_also_adds_up(attempt)}"
                )
    return None


def _also_adds_up(attempt: Any) -> str:
    """To one rank, from another: every sum is complete, and yet not the same on all ranks."""
    if values.diagnose(attempt):
        return ""
    return (
        " The sums are right up to rounding, but each rank adds in another order, so the last bits differ from rank "
        "to rank, and replicas would drift apart. Partners who swap and add do the same sum."
    )


def same_partner(attempt: Any) -> str | None:
    """The partner does not change from step to step."""
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        peers = [s[1] for s in record.sends]
        if n > 2 and len(peers) == log2(n) and len(set(peers)) == 1:
            return f"rank {rank} meets rank {peers[0]} in every step. Each step needs a new partner."
    return None


def one_way(attempt: Any) -> str | None:
    """Only one of two partners sends."""
    pairs = {(rank, s[1]) for rank, record in enumerate(attempt.ranks) for s in record.sends}
    for rank, other in sorted(pairs):
        if (other, rank) not in pairs:
            return (
                f"rank {rank} sends to rank {other}, which never sends to rank {rank}. {MUTUAL} Both send what they "
                "have, and both add."
            )
    return None


def not_one_bit(attempt: Any) -> str | None:
    """Partners are mutual, but one differs in several bits, or in one that was flipped before: its sum is known."""
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        left = [1 << k for k in range(log2(n))]
        for step, sent in enumerate(record.sends if len(record.sends) == log2(n) else ()):
            if rank ^ sent[1] not in left:
                return (
                    f"in step {step + 1} rank {rank} meets rank {sent[1]}, part of whose sum it has already. Flip one "
                    f"bit of the rank, another one in each step: here for example rank {rank ^ left[0]}."
                )
            left.remove(rank ^ sent[1])
    return None


def too_many_steps(attempt: Any) -> str | None:
    """Right, but by a ring or by sending to everybody."""
    n, taken = attempt.world_size, max(len(record.sends) for record in attempt.ranks)
    if n < 4 or taken <= log2(n):
        return None
    return f"on {n} ranks a rank sends {number_of(taken, 'message')}: {taken} steps; {log2(n)} suffice."


EXERCISE = Exercise(
    id="2.6",
    function="recursive_doubling",
    title="recursive doubling",
    lesson="02B_cost_and_choice",
    sitting="02B",
    difficulty=3,
    minutes=12,
    task="Sum x over N ranks (a power of two), in place, in log2 N steps: swap all of x with a partner, and add.",
    cases=vectors(all_reduced, 0, pieces=False),
    sizes=(8, 1, 2, 4),
    output="argument",
    traffic=doubling_traffic,
    formula="log2(N)·S",
    script=lambda n, rank: [Sent(other) for other in partners(n, rank)],
    rules=(same_partner, not_mutual, too_many_steps, one_way, not_one_bit),
    same_bits=True,
    ended=doubling_ended,
    verified="{messages} steps on 8 ranks = log2 N; {bytes} bytes per rank = log2(N)·S; the same bits everywhere",
    hints=(
        "After one step pairs know their sum. Whom must a pair meet next, so that four ranks know theirs?",
        "In step k the partner is the rank whose number differs in bit k: rank ^ (1 << k).",
        "Send x with isend, receive into another tensor, wait, and only then add: x must not change while sent.",
    ),
)
