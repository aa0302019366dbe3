"""Exercises of sitting 02B: recursive doubling, the bill from alpha and beta, a silent swap."""

from __future__ import annotations

from typing import Any

import torch

from picolib.course import digits, replay, values
from picolib.course.exercise import Case, Exercise, Sent, Traffic
from picolib.course.exercises.data import all_reduced, generator, nbytes, vectors
from picolib.course.words import number_of, ranks_text, times

LESSON = "02B_cost_and_choice"


def log2(n: int) -> int:
    """The exponent of a power of two."""
    return n.bit_length() - 1


# 2.6 ----------------------------------------------------------------------------------------------------------


def partners(n: int, rank: int) -> list[int]:
    """Whom a rank meets in recursive doubling, step by step: its number with one bit flipped."""
    return [rank ^ (1 << k) for k in range(log2(n))]


def doubling_traffic(case: Case, rank: int) -> Traffic:
    """The whole vector to each partner."""
    met = partners(case.world_size, rank)
    return Traffic(len(met), len(met) * nbytes(case.inputs[rank][0]), frozenset(met))


def not_mutual(attempt: Any) -> str | None:
    """Somebody sends to a rank that, in the same step, sends to a third one."""
    n = attempt.world_size
    for step in range(log2(n)):
        met = [record.sends[step][1] if len(record.sends) == log2(n) else None for record in attempt.ranks]
        for rank, other in enumerate(met):
            if other is not None and met[other] is not None and met[other] != rank:
                return (
                    f"in step {step + 1} rank {rank} sends to rank {other}, and rank {other} to rank {met[other]}. "
                    "Partners are mutual: flip one bit of the rank, rank ^ 2^k."
                )
    return None


def same_partner(attempt: Any) -> str | None:
    """The partner does not change from step to step."""
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        peers = [s[1] for s in record.sends]
        if n > 2 and len(peers) == log2(n) and len(set(peers)) == 1:
            return f"rank {rank} meets rank {peers[0]} in every step. Step k needs a new partner: rank ^ 2^k."
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
                    f"bit of the rank, another one in each step: rank ^ 2^k, here rank {rank ^ left[0]}."
                )
            left.remove(rank ^ sent[1])
    return None


def too_many_steps(attempt: Any) -> str | None:
    """Right, but by a ring or by sending to everybody."""
    n, taken = attempt.world_size, max(len(record.sends) for record in attempt.ranks)
    if n < 4 or taken <= log2(n):
        return None
    return f"on {n} ranks a rank sends {number_of(taken, 'message')}: {taken} steps; {log2(n)} suffice."


# 2.7 ----------------------------------------------------------------------------------------------------------

ALGORITHMS = ("ring", "recursive_doubling")
CASES = (  # ranks, bytes, alpha in seconds, beta in seconds per byte
    (4, 40_000, 0.01, 1e-8),
    (8, 80_000_000, 20e-6, 1e-9),
    (8, 1_000, 20e-6, 1e-9),
    (16, 1_600_000, 5e-6, 4e-11),
    (2, 1_000_000, 1e-3, 1e-8),
)


