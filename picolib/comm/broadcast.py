"""Broadcast: the root's vector reaches every rank.

Each algorithm is a generator `f(link, vector, root)` on a contiguous one-dimensional tensor. Trees and chains are
told for root 0; for another root, all ranks move round: `distance` is how far a rank is from the root, going up.
n is the number of ranks, S the vector's size in bytes.
"""

from __future__ import annotations

import torch

from picolib.comm import all_gather, rooted
from picolib.comm.chunks import segments, split
from picolib.comm.engine import Steps
from picolib.comm.p2p import Link

CHAIN_SEGMENT_BYTES = 1 << 20


def naive(link: Link, vector: torch.Tensor, root: int) -> Steps:
    """The root sends everything to everybody.

    1 step; the root sends (n-1)·S bytes, the others nothing.
    """
    if link.rank == root:
        yield [link.send(vector, (root + k) % link.size, step=0) for k in range(1, link.size)]
    else:
        yield [link.recv(vector, root, step=0)]


def chain(link: Link, vector: torch.Tensor, root: int) -> Steps:
    """Each rank passes on to the next, piece by piece: all links of the chain are busy at the same time.

    n-2 + (number of pieces) steps; everybody but the last sends S bytes.
    """
    before, after = (link.rank - 1) % link.size, (link.rank + 1) % link.size
    pieces = segments(vector, CHAIN_SEGMENT_BYTES)
    receives = [link.recv(p, before, chunk=i) for i, p in enumerate(pieces)] if link.rank != root else []
    sends = []
    for i, piece in enumerate(pieces):
        yield receives[i : i + 1]
        if after != root:
            sends.append(link.send(piece, after, chunk=i))
    yield sends


def binomial(link: Link, vector: torch.Tensor, root: int) -> Steps:
    """Everybody who has it sends it on: 1, 2, 4, … ranks have it after each step.

    log2(n) steps, rounded up; the root sends log2(n)·S bytes, half of the ranks nothing.
    """
    distance = (link.rank - root) % link.size
    if distance:
        yield [link.recv(vector, (root + rooted.parent(distance)) % link.size)]
    yield [link.send(vector, (root + child) % link.size) for child in rooted.children(distance, link.size)]


def scatter_allgather(link: Link, vector: torch.Tensor, root: int) -> Steps:
    """The root deals out one chunk per rank, then a ring all-gather completes everybody (van de Geijn 1994).

    1 + (n-1) steps; nobody sends more than 2(n-1)/n·S bytes.
    """
    chunks = split(vector, link.size)
    yield from rooted.scatter_flat(link, chunks, chunks[link.rank], root)
    yield from all_gather.ring(link, chunks)
