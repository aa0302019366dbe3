"""Exercises beyond the core of lesson 02; nothing later needs them."""

from __future__ import annotations

from typing import Any

import torch

from picolib.course import digits, sums, values
from picolib.course.exercise import Case, Exercise, Sent, Traffic
from picolib.course.exercises.bills import log2, partners
from picolib.course.exercises.data import all_reduced, case, nbytes, vectors
from picolib.course.exercises.lesson02a import LESSON as LESSON_A
from picolib.course.exercises.lesson02b import LESSON as LESSON_B
from picolib.course.words import apart, number_of

# 2.9, 2.10 ----------------------------------------------------------------------------------------------------


def ping_pong_cases(world_size: int, seed: int) -> list[Case]:
    """A tensor on rank 0 travels to rank 1 and back, 3 times; each hop adds one."""
    made = []
    for rounds in (1, 3):
        start = torch.full((2,), float(seed % 100), dtype=torch.float64)
        inputs = ((start, rounds), (torch.zeros(2, dtype=torch.float64), rounds))
        expected = (start + 2 * rounds, start + 2 * rounds - 1)
        made.append(Case("rounds", inputs, expected, exact=True))
    return made


def ping_pong_traffic(case_: Case, rank: int) -> Traffic:
    """One message a round each way."""
    rounds = case_.inputs[0][1]
    return Traffic(rounds, rounds * nbytes(case_.inputs[0][0]), frozenset({1 - rank}))


def rounds_missed(attempt: Any) -> str | None:
    """Fewer journeys than asked for, or a rank that forgets to add."""
    rounds = attempt.case.inputs[0][1]
    for rank, record in enumerate(attempt.ranks):
        if len(record.sends) not in (0, rounds):
            sent = number_of(len(record.sends), "message")
            return f"rank {rank} sent {sent} in {number_of(rounds, 'round')}: it is one a round."
    start = attempt.inputs()[0]
    for rank, (got, right) in enumerate(zip(attempt.outputs, attempt.case.expected, strict=True)):
        if not isinstance(got, torch.Tensor) or got.shape != right.shape or torch.equal(got, right):
            continue
        grown = apart(*(float((tensor - start)[int((got != right).nonzero()[0])]) for tensor in (got, right)))
        return (
            f"after {number_of(rounds, 'round')} rank {rank}'s tensor has grown by {grown[0]}, "
            f"where {grown[1]} is right: both ranks add 1 to what they receive, before they send it on."
        )
    return None


PARTS = 8


def chain_cases(world_size: int, seed: int) -> list[Case]:
    """Rank 0's vector, to be handed down the chain 0, 1, 2, ... in 8 parts."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for kind, length in (("digits", PARTS), ("float32", 80 * PARTS)):
        first = digits.contribution(0, length) if kind == "digits" else torch.randn(length, generator=random)
        inputs = [first] + [torch.zeros_like(first) for _ in range(world_size - 1)]
        made.append(case(kind, inputs, lambda tensors: [tensors[0]] * len(tensors), PARTS, exact=True))
    return made


def chain_traffic(case_: Case, rank: int) -> Traffic:
    """The vector once, in 8 parts, to the next rank; the last sends nothing."""
    last = rank == case_.world_size - 1
    return Traffic(0, 0, frozenset()) if last else Traffic(PARTS, nbytes(case_.inputs[0][0]), frozenset({rank + 1}))


def chain_script(n: int, rank: int) -> list[Sent]:
    """Part after part to the next rank."""
    return [] if rank == n - 1 else [Sent(rank + 1, part) for part in range(PARTS)]


def one_by_one(attempt: Any) -> str | None:
    """A vector that is passed on only when all of it has come."""
    n = attempt.world_size
    if attempt.case.kind != "digits" or n < 3:
        return None
    messages = {len(record.sends) for record in attempt.ranks[:-1]}
    return f"the vector went in {number_of(1, 'message')}: cut it into {PARTS} parts." if messages == {1} else None


# 2.11, 2.12 --------------------------------------------------------------------------------------------------


def halving_traffic(case_: Case, rank: int) -> Traffic:
    """Halves, quarters, ..., and back: 2(N-1)/N of the vector in 2·log2 N messages."""
    n, size = case_.world_size, nbytes(case_.inputs[rank][0])
    return Traffic(2 * log2(n), 2 * size * (n - 1) // n, frozenset(partners(n, rank)))


def not_the_way_back(attempt: Any) -> str | None:
    """The second half does not meet the partners of the first in the opposite order."""
    if not values.diagnose(attempt):
        return None
    for rank, record in enumerate(attempt.ranks):
        met, half = [s[1] for s in record.sends], log2(attempt.world_size)
        there, back = met[:half], met[half:]
        if len(back) == half and sorted(there) == sorted(back) and back != there[::-1]:
            first, last = there[0], there[-1]
            return (
                f"rank {rank} meets rank {_in_order(there)}, and in the second half rank {_in_order(back)}. The second "
                f"half goes the same way back: it begins with the last partner, rank {last}, and ends with the first, "
                f"rank {first}."
            )
    return None


def summed_elsewhere(attempt: Any) -> str | None:
    """A rank has sent sums that its x does not hold: they were made in another tensor."""
    n = attempt.world_size
    if attempt.case.kind != "digits" or not values.diagnose(attempt):
        return None
    for rank, (record, output) in enumerate(zip(attempt.ranks, attempt.outputs, strict=True)):
        held = digits.read_all(output, n) or []
        for sent in (digits.read(value, n) for s in record.sends for value in s[4] or []):
            there = held[sent.place] if sent and sent.place is not None and sent.place < len(held) else None
            if there and sum(there.counts) < sum(sent.counts):
                return (
                    f"rank {rank} has sent `{sent.text}`{sums.place_name(attempt, sent.place)}, and its x holds "
                    f"`{there.text}` there: the sum is in another tensor. Add to the part of x itself: kept += arrived."
                )
    return None


def _in_order(ranks: list[int]) -> str:
    return ", then ".join(map(str, ranks))


def gathered(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What an all-gather leaves on each rank: everybody's, side by side."""
    return [torch.cat(tensors)] * len(tensors)


