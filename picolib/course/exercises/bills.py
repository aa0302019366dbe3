"""Exercise 2.7: the bill of an all-reduce from alpha and beta, held against slow motion, message by message."""

from __future__ import annotations

import math
from typing import Any

from picolib.course import replay, values
from picolib.course.exercise import Case, Exercise
from picolib.course.words import times


def log2(n: int) -> int:
    """The exponent of a power of two."""
    return n.bit_length() - 1


def partners(n: int, rank: int) -> list[int]:
    """Whom a rank meets in recursive doubling, step by step: its number with one bit flipped."""
    return [rank ^ (1 << k) for k in range(log2(n))]


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


def steps_of(algorithm: str, n: int, size: int) -> tuple[int, float]:
    """How many messages come one after the other, and the bytes of each."""
    return (2 * (n - 1), size / n) if algorithm == "ring" else (log2(n), size)


def formula_seconds(algorithm: str, n: int, size: int, alpha: float, beta: float) -> float:
    """The same from the formula: 2(N-1)·(alpha + beta·S/N), or log2 N·(alpha + beta·S)."""
    steps, each = steps_of(algorithm, n, size)
    return steps * (alpha + beta * each)


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
        if not abs(said - measured) <= 0.15 * measured:  # a NaN is never <=
            what = f"{algorithm} on {n} ranks, {size:,} bytes, alpha = {alpha:g} s, beta = {beta:g} s/byte"
            why = _why(algorithm, said, measured, attempt.case.inputs[0])
            return f"{what}: you say {said:.3g} s, slow motion takes {measured:.3g} s. {why}"
    said = attempt.outputs[0]
    if (said[0] < said[1]) != (right[0] < right[1]):
        return f"on {n} ranks and {size:,} bytes you let the wrong algorithm win."
    return None


def _why(algorithm: str, said: float, measured: float, arguments: tuple) -> str:
    steps, each = steps_of(algorithm, *arguments[:2])
    if not math.isfinite(said):
        return "Seconds are a finite number: is something divided by 0, or infinite?"
    if said < 0:
        return f"A message takes alpha + beta·bytes: {steps} times that sum, in which nothing is subtracted."
    if said == 0:
        return "A bill is more than 0 seconds, a fraction of one here: no rounding to whole numbers."
    guesses = _guesses(algorithm, *arguments)
    close = next((text for value, text in guesses if value and abs(said - value) < 1e-3 * value), None)
    if close:
        return close
    factor = said / measured if measured else 0.0
    for unit in (1e3, 1e6, 1e9, 8.0):
        if factor > 0 and (abs(factor / unit - 1) < 0.02 or abs(factor * unit - 1) < 0.02):
            much = "much" if factor > 1 else "little"
            return f"Units: it is {times(unit)} too {much}. alpha is in seconds, beta in seconds per byte."
    return f"The steps are {steps}, one after the other, and a message of {each:,.0f} bytes takes alpha + beta·bytes."


def _guesses(algorithm: str, n: int, size: int, alpha: float, beta: float) -> list[tuple[float, str]]:
    """Bills that come of known mistakes, and what to say."""
    steps, each = steps_of(algorithm, n, size)
    other = next(a for a in ALGORITHMS if a != algorithm)
    return [
        (formula_seconds(other, n, size, alpha, beta), f"That is the bill of {other}."),
        (
            steps / (n - 1) * n * (alpha + beta * each),
            f"That is one step too many in each half: N - 1 of them, {steps} in all.",
        ),
        (n * (alpha + beta * each), f"That is N steps; there are {steps}."),
        ((steps + 1) * (alpha + beta * each), f"That is one step too many: {steps} of them."),
        ((steps - 1) * (alpha + beta * each), f"That is one step too few: {steps} of them."),
        (steps * n * (alpha + beta * each), "That is the sum over all ranks; they work at the same time."),
        (steps * (alpha + beta * size / n), "That is a chunk in each step; doubling sends the whole vector."),
        (math.log(n) * (alpha + beta * each), f"That is math.log(n) steps; math.log2(n) counts doublings: {steps}."),
        (
            math.log10(n) * (alpha + beta * each),
            f"That is math.log10(n) steps; math.log2(n) counts doublings: {steps}.",
        ),
        (steps * max(alpha, beta * each), "A message pays both: alpha and beta·bytes are added, not the larger taken."),
        (steps * (beta + alpha * each), "alpha and beta have changed places."),
        (alpha + steps * beta * each, f"You charge one alpha: each of the {steps} steps pays it."),
        (
            steps * (alpha + beta * size),
            "A message of the ring is one chunk, S/N bytes, and not all of S.",
        ),
        (steps * (alpha + beta * size * n), "You charge N·S bytes a step: too many."),
        (alpha + beta * each, f"That is one message; there are {steps} steps, one after the other."),
        (alpha + beta * size, f"That is one message of S bytes; there are {steps} steps."),
        (steps * alpha, "The bytes are missing: add beta times the bytes of each message."),
        (steps / 2 * (alpha + beta * each), "That is one half: an all-reduce is a reduce-scatter and an all-gather."),
        (steps * beta * each, "alpha is missing: each message pays it."),
        (steps * (alpha + each / beta), "Units: beta is seconds per byte, so multiply by it."),
        (steps * (alpha + 8 * beta * each), "Units: beta is per byte, not per bit."),
    ]


EXERCISE = Exercise(
    id="2.7",
    function="bill",
    title="the bill from alpha and beta",
    lesson="02B_cost_and_choice",
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
)