def slow_motion(algorithm: str, n: int, size: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce whose messages take alpha + beta·bytes each, message by message."""
    ranks: list[list[list]] = [[] for _ in range(n)]
    for rank, entries in enumerate(ranks):
        if algorithm == "ring":
            rounds = [((rank + 1) % n, (rank - 1) % n, size // n)] * (2 * (n - 1))
        else:
            rounds = [(other, other, size) for other in partners(n, rank)]
        for number, (to, source, count) in enumerate(rounds):
            first, second = 2 * number, 2 * number + 1
            entries += [["send", to, count, first], ["recv", source, count, second], ["wait", second], ["wait", first]]
    return replay.makespan(ranks, lambda count: alpha + beta * count)


def formula_seconds(algorithm: str, n: int, size: int, alpha: float, beta: float) -> float:
    """The same from the formula: 2(N-1)·(alpha + beta·S/N), or log2 N·(alpha + beta·S)."""
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + beta * size / n)
    return log2(n) * (alpha + beta * size)


def bill_cases(world_size: int, seed: int) -> list[Case]:
    """Both sides of the crossover."""
    return [Case("bill", (arguments,), None) for arguments in CASES]


def both_bills(fn: Any, arguments: tuple) -> list:
    """In a rank: the learner's bills for the two algorithms."""
    return [fn(algorithm, *arguments) for algorithm in ALGORITHMS]


def judge_bill(attempt: Any) -> str | None:
    """Within 15% of slow motion, and the right winner."""
    n, size, alpha, beta = attempt.case.inputs[0]
    right = [slow_motion(a, n, size, alpha, beta) for a in ALGORITHMS]
    for algorithm, said, measured in zip(ALGORITHMS, attempt.outputs[0], right, strict=True):
        if not isinstance(said, (int, float)) or isinstance(said, bool):
            return f"{algorithm}: the bill must be a number of seconds, not {values.shown(said)}."
        if abs(said - measured) > 0.15 * measured:
            what = f"{algorithm} on {n} ranks, {size:,} bytes, alpha = {alpha:g} s, beta = {beta:g} s/byte"
            why = _why(algorithm, said, measured, attempt.case.inputs[0])
            return f"{what}: you say {said:.3g} s, slow motion takes {measured:.3g} s. {why}"
    said = attempt.outputs[0]
    if (said[0] < said[1]) != (right[0] < right[1]):
        return f"on {n} ranks and {size:,} bytes you let the wrong algorithm win."
    return None


def _why(algorithm: str, said: float, measured: float, arguments: tuple) -> str:
    n, size, alpha, beta = arguments
    steps = 2 * (n - 1) if algorithm == "ring" else log2(n)
    each = size / n if algorithm == "ring" else size
    guesses = (
        (alpha + steps * beta * each, f"You charge one alpha: each of the {steps} steps pays it."),
        (
            steps * (alpha + beta * size),
            "Every step moves N·S/N: a message of the ring is one chunk, S/N bytes, not S.",
        ),
        (steps * (alpha + beta * size * n), "You charge N·S bytes a step: too many."),
        (alpha + beta * each, f"That is one message; there are {steps} steps, one after the other."),
        (alpha + beta * size, f"That is one message of S bytes; there are {steps} steps."),
        (steps * alpha, "The bytes are missing: add beta times the bytes of each message."),
        (steps / 2 * (alpha + beta * each), "That is one half: an all-reduce is a reduce-scatter and an all-gather."),
        (steps * beta * each, "alpha is missing: each message pays it."),
        (steps * (alpha + each / beta), "Units: beta is seconds per byte, so multiply by it."),
        (steps * (alpha + 8 * beta * each), "Units: beta is per byte, not per bit."),
    )
    close = next((text for value, text in guesses if value and abs(said - value) < 1e-3 * value), None)
    if close:
        return close
    factor = said / measured if measured else 0.0
    for unit in (1e3, 1e6, 1e9, 8.0):
        if factor > 0 and (abs(factor / unit - 1) < 0.02 or abs(factor * unit - 1) < 0.02):
            much = "much" if factor > 1 else "little"
            return f"Units: it is {times(unit)} too {much}. alpha is in seconds, beta in seconds per byte."
    return f"The steps are {steps}, one after the other, and a message of {each:,.0f} bytes takes alpha + beta·bytes."


# 2.8 ----------------------------------------------------------------------------------------------------------

METRICS = ("loss", "tokens")


def metric_cases(world_size: int, seed: int) -> list[Case]:
    """Two metrics a rank, the same names on all; odd ranks have found them in the other order."""
    random = generator(seed, world_size)
    made = []
    for kind in ("digits", "float64"):
        values = [
            {name: _metric(kind, rank, position, random) for position, name in enumerate(METRICS)}
            for rank in range(world_size)
        ]
        total = {name: torch.stack([v[name] for v in values]).sum(0) for name in METRICS}
        ordered = [dict(reversed(list(v.items()))) if rank % 2 else v for rank, v in enumerate(values)]
        made.append(Case(kind, tuple((v,) for v in ordered), (total,) * world_size))
    return made


def _metric(kind: str, rank: int, position: int, random: torch.Generator) -> torch.Tensor:
    if kind == "digits":
        return torch.tensor([10.0**rank + position * digits.PLACE], dtype=torch.float64)
    return torch.randn(1, dtype=torch.float64, generator=random)


def judge_metrics(attempt: Any) -> str | None:
    """Both sums right, by two collectives."""
    n = attempt.world_size
    for rank, output in enumerate(attempt.outputs):
        if not isinstance(output, dict) or not set(METRICS) <= set(output):
            return f"rank {rank} must return a dictionary with {' and '.join(METRICS)}."
        for name, right in attempt.case.expected[rank].items():
            if not torch.is_tensor(output[name]):
                return f"rank {rank}: `{name}` must be a tensor, not {values.shown(output[name])}."
            if not torch.allclose(output[name], right, rtol=1e-10, atol=1e-12):
                return _mixed(attempt, rank, name, float(output[name]))
    counts = [len([c for c in record.collectives if c[0] == "all_reduce"]) for record in attempt.ranks]
    if set(counts) != {2}:
        called = number_of(counts[0], "all-reduce")
        return f"rank 0 called {called}: keep two, one a metric, in the same order on all {n} ranks."
    return None


def _mixed(attempt: Any, rank: int, name: str, value: float) -> str:
    n = attempt.world_size
    own = float(attempt.inputs()[rank][name])
    if value == own:
        return f"`{name}` on rank {rank} is still its own: it was never reduced."
    number = digits.read(value, n) if attempt.case.kind == "digits" else None
    if attempt.case.kind != "digits" or (number and set(number.counts) == {1}):
        odd = ranks_text(r for r in range(n) if r % 2)
        return (
            f"`{name}` on rank {rank} is mixed with the other metric: in the same call {odd} reduced something else. "
            "Nothing hangs, as the shapes agree. All ranks must go through the names in one order."
        )
    shown = number.text if number else f"{value:.6g}"
    return f"`{name}` on rank {rank} is `{shown}`, where `{'1' * n}` is right: every rank's number once."


EXERCISES = (
    Exercise(
        id="2.6",
        function="recursive_doubling",
        title="recursive doubling",
        lesson=LESSON,
        sitting="02B",
        difficulty=3,
        minutes=12,
        task="Sum x over N = 2^k ranks, in place, in log2 N steps: swap all of x with a partner, add; next partner.",
        cases=vectors(all_reduced, 0, pieces=False),
        sizes=(8, 1, 2, 4),
        output="argument",
        traffic=doubling_traffic,
        formula="log2(N)·S",
        script=lambda n, rank: [Sent(other) for other in partners(n, rank)],
        rules=(same_partner, not_mutual, not_one_bit, too_many_steps),
        same_bits=True,
        blocked="Partners are mutual: flip one bit of the rank, rank ^ 2^k. And in each step both send and receive: "
        "start the send with isend, then receive, then wait.",
        beyond="In step k the partner is rank ^ 2^k, one bit of the number flipped: always another rank below N.",
        verified="{messages} steps on 8 ranks = log2 N; {bytes} bytes per rank = log2(N)·S; the same bits everywhere",
        hints=(
            "After one step pairs know their sum. Whom must a pair meet next, so that four ranks know theirs?",
            "In step k the partner is the rank whose number differs in bit k: rank ^ (1 << k).",
            "Send x with isend, receive into another tensor, wait, and only then add: x must not change while sent.",
        ),
    ),
    Exercise(
        id="2.7",
        function="bill",
        title="the bill from alpha and beta",
        lesson=LESSON,
        sitting="02B",
        difficulty=2,
        minutes=10,
        task="Seconds of an all-reduce by ring and by recursive doubling, from N, S, alpha (s) and beta (s/byte).",
        cases=bill_cases,
        call=both_bills,
        judge=judge_bill,
        sizes=(1,),
        verified="within 15% of slow motion for 5 machines, the right winner on each side",
        hints=(
            "A message of m bytes takes alpha + beta·m. Count the messages that have to come one after the other.",
            "The ring takes 2(N-1) steps with one chunk each; doubling takes log2 N steps with the whole vector each.",
            "2(N-1)·(alpha + beta·S/N) and log2 N·(alpha + beta·S).",
        ),
    ),
    Exercise(
        id="2.8",
        function="sum_metrics",
        title="find the bug: the silent swap",
        lesson=LESSON,
        sitting="02B",
        difficulty=2,
        minutes=8,
        task="Two metrics are summed by two all-reduces, and come out mixed. Nothing hangs. Find out why, mend it.",
        cases=metric_cases,
        judge=judge_metrics,
        keeps="metrics",
        sizes=(4, 3, 1, 2),
        allows=frozenset({"all_reduce", "barrier"}),
        verified="both sums right, by two collectives",
        hints=(
            "Print the names in the order in which each rank goes through them.",
            "A collective has no name on the wire: the first call of one rank meets the first call of the others.",
            "Go through the names in an order that does not depend on the rank: sorted(metrics).",
        ),
    ),
)