def bruck_steps(n: int) -> int:
    """Steps of Bruck's all-gather: log2 N, rounded up."""
    return (n - 1).bit_length()


def bruck_traffic(case_: Case, rank: int) -> Traffic:
    """Everything but one's own, in as few messages as doubling allows."""
    n, size = case_.world_size, nbytes(case_.inputs[rank][0])
    return Traffic(bruck_steps(n), (n - 1) * size)


EXERCISES = (
    Exercise(
        id="2.9",
        function="ping_pong",
        title="ping-pong",
        lesson=LESSON_A,
        sitting="02A",
        difficulty=1,
        minutes=5,
        stretch=True,
        task="A tensor goes from rank 0 to rank 1 and back, `rounds` times; whoever receives it adds 1. Return yours.",
        cases=ping_pong_cases,
        sizes=(2,),
        traffic=ping_pong_traffic,
        rules=(rounds_missed,),
        circle="One of the two has to receive while the other sends.",
        beyond="Rank 0 sends to rank 1 and receives from it; rank 1 receives from rank 0 and sends to it.",
        verified="one message a round, each way",
        hints=(
            "Rank 0 sends first, then receives; rank 1 the other way round.",
            "Add 1 after each recv, on both ranks.",
            "In each round: on rank 0 send(x, 1), recv(x, 1), x += 1; on rank 1 recv(x, 0), x += 1, send(x, 0).",
        ),
    ),
    Exercise(
        id="2.10",
        function="pipelined_broadcast",
        title="a pipeline along the chain",
        lesson=LESSON_A,
        sitting="02A",
        difficulty=4,
        minutes=20,
        stretch=True,
        task="Rank 0's x goes down the chain 0, 1, 2, ... in 8 parts, in place; parts travel at the same time.",
        cases=chain_cases,
        output="argument",
        traffic=chain_traffic,
        formula="S",
        script=chain_script,
        rules=(one_by_one,),
        beyond="Rank r receives from rank r - 1 and sends to rank r + 1. A chain has ends: the last rank sends to "
        "nobody, and rank 0 receives from nobody.",
        blocked="Rank r sends each part to rank r + 1, as soon as it has it; the last rank alone sends nothing.",
        steps=lambda n: PARTS + n - 2 if n > 1 else 0,
        piece="part",
        verified="{messages} messages from rank 0; {steps} steps = parts + N - 2",
        hints=(
            "While rank 1 passes part 0 on, it can already receive part 1.",
            "For each part: receive it, start to send it on with isend, and go to the next part without waiting.",
            "Keep the handles in a list and wait for them after the loop.",
        ),
    ),
    Exercise(
        id="2.11",
        function="halving_doubling",
        title="recursive halving and doubling",
        lesson=LESSON_B,
        sitting="02B",
        difficulty=4,
        minutes=20,
        stretch=True,
        task="Sum x over N ranks, a power of two, in place: the bytes of the ring in 2·log2 N steps.",
        cases=vectors(all_reduced, 1),
        sizes=(4, 1, 2, 8),
        output="argument",
        traffic=halving_traffic,
        formula="2(N-1)/N·S",
        rules=(summed_elsewhere, not_the_way_back),
        same_bits=True,
        verified="{bytes} bytes per rank = 2(N-1)/N·S; {messages} steps = 2·log2 N; the same bits on every rank",
        hints=(
            "Keep one half of the range you are responsible for, give the other half to a partner who keeps that one.",
            "Halve log2 N times; then go the same way back, doubling the range you hold with each partner.",
            "Start with the partner furthest away (rank ^ n // 2): then each rank ends with neighbouring elements.",
        ),
    ),
    Exercise(
        id="2.12",
        function="bruck_all_gather",
        title="Bruck's all-gather",
        lesson=LESSON_B,
        sitting="02B",
        difficulty=4,
        minutes=20,
        stretch=True,
        task="Return everybody's x side by side, in ceil(log2 N) steps, for any N (Bruck et al. 1997).",
        cases=vectors(gathered, 0, pieces=False, exact=True),
        keeps="x",
        traffic=bruck_traffic,
        raised=(("list index out of range", "Fewer than N blocks are held at the end: has every step brought some?"),),
        beyond="For any N the number wraps around: (rank + 2**k) % n, (rank - 2**k) % n. "
        "Flipping bits is for powers of two.",
        formula="(N-1)·S",
        verified="{messages} messages per rank = ceil(log2 N); {bytes} bytes per rank = (N-1)·S",
        hints=(
            "After k steps you hold 2**k blocks: your own and those of the ranks above you. Send all you have.",
            "Step k: send all you hold to (rank - 2**k) % n, receive from (rank + 2**k) % n; last, what is missing.",
            "You hold blocks rank, rank+1, ... (modulo N): rotate them into order at the end.",
        ),
    ),
)
