"""All-gather: rank r has block r, every rank ends with all blocks.

Each algorithm is a generator `f(link, blocks)`. `blocks[r]` is where rank r's block belongs, a contiguous
one-dimensional tensor; the own one is already there. n is the number of ranks, S the size of all blocks together.
Direct and ring take blocks of any sizes.
"""

from __future__ import annotations

import torch

from picolib.comm.chunks import span
from picolib.comm.engine import Steps
from picolib.comm.fold import Fold, fold
from picolib.comm.p2p import Link


def naive(link: Link, blocks: list[torch.Tensor]) -> Steps:
    """Everybody sends its block to rank 0, which sends all of them to everybody.

    2 steps, 2(n-1) messages, fewer than in any other way; rank 0 sends (n-1)·S bytes. Blocks lie next to each other
    in memory.
    """
    if link.rank > 0:
        yield [link.send(blocks[link.rank], 0, chunk=link.rank, step=0)]
        yield [link.recv(span(blocks, 0, link.size), 0, step=1)]
        return
    others = range(1, link.size)
    yield [link.recv(blocks[r], r, chunk=r, step=0) for r in others]
    yield [link.send(span(blocks, 0, link.size), r, step=1) for r in others]


def ring(link: Link, blocks: list[torch.Tensor]) -> Steps:
    """Each step passes the block that arrived last to the right, until everybody has seen all.

    n-1 steps, (n-1)/n·S bytes sent, all of them to one neighbour.
    """
    n, left, right = link.size, link.rank - 1, (link.rank + 1) % link.size
    for step in range(n - 1):
        outgoing, incoming = (link.rank - step) % n, (link.rank - step - 1) % n
        yield [
            link.recv(blocks[incoming], left % n, chunk=incoming, step=step),
            link.send(blocks[outgoing], right, chunk=outgoing, step=step),
        ]


def direct(link: Link, blocks: list[torch.Tensor]) -> Steps:
    """Everybody sends the own block to everybody, all at once.

    1 step, (n-1)/n·S bytes sent. Each rank starts with its right neighbour, so that no rank is everybody's first.
    (Sends are posted first and waited for last, and of the receives the one that its sender posts last is waited for
    first, so that a rank mostly wakes once. Measured on gloo, 4 ranks: 5 to 20 % less time for a small all-to-all or
    reduce-scatter; no difference here.)
    """
    others = [(link.rank + k) % link.size for k in range(1, link.size)]
    sends = [link.send(blocks[link.rank], r, chunk=link.rank, step=0) for r in others]
    yield [link.recv(blocks[r], r, chunk=r, step=0) for r in others] + sends


def recursive_doubling(link: Link, blocks: list[torch.Tensor]) -> Steps:
    """Partners at distance 1, 2, 4, … exchange all they have, which doubles it each time.

    log2(n) steps, (n-1)/n·S bytes sent. Blocks lie next to each other in memory. Where n is no power of two, the
    ranks that step aside (see `fold`) give their block to a neighbour, and get all the others from it at the end.
    """
    folded = fold(link.size)
    if folded.place_of(link.rank) is None:
        yield [link.send(blocks[link.rank], link.rank - 1, chunk=link.rank, step=0)]
        yield [link.recv(rest, link.rank - 1, step=2) for rest in _all_but(blocks, link.rank)]
        return
    if folded.has_pair(link.rank):
        yield [link.recv(blocks[link.rank + 1], link.rank + 1, chunk=link.rank + 1, step=0)]
    yield from _double(link, blocks, folded)
    if folded.has_pair(link.rank):
        yield [link.send(rest, link.rank + 1, step=2) for rest in _all_but(blocks, link.rank + 1)]


def _double(link: Link, blocks: list[torch.Tensor], folded: Fold) -> Steps:
    place, distance = folded.place_of(link.rank), 1
    while distance < folded.power:
        partner = place ^ distance  # flip one bit: so each is the other's partner
        mine, theirs = (_held(blocks, folded, p, distance) for p in (place, partner))
        peer = folded.rank_at(partner)
        yield [link.recv(theirs, peer, step=1), link.send(mine, peer, step=1)]
        distance *= 2


def _held(blocks: list[torch.Tensor], folded: Fold, place: int, distance: int) -> torch.Tensor:
    """What a place holds before the exchange at a distance: the blocks of `distance` aligned places."""
    first = place - place % distance
    return span(blocks, folded.rank_at(first), folded.rank_at(first + distance))


def _all_but(blocks: list[torch.Tensor], rank: int) -> list[torch.Tensor]:
    return [span(blocks, 0, rank), span(blocks, rank + 1, len(blocks))]


def bruck(link: Link, blocks: list[torch.Tensor]) -> Steps:
    """Like doubling, for any n: what a rank has are the blocks that start at its own, going round (Bruck 1997).

    log2(n) steps, rounded up, (n-1)/n·S bytes sent. Blocks have one size. They are collected in a buffer of
    their own and moved to their places at the end.
    """
    n, rank = link.size, link.rank
    collected = blocks[0].new_empty(n, blocks[0].numel())  # row i: the block of rank (own + i)
    collected[0] = blocks[rank]
    have = 1
    while have < n:
        more = min(have, n - have)
        yield [
            link.recv(collected[have : have + more], (rank + have) % n, step=have),
            link.send(collected[:more], (rank - have) % n, step=have),
        ]
        have += more
    for i in range(1, n):
        blocks[(rank + i) % n].copy_(collected[i])
