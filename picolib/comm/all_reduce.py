"""All-reduce: every rank contributes a vector, every rank ends with the combination of all.

Each algorithm is a generator `f(link, vector, op)` that works in place on a contiguous one-dimensional tensor.
n is the number of ranks, S the vector's size in bytes.
"""

from __future__ import annotations

import torch

from picolib.comm.chunks import split
from picolib.comm.engine import Steps
from picolib.comm.ops import Reduction
from picolib.comm.p2p import Link


def naive(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Everybody sends everything to rank 0, which combines and sends the result back to everybody.

    2 steps. Rank 0 receives and sends (n-1)·S bytes: the more ranks, the longer it takes.
    """
    if link.rank == 0:
        others = range(1, link.size)
        inbox = torch.empty(link.size, vector.numel(), dtype=vector.dtype)
        yield [link.recv(inbox[r], r, step=0) for r in others]
        for r in others:
            op(vector, inbox[r], out=vector)
        op.finish(vector, link.size)
        yield [link.send(vector, r, step=1) for r in others]
    else:
        yield [link.send(vector, 0, step=0)]
        yield [link.recv(vector, 0, step=1)]


def ring(link: Link, vector: torch.Tensor, op: Reduction) -> Steps:
    """Reduce-scatter around the ring, then all-gather around the ring (Patarasuk & Yuan 2009).

    2(n-1) steps. Each rank sends 2(n-1)/n·S bytes to its right neighbour, however many ranks there are.
    """
    chunks = split(vector, link.size)
    yield from ring_reduce_scatter(link, chunks, op)
    yield from ring_all_gather(link, chunks)


def ring_reduce_scatter(link: Link, chunks: list[torch.Tensor], op: Reduction) -> Steps:
    """Each chunk travels once around the ring and collects every rank's share; chunk r ends on rank r.

    n-1 steps. In each, a rank sends the chunk it added to last and adds its share to the one that arrives.
    Rank r starts with chunk r-1, so rank 0 of 4 sends chunks 3, 2, 1 and ends with chunk 0 complete.
    """
    left, right = (link.rank - 1) % link.size, (link.rank + 1) % link.size
    arriving = torch.empty_like(chunks[0])
    for step in range(link.size - 1):
        outgoing, partial = (link.rank - 1 - step) % link.size, (link.rank - 2 - step) % link.size
        arrived = arriving[: chunks[partial].numel()]
        yield [
            link.recv(arrived, left, chunk=partial, step=step),
            link.send(chunks[outgoing], right, chunk=outgoing, step=step),
        ]
        op(arrived, chunks[partial], out=chunks[partial])
    op.finish(chunks[link.rank], link.size)


def ring_all_gather(link: Link, chunks: list[torch.Tensor]) -> Steps:
    """Rank r has chunk r complete; each step passes on the chunk that arrived last, until all have all.

    n-1 steps, (n-1)/n·S bytes sent.
    """
    left, right = (link.rank - 1) % link.size, (link.rank + 1) % link.size
    for step in range(link.size - 1):
        outgoing, incoming = (link.rank - step) % link.size, (link.rank - 1 - step) % link.size
        yield [
            link.recv(chunks[incoming], left, chunk=incoming, step=step),
            link.send(chunks[outgoing], right, chunk=outgoing, step=step),
        ]
