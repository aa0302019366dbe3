"""Playing messages again in slow motion: when would each rank be through if a message took alpha + beta·bytes?

A pure function of what ranks started and waited for, in order. A rank sends over a link of its own one message at
a time; a receive is over when the message has arrived; a send when it has left.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence


def makespan(ranks: Sequence[Sequence[list]], seconds: Callable[[int], float]) -> float:
    """When the last rank is through.

    ranks: for each rank its entries (see `observe.Notebook`). seconds: bytes of a message -> how long it takes.
    Messages that nobody sends are waited for in vain: their receivers simply stop.
    """
    clock = [0.0] * len(ranks)
    link = defaultdict(float)  # (from, to) -> free again at
    position = [0] * len(ranks)
    arrivals: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    receives: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    done: dict[tuple[int, int], float] = {}
    moving = True
    while moving:
        moving = False
        for rank, entries in enumerate(ranks):
            while position[rank] < len(entries):
                entry = entries[position[rank]]
                if entry[0] == "wait" and not _over(rank, entry[1], clock, done):
                    break
                _start(rank, entry, clock, link, arrivals, receives, done, seconds)
                position[rank] += 1
                moving = True
    return max(clock)


def _over(rank: int, number: int, clock: list[float], done: dict) -> bool:
    if (rank, number) not in done:
        return False
    clock[rank] = max(clock[rank], done[(rank, number)])
    return True


def _start(rank, entry, clock, link, arrivals, receives, done, seconds) -> None:
    kind = entry[0]
    if kind == "send":
        pair = rank, entry[1]
        link[pair] = max(clock[rank], link[pair]) + seconds(entry[2])
        done[(rank, entry[3])] = link[pair]
        arrivals[pair].append(link[pair])
    elif kind == "recv":
        pair = entry[1], rank
        receives[pair].append(entry[3])
    else:
        return
    while arrivals[pair] and receives[pair]:
        done[(pair[1], receives[pair].popleft())] = arrivals[pair].popleft()


def steps(ranks: Sequence[Sequence[list]]) -> int:
    """Steps on the critical path: the time when each message takes one."""
    return round(makespan(ranks, lambda nbytes: 1.0))
