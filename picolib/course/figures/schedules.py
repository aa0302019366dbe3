"""The steps of each algorithm as data, for pictures of any number of ranks without running them.

They are written from the algorithms' definitions, not read from `picolib.comm`; a test runs the collectives with
trace=True and holds the two against each other. Sources: rings, Patarasuk and Yuan (2009); recursive doubling and
halving, Thakur, Rabenseifner and Gropp (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    for src in range(n):
        for dst in range(n):
            if src != dst:
                yield Move(0, src, dst, (dst,), adds=True)
                yield Move(1, src, dst, (src,), adds=False)


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


def recursive_doubling(n: int) -> Iterator[Move]:
    """Partners exchange everything, distances double; ranks beyond a power of two hand over to a neighbour first."""
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    members = [2 * i if i < extra else i + extra for i in range(power)]
    step = 0
    if extra:
        yield from (Move(0, 2 * i + 1, 2 * i, (0,), adds=True) for i in range(extra))
        step = 1
    distance = 1
    while distance < power:
        for i, rank in enumerate(members):
            yield Move(step, rank, members[i ^ distance], (0,), adds=True)
        step, distance = step + 1, 2 * distance
    yield from (Move(step, 2 * i, 2 * i + 1, (0,), adds=False) for i in range(extra))


def tree(n: int) -> Iterator[Move]:
    """A binomial tree: sums travel up to rank 0 (each step halves who still holds parts), the result travels down."""
    levels = [1 << k for k in range((n - 1).bit_length())]
    for step, distance in enumerate(levels):
        for rank in range(distance, n, 2 * distance):
            yield Move(step, rank, rank - distance, (0,), adds=True)
    for step, distance in enumerate(reversed(levels), len(levels)):
        for rank in range(distance, n, 2 * distance):
            yield Move(step, rank - distance, rank, (0,), adds=False)


def binomial(n: int) -> Iterator[Move]:
    """Broadcast down the same tree: the number of ranks that have it doubles at each step."""
    levels = [1 << k for k in reversed(range((n - 1).bit_length()))]
    for step, distance in enumerate(levels):
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
        "tree": tree,
    },
    "reduce_scatter": {"ring": ring_reduce_scatter},
    "all_gather": {"ring": ring_all_gather},
    "broadcast": {"binomial": binomial, "naive": flat, "chain": chain},
}


def steps(collective: str, algorithm: str, ranks: int) -> Steps:
    """The moves of each step. Raises ValueError for a name that has no picture."""
    if algorithm not in SCHEDULES.get(collective, {}):
        known = ", ".join(f"{c}[{a}]" for c, algorithms in SCHEDULES.items() for a in algorithms)
        raise ValueError(f"{collective}[{algorithm}] has no step-through; there is {known}")
    return by_step(SCHEDULES[collective][algorithm](ranks))
