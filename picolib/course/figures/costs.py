"""What an all-reduce costs in the alpha-beta model: a latency for each message, a time for each byte.

    time = messages · α + bytes · β

α is the latency of one message in seconds, β the seconds per byte (1 / bandwidth). Both are counted on the critical
path: in each step the busiest rank sends, and receives, one message at a time, and the next step waits for it:
Hockney (1994), as used by Thakur, Rabenseifner and Gropp (2005). With `overlap=True` the messages of one round start
together and share one α, as on a network whose latency is travel time and not work; their bytes still pass one after
the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from picolib.course.figures import schedules


@dataclass(frozen=True)
class Cost:
    """For n ranks, on the critical path: messages, rounds, and bytes as a multiple of the tensor's size S."""

    messages: Callable[[int], int]
    rounds: Callable[[int], int]
    share: Callable[[int], float]
    formula: str

    def seconds(self, ranks: int, nbytes: float, alpha: float, beta: float, overlap: bool = False) -> float:
        """How long it takes to all-reduce `nbytes` on `ranks` ranks."""
        latencies = self.rounds(ranks) if overlap else self.messages(ranks)
        return latencies * alpha + self.share(ranks) * nbytes * beta


def critical(steps: schedules.Steps) -> tuple[int, int, float]:
    """Messages, rounds and share of any schedule, counted: what the formulas below are held against."""
    chunks = 1 + max((c for step in steps for m in step for c in m.chunks), default=0)
    messages, share = 0, 0.0
    for step in steps:
        ends = [("from", m.src, len(m.chunks)) for m in step] + [("to", m.dst, len(m.chunks)) for m in step]
        messages += max(Counter((way, rank) for way, rank, _ in ends).values())
        load: Counter[tuple[str, int]] = Counter()
        for way, rank, count in ends:
            load[way, rank] += count
        share += max(load.values()) / chunks
    return messages, len(steps), share


@lru_cache(maxsize=64)
def _tree(n: int) -> tuple[int, int, float]:
    return critical(schedules.steps("all_reduce", "tree", n))


def _doublings(n: int) -> int:
    """log2 n, and two more where n is no power of two: the extra ranks hand over first and are told at the end."""
    return int(math.log2(n)) + 2 * bool(n & (n - 1))


def _others(n: int) -> int:
    return n - 1


def _twice_others(n: int) -> int:
    return 2 * (n - 1)


def _two_rounds(n: int) -> int:
    return 2 if n > 1 else 0


def _two_halves(n: int) -> float:
    return 2 * (n - 1) / n


def _there_and_back(n: int) -> int:
    return 2 * int(math.log2(n)) + 2 * bool(n & (n - 1))


def _halvings(n: int) -> float:
    power = 1 << int(math.log2(n))
    return _two_halves(power) + 2 * bool(n > power)


ALL_REDUCE = {
    "naive": Cost(_twice_others, _two_rounds, _twice_others, "2(N-1)·(α + S·β)"),
    "one_shot": Cost(_others, lambda n: min(n - 1, 1), _others, "(N-1)·(α + S·β)"),
    "tree": Cost(lambda n: _tree(n)[0], lambda n: _tree(n)[1], lambda n: _tree(n)[2], "≤ 4·log2(N)·(α + S·β)"),
    "recursive_doubling": Cost(_doublings, _doublings, _doublings, "log2(N)·(α + S·β)"),
    "halving_doubling": Cost(_there_and_back, _there_and_back, _halvings, "2·log2(N)·α + 2(N-1)/N·S·β"),
    "ring": Cost(_twice_others, _twice_others, _two_halves, "2(N-1)·(α + S/N·β)"),
    "direct": Cost(_twice_others, _two_rounds, _two_halves, "2(N-1)·(α + S/N·β)"),
}


def times(
    ranks: int, nbytes: float, alpha: float, beta: float, names: Sequence[str] = (), overlap: bool = False
) -> dict[str, float]:
    """Seconds of each algorithm (all of them by default)."""
    return {name: ALL_REDUCE[name].seconds(ranks, nbytes, alpha, beta, overlap) for name in names or ALL_REDUCE}


def winners(
    ranks: int, sizes: Sequence[float], alpha: float, beta: float, names: Sequence[str] = (), overlap: bool = False
) -> list[tuple[float, float, str]]:
    """Which algorithm is the fastest from which size to which, over increasing sizes; the first named of a tie."""
    ranges: list[tuple[float, float, str]] = []
    for size in sizes:
        taken = times(ranks, size, alpha, beta, names, overlap)
        best = min(taken, key=taken.__getitem__)
        if ranges and ranges[-1][2] == best:
            ranges[-1] = (ranges[-1][0], size, best)
        else:
            ranges.append((size, size, best))
    return [(a, ranges[i + 1][0] if i + 1 < len(ranges) else b, name) for i, (a, b, name) in enumerate(ranges)]
