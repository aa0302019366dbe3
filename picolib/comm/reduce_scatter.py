"""Reduce-scatter: every rank contributes one chunk per rank, rank r ends with the combination of all chunks r.

Each algorithm is a generator `f(link, chunks, out, op)`. `chunks[r]` is the own contribution to rank r, a
contiguous one-dimensional tensor that is only read; the result is written to `out`, which may be the own chunk.
n is the number of ranks, S the size of all chunks together.
"""

from __future__ import annotations

from itertools import accumulate

import torch

from picolib.comm import rooted
from picolib.comm.chunks import span
from picolib.comm.engine import Steps
from picolib.comm.fold import Fold, fold
from picolib.comm.ops import Reduction
from picolib.comm.p2p import Link


def naive(link: Link, chunks: list[torch.Tensor], out: torch.Tensor, op: Reduction) -> Steps:
    """Everybody sends everything to rank 0, which combines and deals out the chunks of the result.

    2 steps, 2(n-1) messages, fewer than in any other way; rank 0 receives (n-1)·S bytes. Chunks lie next to each
    other in memory.
    """
    vector, total = span(chunks, 0, link.size), None
    if link.rank == 0:
        total = torch.empty_like(vector)
    yield from rooted.reduce_flat(link, vector, total, 0, op)
    dealt = list(total.split([chunk.numel() for chunk in chunks])) if total is not None else None
    yield from rooted.scatter_flat(link, dealt, out, 0)


def ring(link: Link, chunks: list[torch.Tensor], out: torch.Tensor, op: Reduction) -> Steps:
    """Each chunk travels once around the ring and collects every rank's share; chunk r's journey ends on rank r.

    n-1 steps, (n-1)/n·S bytes sent. Rank r starts with chunk r-1: rank 0 of 4 sends chunks 3, 2, 1 and ends with 0.
    """
    n, left, right = link.size, (link.rank - 1) % link.size, (link.rank + 1) % link.size
    outgoing = chunks[left]
    buffers = [chunks[0].new_empty(max(chunk.numel() for chunk in chunks)) for _ in range(2)]
    for step in range(n - 1):
        leaving, coming = (link.rank - 1 - step) % n, (link.rank - 2 - step) % n
        partial = buffers[step % 2][: chunks[coming].numel()]  # the other buffer is being sent
        yield [
            link.recv(partial, left, chunk=coming, step=step),
            link.send(outgoing, right, chunk=leaving, step=step),
        ]
        outgoing = op(partial, chunks[coming], out=out if coming == link.rank else partial)
    if n == 1:
        out.copy_(chunks[0])
    op.finish(out, n)


def direct(link: Link, chunks: list[torch.Tensor], out: torch.Tensor, op: Reduction) -> Steps:
    """Everybody sends chunk r to rank r, all at once, and combines what has come in.

    1 step, (n-1)/n·S bytes sent.
    """
    others = [(link.rank + k) % link.size for k in range(1, link.size)]
    buffer = link.borrow(out, link.size)
    inbox = list(buffer)
    sends = [link.send(chunks[r], r, chunk=r, step=0) for r in others]
    yield [link.recv(inbox[r], r, chunk=link.rank, step=0) for r in others] + sends
    contributions = [*inbox[: link.rank], chunks[link.rank], *inbox[link.rank + 1 :]]
    op.combine_all(contributions, out=out, scratch=inbox[link.rank])
    link.give_back(buffer)
    op.finish(out, link.size)


def recursive_halving(link: Link, chunks: list[torch.Tensor], out: torch.Tensor, op: Reduction) -> Steps:
    """Partners at distance n/2, n/4, … 1 exchange the half that the other is responsible for, and combine.

    log2(n) steps, (n-1)/n·S bytes sent. Chunks lie next to each other in memory. Where n is no power of two, the
    ranks that step aside (see `fold`) give all they have to a neighbour, which sends them their result at the end.
    """
    folded, rank, vector = fold(link.size), link.rank, span(chunks, 0, link.size)
    if folded.place_of(rank) is None:
        yield [link.send(vector, rank - 1, step=0)]
        yield [link.recv(out, rank - 1, chunk=rank, step=2)]
        op.finish(out, link.size)
        return
    if folded.has_pair(rank):
        theirs = torch.empty_like(vector)
        yield [link.recv(theirs, rank + 1, step=0)]
        vector = op(vector, theirs, out=theirs)
    vector = yield from _halve(link, vector, chunks, folded, op)
    if folded.has_pair(rank):
        yield [link.send(vector[chunks[rank].numel() :], rank + 1, chunk=rank + 1, step=2)]
    op.finish(out.copy_(vector[: out.numel()]), link.size)


def _halve(link: Link, held: torch.Tensor, chunks: list[torch.Tensor], folded: Fold, op: Reduction) -> Steps:
    """Halve the range of places that `held` covers until it is the own place; return what is left of it."""
    starts = [0, *accumulate(chunk.numel() for chunk in chunks)]
    edges = [starts[folded.rank_at(p)] for p in range(folded.power + 1)]
    place, first, width = folded.place_of(link.rank), 0, folded.power // 2
    while width:
        partner = place ^ width
        peer = folded.rank_at(partner)
        begin, middle, end = edges[first], edges[first + width], edges[first + 2 * width]
        lower, upper = held.split([middle - begin, end - middle])
        kept, given = (lower, upper) if place < partner else (upper, lower)
        arrived = torch.empty_like(kept)
        yield [link.recv(arrived, peer, step=1), link.send(given, peer, step=1)]
        held = op.in_order(kept, arrived, place < partner, out=arrived)
        first += width if place > partner else 0
        width //= 2
    return held
