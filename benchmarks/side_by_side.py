"""Timing several ways of doing the same thing, in turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

Way = Callable[[], object]


def alternate(
    ways: Mapping[str, Way], rounds: int, turn_seconds: float = 0.01, most_calls: int = 50
) -> dict[str, list[float]]:
    """Seconds a call of each way takes, one figure a round: that of the slowest rank. All ranks call this together.

    In each round every way has one turn, beginning with another one each time. A turn is as many calls as fill
    `turn_seconds` (at most `most_calls`), after a barrier.
    """
    calls = _agreed_calls(ways, turn_seconds, most_calls)
    names, seconds = list(ways), {name: [] for name in ways}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(_time(ways[name], calls) / calls)
    return {name: _slowest_rank(found) for name, found in seconds.items()}


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median round of each way."""
    return {name: statistics.median(found) for name, found in seconds.items()}


def _agreed_calls(ways: Mapping[str, Way], turn_seconds: float, most_calls: int) -> int:
    for way in ways.values():
        way()  # the first call connects pairs and allocates
    slowest = max(_slowest_rank([_time(way, 1) for way in ways.values()]))
    return max(1, min(most_calls, int(turn_seconds / slowest)))


def _time(way: Way, calls: int) -> float:
    dist.barrier()
    started = time.perf_counter()
    for _ in range(calls):
        way()
    return time.perf_counter() - started


def _slowest_rank(seconds: list[float]) -> list[float]:
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()
