"""All-reduce: every rank contributes a vector, every rank ends with the combination of all.

Each algorithm is a generator `f(link, vector, op)` that works in place on a contiguous one-dimensional tensor.
n is the number of ranks, S the vector's size in bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from picolib.comm import all_gather, reduce_scatter
from picolib.comm.chunks import segments, split
from picolib.comm.engine import Steps, side_by_side
from picolib.comm.fold import fold
from picolib.comm.ops import Reduction
from picolib.comm.p2p import Link

# Rings and trees work on pieces of the vector: while one piece is being combined, others are on the wire.
SEGMENT_BYTES = 4 << 20
TREE_SEGMENT_BYTES = 1 << 20
SEGMENTS_IN_FLIGHT = 4


def naive(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Everybody sends everything to rank 0, which combines and sends the result back to everybody.

    2 steps. Rank 0 receives and sends (n-1)·S bytes: the more ranks, the longer it takes.
    """
    if link.rank > 0:
        yield [link.send(vector, 0, step=0)]
        yield [link.recv(vector, 0, step=1)]
        return
    inbox = list(vector.new_empty(link.size, vector.numel()))
    yield [link.recv(inbox[r], r, step=0) for r in range(1, link.size)]
    for r in range(1, link.size):
        op(vector, inbox[r], out=vector)
    op.finish(vector, link.size)
    yield [link.send(vector, r, step=1) for r in range(1, link.size)]


def one_shot(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Everybody sends everything to everybody, and each combines all contributions for itself.

    1 step, (n-1)·S bytes sent: for vectors so small that only the number of steps counts.
    """
    buffer = link.borrow(vector, link.size)
    inbox = list(buffer)
    others = [(link.rank + k) % link.size for k in range(1, link.size)]
    sends = [link.send(vector, r, step=0) for r in others]
    yield [link.recv(inbox[r], r, step=0) for r in others] + sends
    contributions = [*inbox[: link.rank], vector, *inbox[link.rank + 1 :]]
    op.combine_all(contributions, out=vector, scratch=inbox[link.rank])
    link.give_back(buffer)
    op.finish(vector, link.size)


def direct(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Reduce-scatter and all-gather, each with all its chunks at once.

    2 steps, 2(n-1)/n·S bytes sent.
    """
    chunks = split(vector, link.size)
    yield from reduce_scatter.direct(link, chunks, chunks[link.rank], op)
    yield from all_gather.direct(link, chunks)


def ring(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Reduce-scatter around the ring, then all-gather around the ring (Patarasuk & Yuan 2009).

    2(n-1) steps, 2(n-1)/n·S bytes sent, whatever the number of ranks. A long vector goes in several segments,
    one ring each, a few at the same time.
    """
    pieces = segments(vector, SEGMENT_BYTES * link.size)
    yield from side_by_side((ring_once(link, piece, op) for piece in pieces), SEGMENTS_IN_FLIGHT)


def ring_once(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """The ring all-reduce of one segment."""
    chunks = split(vector, link.size)
    yield from reduce_scatter.ring(link, chunks, chunks[link.rank], op)
    yield from all_gather.ring(link, chunks)


def tree(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Up a binary tree, combining on the way, and the result down again. Rank r's children are 2r+1 and 2r+2.

    2·log2(n) steps; at most 3·S bytes sent by a rank, S by a leaf. A long vector goes in several segments, so that
    the levels of the tree work at the same time. All ranks together send no more than in a ring, in far fewer
    messages: where ranks share few cores, that decides.
    """
    pieces = segments(vector, TREE_SEGMENT_BYTES)
    yield from side_by_side((tree_once(link, piece, op) for piece in pieces), SEGMENTS_IN_FLIGHT)


def tree_once(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """The tree all-reduce of one segment."""
    children = [child for child in (2 * link.rank + 1, 2 * link.rank + 2) if child < link.size]
    parent = (link.rank - 1) // 2
    inbox = [torch.empty_like(vector) for _ in children]
    yield [link.recv(box, child, step=0) for box, child in zip(inbox, children, strict=True)]
    for box in inbox:
        op(vector, box, out=vector)
    if link.rank > 0:
        yield [link.send(vector, parent, step=0)]
        yield [link.recv(vector, parent, step=1)]
    else:
        op.finish(vector, link.size)
    yield [link.send(vector, child, step=1) for child in children]


def recursive_doubling(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Partners at distance 1, 2, 4, … exchange their partial results, each of twice as many ranks as before.

    log2(n) steps, log2(n)·S bytes sent; 2 steps more where n is no power of two.
    """
    yield from _folded(link, vector, op, doubling)


def halving_doubling(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling (Rabenseifner 2004).

    2·log2(n) steps, 2(n-1)/n·S bytes sent; 2 steps and up to S bytes more where n is no power of two.
    """
    yield from _folded(link, vector, op, _halve_and_double)


def doubling(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Recursive doubling for a power of two of ranks: whom a rank meets in step k differs from it in bit k."""
    arrived, distance = torch.empty_like(vector), 1
    while distance < link.size:
        partner = link.rank ^ distance  # flip one bit: so each is the other's partner
        yield [link.recv(arrived, partner, step=distance), link.send(vector, partner, step=distance)]
        op.in_order(vector, arrived, link.rank < partner, out=vector)
        distance *= 2


def _halve_and_double(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    chunks = split(vector, link.size)
    yield from reduce_scatter.recursive_halving(link, chunks, chunks[link.rank], op)
    yield from all_gather.recursive_doubling(link, chunks)


def _folded(link: Link, vector: torch.Tensor, op: Reduction, among_power_of_two: Callable[..., Steps]) -> Steps:
    """Run an algorithm that needs a power of two; ranks too many hand in their vector before and get it back after."""
    folded = fold(link.size)
    if folded.place_of(link.rank) is None:
        yield [link.send(vector, link.rank - 1, step=0)]
        yield [link.recv(vector, link.rank - 1)]
        return
    if folded.has_pair(link.rank):
        theirs = torch.empty_like(vector)
        yield [link.recv(theirs, link.rank + 1, step=0)]
        op(vector, theirs, out=vector)
    yield from among_power_of_two(link.among(folded.ranks()), vector, op.without_average())
    op.finish(vector, link.size)
    if folded.has_pair(link.rank):
        yield [link.send(vector, link.rank + 1)]
