"""Playing messages again in slow motion: when would each rank be through if a message took alpha + beta·bytes?

A pure function of what ranks started and waited for, in order. A message begins when both its ends have been started
and the link is free: a rank sends over a link of its own one message at a time. Both ends are over when it has arrived.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence


def makespan(ranks: Sequence[Sequence[list]], seconds: Callable[[int], float]) -> float:
    """When the last rank is through.

    ranks: for each rank its entries (see `notebook.Notebook`). seconds: bytes of a message -> how long it takes.
    Messages that nobody sends are waited for in vain: their receivers simply stop.
    """
    clock = [0.0] * len(ranks)
    link = defaultdict(float)  # (from, to) -> free again at
    position = [0] * len(ranks)
    sends: dict[tuple[int, int], deque] = defaultdict(deque)  # (from, to) -> (entry's number, started at, bytes)
    receives: dict[tuple[int, int], deque] = defaultdict(deque)
    done: dict[tuple[int, int], float] = {}
    moving = True
    while moving:
        moving = False
        for rank, entries in enumerate(ranks):
            while position[rank] < len(entries):
                entry = entries[position[rank]]
                if entry[0] == "wait" and not _over(rank, entry[1], clock, done):
                    break
                _start(rank, entry, clock, link, sends, receives, done, seconds)
                position[rank] += 1
                moving = True
    return max(clock)


def _over(rank: int, number: int, clock: list[float], done: dict) -> bool:
    if (rank, number) not in done:
        return False
    clock[rank] = max(clock[rank], done[(rank, number)])
    return True


def _start(rank, entry, clock, link, sends, receives, done, seconds) -> None:
    if entry[0] not in ("send", "recv"):
        return
    kind, peer, nbytes, number = entry[:4]
    pair = (rank, peer) if kind == "send" else (peer, rank)
    (sends if kind == "send" else receives)[pair].append((number, clock[rank], nbytes))
    while sends[pair] and receives[pair]:
        (sent, ready, nbytes), (received, waiting, _) = sends[pair].popleft(), receives[pair].popleft()
        link[pair] = max(ready, waiting, link[pair]) + seconds(nbytes)
        done[(pair[0], sent)] = done[(pair[1], received)] = link[pair]


def steps(ranks: Sequence[Sequence[list]]) -> int:
    """Steps on the critical path: the time when each message takes one."""
    return round(makespan(ranks, lambda nbytes: 1.0))
