"""All-to-all: block d of rank s goes to rank d, where it becomes block s.

Each algorithm is a generator `f(link, outgoing, incoming)` on two lists of contiguous one-dimensional tensors, one
a rank. n is the number of ranks, S the size of all outgoing blocks together.
"""

from __future__ import annotations

import torch

from picolib.comm.engine import Steps
from picolib.comm.p2p import Link


def naive(link: Link, outgoing: list[torch.Tensor], incoming: list[torch.Tensor]) -> Steps:
    """Everybody sends everything to rank 0, which sorts it and sends each rank its blocks.

    2 steps, 2(n-1) messages, fewer than in any other way, of S bytes each: twice the bytes that are needed, all of
    them through rank 0. Blocks have one size.
    """
    n, mine = link.size, torch.cat(list(outgoing))
    if link.rank > 0:
        yield [link.send(mine, 0, step=0)]
        received = torch.empty_like(mine)
        yield [link.recv(received, 0, step=1)]
    else:
        table = mine.new_empty(n, n, len(mine) // n)  # table[source, destination]
        table[0] = mine.view(n, -1)
        yield [link.recv(table[r], r, step=0) for r in range(1, n)]
        columns = table.transpose(0, 1).contiguous()
        yield [link.send(columns[r], r, step=1) for r in range(1, n)]
        received = columns[0]
    for block, arrived in zip(incoming, received.view(n, -1), strict=True):
        block.copy_(arrived)


def direct(link: Link, outgoing: list[torch.Tensor], incoming: list[torch.Tensor]) -> Steps:
    """All blocks at once. Each rank starts with its right neighbour, so that no rank is everybody's first.

    1 step, (n-1)/n·S bytes sent. Blocks may have any sizes.
    """
    others = [(link.rank + k) % link.size for k in range(1, link.size)]
    sends = [link.send(outgoing[r], r, chunk=r, step=0) for r in others]
    receives = [link.recv(incoming[r], r, chunk=r, step=0) for r in others]
    incoming[link.rank].copy_(outgoing[link.rank])  # while the others are on their way
    yield receives + sends


def pairwise(link: Link, outgoing: list[torch.Tensor], incoming: list[torch.Tensor]) -> Steps:
    """In step k, send to the rank k places up and receive from the rank k places down.

    n-1 steps, (n-1)/n·S bytes sent; one message each way at a time. Blocks may have any sizes.
    """
    incoming[link.rank].copy_(outgoing[link.rank])
    for k in range(1, link.size):
        to, source = (link.rank + k) % link.size, (link.rank - k) % link.size
        yield [link.recv(incoming[source], source, chunk=source, step=k), link.send(outgoing[to], to, chunk=to, step=k)]


def bruck(link: Link, outgoing: list[torch.Tensor], incoming: list[torch.Tensor]) -> Steps:
    """Blocks hop by powers of two towards their destination (Bruck 1997).

    A block that has to go d places up hops 2^k places in step k when bit k of d is set. log2(n) steps, rounded up,
    with about half of all blocks in each: fewer messages, more bytes. Blocks have one size.
    """
    n = link.size
    blocks = torch.stack([outgoing[(link.rank + d) % n] for d in range(n)])  # row d: what has to go d places up
    hop = 1
    while hop < n:
        moving = [d for d in range(n) if d & hop]
        leaving = blocks[moving]
        arriving = torch.empty_like(leaving)
        yield [
            link.recv(arriving, (link.rank - hop) % n, step=hop),
            link.send(leaving, (link.rank + hop) % n, step=hop),
        ]
        blocks[moving] = arriving
        hop *= 2
    for d in range(n):
        incoming[(link.rank - d) % n].copy_(blocks[d])
