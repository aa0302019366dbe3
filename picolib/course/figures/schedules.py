"""The steps of each algorithm as data, for pictures of any number of ranks without running them.

They are written from the algorithms' definitions, not read from `picolib.comm`; a test runs the collectives with
trace=True and holds the two against each other. Sources: rings, Patarasuk and Yuan (2009); recursive doubling and
halving, Rabenseifner (2004).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from picolib.course.figures.moves import Move, by_step

Steps = list[list[Move]]


def ring_reduce_scatter(n: int, first: int = 0) -> Iterator[Move]:
    """Each step: my right neighbour adds the chunk that I send; I end with the sum of chunk number rank."""
    for step in range(n - 1):
        for rank in range(n):
            yield Move(first + step, rank, (rank + 1) % n, ((rank - step - 1) % n,), adds=True)


def ring_all_gather(n: int, first: int = 0) -> Iterator[Move]:
    """Each step: I pass on the finished chunk that I got last, beginning with my own."""
    for step in range(n - 1):
        for rank in range(n):
            yield Move(first + step, rank, (rank + 1) % n, ((rank - step) % n,), adds=False)


def ring(n: int) -> Iterator[Move]:
    """All-reduce = reduce-scatter + all-gather: 2(n-1) steps of one chunk each."""
    yield from ring_reduce_scatter(n)
    yield from ring_all_gather(n, first=n - 1)


def direct(n: int) -> Iterator[Move]:
    """The same two halves without a ring: everyone sends each chunk straight to where it belongs."""
    yield from direct_reduce_scatter(n)
    yield from (replace(move, step=1) for move in direct_all_gather(n))


def naive(n: int) -> Iterator[Move]:
    """Everything goes to rank 0, which adds it up and sends the sum to everyone."""
    for rank in range(1, n):
        yield Move(0, rank, 0, (0,), adds=True)
        yield Move(1, 0, rank, (0,), adds=False)


def one_shot(n: int) -> Iterator[Move]:
    """Everyone sends everything to everyone, once."""
    for src in range(n):
        for dst in range(n):
            if src != dst:
                yield Move(0, src, dst, (0,), adds=True)


def places(n: int) -> list[int]:
    """The ranks that take part where a power of two is needed: of the first pairs only the even ones."""
    power = 1 << (n.bit_length() - 1)
    return [2 * p if p < n - power else p + n - power for p in range(power)]


def _fold_in(n: int, chunks: tuple[int, ...]) -> Iterator[Move]:
    yield from (Move(0, 2 * i + 1, 2 * i, chunks, adds=True) for i in range(n - len(places(n))))


def _fold_out(n: int, step: int, chunks: Callable[[int], tuple[int, ...]]) -> Iterator[Move]:
    for i in range(n - len(places(n))):
        yield Move(step, 2 * i, 2 * i + 1, chunks(2 * i + 1), adds=False)


def _exchanges(ranks: list[int], distances: list[int], first: int, sends: Callable, adds: bool) -> Iterator[Move]:
    """At each distance, the ranks whose places differ in that bit exchange `sends(place, distance)`."""
    for step, distance in enumerate(distances, first):
        for place, rank in enumerate(ranks):
            yield Move(step, rank, ranks[place ^ distance], sends(place, distance), adds)


def recursive_doubling(n: int) -> Iterator[Move]:
    """Partners exchange everything, distances double; ranks beyond a power of two hand over to a neighbour first."""
    ranks, levels, folds = places(n), _powers(len(places(n))), int(len(places(n)) < n)
    yield from _fold_in(n, (0,))
    yield from _exchanges(ranks, levels, folds, lambda place, distance: (0,), adds=True)
    yield from _fold_out(n, folds + len(levels), lambda rank: (0,))


def halving_doubling(n: int) -> Iterator[Move]:
    """Partners exchange the half that the other will finish, distances halve; then finished parts, distances double."""
    ranks, power, folds = places(n), len(places(n)), int(len(places(n)) < n)
    levels = _powers(power)

    def aligned(place: int, count: int) -> tuple[int, ...]:
        first = place - place % count
        return tuple(range(first, first + count))

    everything = tuple(range(power))
    yield from _fold_in(n, everything)
    halves = levels[::-1]
    yield from _exchanges(ranks, halves, folds, lambda place, distance: aligned(place ^ distance, distance), adds=True)
    yield from _exchanges(ranks, levels, folds + len(levels), aligned, adds=False)
    yield from _fold_out(n, folds + 2 * len(levels), lambda rank: everything)


def _powers(limit: int) -> list[int]:
    """1, 2, 4, … below the limit."""
    return [1 << k for k in range((limit - 1).bit_length())]


def tree(n: int) -> Iterator[Move]:
    """The children of r are 2r+1 and 2r+2: sums travel up once both have arrived, then the result travels down."""
    height = {}
    for rank in reversed(range(n)):
        height[rank] = 1 + max((height[c] for c in (2 * rank + 1, 2 * rank + 2) if c < n), default=-1)
    for rank in range(1, n):
        yield Move(height[rank], rank, (rank - 1) // 2, (0,), adds=True)
        yield Move(height[0] + (rank + 1).bit_length() - 2, (rank - 1) // 2, rank, (0,), adds=False)


def direct_reduce_scatter(n: int) -> Iterator[Move]:
    """Everyone sends chunk r straight to rank r."""
    yield from (Move(0, src, dst, (dst,), adds=True) for src in range(n) for dst in range(n) if src != dst)


def direct_all_gather(n: int) -> Iterator[Move]:
    """Everyone sends its own chunk to everyone."""
    yield from (Move(0, src, dst, (src,), adds=False) for src in range(n) for dst in range(n) if src != dst)


def binomial(n: int) -> Iterator[Move]:
    """Broadcast down the same tree: the number of ranks that have it doubles at each step."""
    for step, distance in enumerate(reversed(_powers(n))):
        for rank in range(distance, n, 2 * distance):
            yield Move(step, rank - distance, rank, (0,), adds=False)


def flat(n: int) -> Iterator[Move]:
    """Broadcast by rank 0 sending to everyone itself."""
    yield from (Move(0, 0, rank, (0,), adds=False) for rank in range(1, n))


def chain(n: int) -> Iterator[Move]:
    """Broadcast from neighbour to neighbour."""
    yield from (Move(rank, rank, rank + 1, (0,), adds=False) for rank in range(n - 1))


SCHEDULES: dict[str, dict[str, Callable[[int], Iterator[Move]]]] = {
    "all_reduce": {
        "ring": ring,
        "direct": direct,
        "naive": naive,
        "one_shot": one_shot,
        "recursive_doubling": recursive_doubling,
        "halving_doubling": halving_doubling,
        "tree": tree,
    },
    "reduce_scatter": {"ring": ring_reduce_scatter, "direct": direct_reduce_scatter},
    "all_gather": {"ring": ring_all_gather, "direct": direct_all_gather},
    "broadcast": {"binomial": binomial, "naive": flat, "chain": chain},
}


def steps(collective: str, algorithm: str, ranks: int) -> Steps:
    """The moves of each step. Raises ValueError for a name that has no picture."""
    if algorithm not in SCHEDULES.get(collective, {}):
        known = ", ".join(f"{c}[{a}]" for c, algorithms in SCHEDULES.items() for a in algorithms)
        raise ValueError(f"{collective}[{algorithm}] has no step-through; there is {known}")
    return by_step(SCHEDULES[collective][algorithm](ranks))
