"""What each algorithm sends: the formulas, without any communication. A test holds them against the trace.

`c` is the list of chunk lengths, one per rank; n = len(c). Each formula gives the lengths of the messages that one
rank sends, in elements. Messages of length 0 are not sent and do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from picolib.comm import auto
from picolib.comm.all_reduce import SEGMENT_BYTES, TREE_SEGMENT_BYTES
from picolib.comm.broadcast import CHAIN_SEGMENT_BYTES
from picolib.comm.chunks import chunk_sizes, segment_sizes
from picolib.comm.fold import fold
from picolib.comm.hierarchical import node_size
from picolib.comm.rooted import children, subtree_size

Lengths = list[int]


def messages_sent(
    name: str,
    algorithm: str,
    length: int | Sequence[int],
    size: int,
    rank: int,
    *,
    root: int = 0,
    itemsize: int = 4,
    ranks_per_node: int | None = None,
) -> Lengths:
    """The sizes in bytes of the messages that one rank sends in a collective.

    Args:
        name, algorithm: see `algorithms(name)`.
        length: elements of the vector (all_reduce, broadcast, reduce), or of one rank's block or chunk (the others);
            for all_gather, reduce_scatter and all_to_all also a list, one entry per rank (what this rank sends).
        size, rank, root: number of ranks, and two of them (places in the group).
        itemsize: bytes per element. It matters where an algorithm cuts a vector into segments of so many bytes.
        ranks_per_node: for all_reduce's "hierarchical".

    >>> messages_sent("all_reduce", "ring", 1000, size=4, rank=0)
    [1000, 1000, 1000, 1000, 1000, 1000]
    >>> messages_sent("all_reduce", "naive", 1000, size=4, rank=0)
    [4000, 4000, 4000]
    """
    name = auto.SAME_AS.get(name, name)
    if algorithm == "native" or algorithm not in auto.algorithms(name):
        raise ValueError(f"algorithm must be one of {', '.join(auto.ALGORITHMS[name])}, got {algorithm!r}.")
    if name in ("all_reduce", "broadcast", "reduce"):
        lengths = _VECTOR[name, algorithm](length, size, rank, root, itemsize, ranks_per_node)
    elif name == "barrier":
        lengths, itemsize = [1] * (size - 1).bit_length(), 1
    else:
        chunks = [length] * size if isinstance(length, int) else list(length)
        lengths = _CHUNKS[name, algorithm](chunks, rank, root)
    return [count * itemsize for count in lengths if count]


def bytes_sent(name: str, algorithm: str, length: int | Sequence[int], size: int, rank: int, **more: int | None) -> int:
    """The bytes that one rank sends in a collective: the sum of `messages_sent`, which explains the arguments.

    >>> [bytes_sent("all_reduce", "ring", 1001, size=4, rank=r) for r in range(4)]
    [6004, 6008, 6008, 6004]
    """
    return sum(messages_sent(name, algorithm, length, size, rank, **more))


# --- all-gather and reduce-scatter ---------------------------------------------------------------------------------


def _all_but(c: Lengths, rank: int) -> Lengths:
    return [length for r, length in enumerate(c) if r != rank]


def _ring_all_gather(c: Lengths, rank: int, root: int = 0) -> Lengths:
    return _all_but(c, (rank + 1) % len(c))  # all pass by on their way to the right; its own the neighbour has


def _recursive_doubling(c: Lengths, rank: int, root: int = 0) -> Lengths:
    folded = fold(len(c))
    place = folded.place_of(rank)
    if place is None:
        return [c[rank]]
    sent, distance = [], 1
    while distance < folded.power:
        first = place - place % distance
        sent.append(sum(c[folded.rank_at(first) : folded.rank_at(first + distance)]))
        distance *= 2
    return sent + ([sum(c[: rank + 1]), sum(c[rank + 2 :])] if folded.has_pair(rank) else [])


def _recursive_halving(c: Lengths, rank: int, root: int = 0) -> Lengths:
    folded = fold(len(c))
    place = folded.place_of(rank)
    if place is None:
        return [sum(c)]
    sent, width = [], folded.power // 2
    while width:
        given = (place ^ width) & -width  # where the partner's half begins
        sent.append(sum(c[folded.rank_at(given) : folded.rank_at(given + width)]))
        width //= 2
    return sent + ([c[rank + 1]] if folded.has_pair(rank) else [])


def _bruck_all_gather(c: Lengths, rank: int, root: int = 0) -> Lengths:
    have = [1 << k for k in range((len(c) - 1).bit_length())]
    return [min(h, len(c) - h) * c[0] for h in have]


def _bruck_all_to_all(c: Lengths, rank: int, root: int = 0) -> Lengths:
    hops = [1 << k for k in range((len(c) - 1).bit_length())]
    return [sum(1 for d in range(len(c)) if d & hop) * c[0] for hop in hops]


# --- reduce, gather, scatter ---------------------------------------------------------------------------------------


def _scatter_binomial(c: Lengths, rank: int, root: int) -> Lengths:
    n, distance = len(c), (rank - root) % len(c)
    return [subtree_size(child, n) * c[0] for child in children(distance, n)]


def _gather_binomial(c: Lengths, rank: int, root: int) -> Lengths:
    return [subtree_size((rank - root) % len(c), len(c)) * c[0]] if rank != root else []


_CHUNKS: dict[tuple[str, str], Callable[[Lengths, int, int], Lengths]] = {
    ("all_gather", "naive"): lambda c, rank, root: [c[rank]] if rank else [sum(c)] * (len(c) - 1),
    ("reduce_scatter", "naive"): lambda c, rank, root: [sum(c)] if rank else c[1:],
    ("all_to_all", "naive"): lambda c, rank, root: [sum(c)] if rank else [sum(c)] * (len(c) - 1),
    ("all_gather", "ring"): _ring_all_gather,
    ("all_gather", "recursive_doubling"): _recursive_doubling,
    ("all_gather", "direct"): lambda c, rank, root: [c[rank]] * (len(c) - 1),
    ("all_gather", "bruck"): _bruck_all_gather,
    ("reduce_scatter", "ring"): lambda c, rank, root: _all_but(c, rank),
    ("reduce_scatter", "recursive_halving"): _recursive_halving,
    ("reduce_scatter", "direct"): lambda c, rank, root: _all_but(c, rank),
    ("all_to_all", "pairwise"): lambda c, rank, root: _all_but(c, rank),
    ("all_to_all", "direct"): lambda c, rank, root: _all_but(c, rank),
    ("all_to_all", "bruck"): _bruck_all_to_all,
    ("gather", "flat"): lambda c, rank, root: [c[0]] if rank != root else [],
    ("gather", "binomial"): _gather_binomial,
    ("scatter", "flat"): lambda c, rank, root: _all_but(c, root) if rank == root else [],
    ("scatter", "binomial"): _scatter_binomial,
}


# --- vectors: all-reduce, broadcast, reduce ------------------------------------------------------------------------


def _naive(s: int, n: int, rank: int, *_: object) -> Lengths:
    return [s] * (n - 1) if rank == 0 else [s]


def _ring(s: int, n: int, rank: int, root: int, itemsize: int, *_: object) -> Lengths:
    sent = []
    for piece in segment_sizes(s, itemsize, SEGMENT_BYTES * n):
        c = chunk_sizes(piece, n)
        sent += _all_but(c, rank) + _ring_all_gather(c, rank)
    return sent


def _direct(s: int, n: int, rank: int, *_: object) -> Lengths:
    c = chunk_sizes(s, n)
    return _all_but(c, rank) + [c[rank]] * (n - 1)


def _tree(s: int, n: int, rank: int, root: int, itemsize: int, *_: object) -> Lengths:
    below = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
    return segment_sizes(s, itemsize, TREE_SEGMENT_BYTES) * (len(below) + (rank > 0))


def _folded(s: int, n: int, rank: int, inner: Callable[[int, int, int], Lengths]) -> Lengths:
    folded = fold(n)
    place = folded.place_of(rank)
    if place is None:
        return [s]
    return inner(s, folded.power, place) + [s] * folded.has_pair(rank)


def _doubling(s: int, n: int, rank: int, *_: object) -> Lengths:
    return _folded(s, n, rank, lambda s, p, place: [s] * (p.bit_length() - 1))


def _halving_doubling(s: int, n: int, rank: int, *_: object) -> Lengths:
    def inner(s: int, p: int, place: int) -> Lengths:
        c = chunk_sizes(s, p)
        return _recursive_halving(c, place) + _recursive_doubling(c, place)

    return _folded(s, n, rank, inner)


def _hierarchical(s: int, n: int, rank: int, root: int, itemsize: int, ranks_per_node: int | None) -> Lengths:
    k = ranks_per_node or node_size(n)
    node, place = divmod(rank, k)
    c = chunk_sizes(s, k)
    across = _ring(c[place], n // k, node, 0, itemsize)
    return _all_but(c, place) + across + _ring_all_gather(c, place)


def _chain(s: int, n: int, rank: int, root: int, itemsize: int, *_: object) -> Lengths:
    last = (rank + 1) % n == root
    return [] if last else segment_sizes(s, itemsize, CHAIN_SEGMENT_BYTES)


def _scatter_allgather(s: int, n: int, rank: int, root: int, *_: object) -> Lengths:
    c = chunk_sizes(s, n)
    return (_all_but(c, root) if rank == root else []) + _ring_all_gather(c, rank)


_VECTOR: dict[tuple[str, str], Callable[..., Lengths]] = {
    ("all_reduce", "naive"): _naive,
    ("all_reduce", "ring"): _ring,
    ("all_reduce", "recursive_doubling"): _doubling,
    ("all_reduce", "halving_doubling"): _halving_doubling,
    ("all_reduce", "tree"): _tree,
    ("all_reduce", "one_shot"): lambda s, n, *_: [s] * (n - 1),
    ("all_reduce", "direct"): _direct,
    ("all_reduce", "hierarchical"): _hierarchical,
    ("broadcast", "naive"): lambda s, n, rank, root, *_: [s] * (n - 1) if rank == root else [],
    ("broadcast", "chain"): _chain,
    ("broadcast", "binomial"): lambda s, n, rank, root, *_: [s] * len(children((rank - root) % n, n)),
    ("broadcast", "scatter_allgather"): _scatter_allgather,
    ("reduce", "flat"): lambda s, n, rank, root, *_: [s] if rank != root else [],
    ("reduce", "binomial"): lambda s, n, rank, root, *_: [s] if rank != root else [],
}
