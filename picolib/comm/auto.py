"""Which algorithms there are, and which one `algorithm="auto"` takes.

The choice is a pure function of what every rank of the group knows alike: the collective, its size in bytes, the
number of ranks, and whether the call is asynchronous. The constants are shipped, not measured at the start, so that
a run gives the same bits on every machine. They come from `benchmarks/collectives.py` on gloo with several ranks on
two cores. There, what counts is how many messages all ranks together send (each wakes up a process) and how many
bytes; on a network where every rank has its own wire, it would be the messages and bytes of the busiest rank, and a
ring would win for long vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from picolib.comm import all_gather, all_reduce, all_to_all, barrier, broadcast, reduce_scatter, rooted
from picolib.comm.hierarchical import hierarchical

ALGORITHMS: dict[str, dict[str, Callable]] = {
    "all_reduce": {
        "naive": all_reduce.naive,
        "ring": all_reduce.ring,
        "recursive_doubling": all_reduce.recursive_doubling,
        "halving_doubling": all_reduce.halving_doubling,
        "tree": all_reduce.tree,
        "one_shot": all_reduce.one_shot,
        "direct": all_reduce.direct,
        "hierarchical": hierarchical,
    },
    "broadcast": {
        "naive": broadcast.naive,
        "chain": broadcast.chain,
        "binomial": broadcast.binomial,
        "scatter_allgather": broadcast.scatter_allgather,
    },
    "all_gather": {
        "naive": all_gather.naive,
        "ring": all_gather.ring,
        "recursive_doubling": all_gather.recursive_doubling,
        "direct": all_gather.direct,
        "bruck": all_gather.bruck,
    },
    "reduce_scatter": {
        "naive": reduce_scatter.naive,
        "ring": reduce_scatter.ring,
        "recursive_halving": reduce_scatter.recursive_halving,
        "direct": reduce_scatter.direct,
    },
    "all_to_all": {
        "naive": all_to_all.naive,
        "pairwise": all_to_all.pairwise,
        "direct": all_to_all.direct,
        "bruck": all_to_all.bruck,
    },
    "reduce": {"flat": rooted.reduce_flat, "binomial": rooted.reduce_binomial},
    "gather": {"flat": rooted.gather_flat, "binomial": rooted.gather_binomial},
    "scatter": {"flat": rooted.scatter_flat, "binomial": rooted.scatter_binomial},
    "barrier": {"dissemination": barrier.dissemination},
}

# torch's other names for the same collectives.
SAME_AS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}

KB, MB = 1 << 10, 1 << 20


def algorithms(name: str) -> list[str]:
    """The algorithms of a collective, by torch's name for it; "native" is torch's own.

    >>> algorithms("reduce_scatter_tensor")
    ['naive', 'ring', 'recursive_halving', 'direct', 'native']
    """
    name = SAME_AS.get(name, name)
    if name not in ALGORITHMS:
        raise ValueError(f"name must be one of {', '.join([*ALGORITHMS, *SAME_AS])}, got {name!r}.")
    return [*ALGORITHMS[name], "native"]


def choose(name: str, nbytes: int, size: int, async_op: bool = False) -> str:
    """The algorithm that "auto" takes on gloo.

    Args:
        name: the collective ("all_reduce", "broadcast", …).
        nbytes: of the vector; for all-gather of all blocks together, for reduce-scatter and all-to-all of all
            chunks together, for gather and scatter of one rank's block.
        size: the number of ranks.
        async_op: whether the call is asynchronous, as it is on all ranks or on none.
    """
    choices = {**_CHOICES, **_ASYNC_CHOICES} if async_op else _CHOICES
    return choices[name](nbytes, size)


_CHOICES: dict[str, Callable[[int, int], str]] = {
    # A tree moves as many bytes as a ring, all ranks together, in the fewest messages of all.
    "all_reduce": lambda nbytes, size: "one_shot" if size == 2 and nbytes <= MB else "tree",
    "broadcast": lambda nbytes, size: "naive" if nbytes <= 256 * KB else "binomial",
    "all_gather": lambda nbytes, size: "naive" if nbytes <= MB and size > 2 else "direct",
    "reduce_scatter": lambda nbytes, size: "naive" if nbytes <= MB else "direct",
    "all_to_all": lambda nbytes, size: "naive" if nbytes <= 64 * KB and size > 4 else "direct",
    "reduce": lambda nbytes, size: "binomial",
    "gather": lambda nbytes, size: "flat",
    "scatter": lambda nbytes, size: "flat",
    "barrier": lambda nbytes, size: "dissemination",
}

# Beside a computation, what counts is how often somebody must look before the next step can start: fewest steps win,
# since the backend moves all messages of a step by itself. (Measured by `benchmarks/overlap.py`.)
_ASYNC_CHOICES: dict[str, Callable[[int, int], str]] = {
    "all_reduce": lambda nbytes, size: "one_shot" if size == 2 and nbytes <= MB else "direct",
    "all_gather": lambda nbytes, size: "direct",
    "reduce_scatter": lambda nbytes, size: "direct",
    "all_to_all": lambda nbytes, size: "direct",
}
