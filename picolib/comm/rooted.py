"""Reduce, gather and scatter: the collectives in which one rank, the root, gives or gets more than the others.

Flat: the root deals with every rank itself. Binomial: along a tree of log2(n) levels in which the rank at distance
d from the root (counted upwards, round the ring) hangs below the rank at d without its lowest set bit:

    distance   0 ── 1          n = 8
               ├─── 2 ── 3
               └─── 4 ── 5
                    └─── 6 ── 7

so that each subtree is a run of consecutive distances. n is the number of ranks, S the size of one rank's vector.
"""

from __future__ import annotations

import torch

from picolib.comm.engine import Steps
from picolib.comm.ops import Reduction
from picolib.comm.p2p import Link


def parent(distance: int) -> int:
    """Who is above in the binomial tree: the lowest set bit is cleared."""
    return distance & (distance - 1)


def children(distance: int, size: int) -> list[int]:
    """Who is below, the largest subtree first: one more bit set, below the lowest that is set."""
    return [distance + bit for bit in _bits_below(distance, size) if distance + bit < size]


def subtree_size(distance: int, size: int) -> int:
    """How many ranks hang at and below this one."""
    lowest = distance & -distance if distance else size
    return min(lowest, size - distance)


def _bits_below(distance: int, size: int) -> list[int]:
    limit = distance & -distance if distance else size
    return [1 << i for i in reversed(range(limit.bit_length())) if 1 << i < limit]


def reduce_flat(link: Link, vector: torch.Tensor, out: torch.Tensor, root: int, op: Reduction) -> Steps:
    """Everybody sends its vector to the root, which combines them in rank order into `out`.

    1 step; everybody but the root sends S bytes, the root receives (n-1)·S.
    """
    if link.rank != root:
        yield [link.send(vector, root, step=0)]
        return
    inbox = list(vector.new_empty(link.size, vector.numel()))
    yield [link.recv(inbox[r], r, step=0) for r in range(link.size) if r != root]
    contributions = [*inbox[:root], vector, *inbox[root + 1 :]]
    op.combine_all(contributions, out=out, scratch=inbox[root])
    op.finish(out, link.size)


def reduce_binomial(link: Link, vector: torch.Tensor, out: torch.Tensor, root: int, op: Reduction) -> Steps:
    """Up the tree: combine what the children send with the own vector, pass it to the parent.

    log2(n) steps, rounded up; everybody but the root sends S bytes once.
    """
    distance = (link.rank - root) % link.size
    below = [(root + child) % link.size for child in children(distance, link.size)]
    inbox = [torch.empty_like(vector) for _ in below]
    receives = [link.recv(box, child) for box, child in zip(inbox, below, strict=True)]
    total = vector
    for box, arrived in reversed(list(zip(inbox, receives, strict=True))):  # the smallest subtree is ready first
        yield [arrived]
        total = op(total, box, out=box)
    if distance:
        yield [link.send(total, (root + parent(distance)) % link.size)]
    else:
        op.finish(out.copy_(total), link.size)


def gather_flat(link: Link, block: torch.Tensor, blocks: list[torch.Tensor] | None, root: int) -> Steps:
    """Everybody sends its block to the root.

    1 step; everybody but the root sends S bytes.
    """
    if link.rank != root:
        yield [link.send(block, root, chunk=link.rank, step=0)]
        return
    yield [link.recv(blocks[r], r, chunk=r, step=0) for r in range(link.size) if r != root]
    blocks[root].copy_(block)


def gather_binomial(link: Link, block: torch.Tensor, blocks: list[torch.Tensor] | None, root: int) -> Steps:
    """Up the tree: collect the blocks of the whole subtree, pass them to the parent in one message.

    log2(n) steps, rounded up; a rank with k ranks at and below it sends k·S bytes.
    """
    distance = (link.rank - root) % link.size
    collected = block.new_empty(subtree_size(distance, link.size), block.numel())  # row i: distance + i
    collected[0] = block
    yield [
        link.recv(collected[c - distance :][: subtree_size(c, link.size)], (root + c) % link.size)
        for c in children(distance, link.size)
    ]
    if distance:
        yield [link.send(collected, (root + parent(distance)) % link.size)]
    else:
        for i in range(link.size):
            blocks[(root + i) % link.size].copy_(collected[i])


def scatter_flat(link: Link, blocks: list[torch.Tensor] | None, out: torch.Tensor, root: int) -> Steps:
    """The root sends each rank its block.

    1 step; the root sends (n-1)·S bytes, the others nothing.
    """
    if link.rank != root:
        yield [link.recv(out, root, chunk=link.rank, step=0)]
        return
    yield [link.send(blocks[r], r, chunk=r, step=0) for r in range(link.size) if r != root]
    if out is not blocks[root]:
        out.copy_(blocks[root])


def scatter_binomial(link: Link, blocks: list[torch.Tensor] | None, out: torch.Tensor, root: int) -> Steps:
    """Down the tree: take the blocks of the whole subtree from the parent, hand each child those of its own.

    log2(n) steps, rounded up; a rank with k ranks at and below it receives k·S bytes and sends (k-1)·S.
    """
    distance = (link.rank - root) % link.size
    dealt = out.new_empty(subtree_size(distance, link.size), out.numel())  # row i: distance + i
    if distance:
        yield [link.recv(dealt, (root + parent(distance)) % link.size)]
    else:
        for i in range(link.size):
            dealt[i] = blocks[(root + i) % link.size]
    yield [
        link.send(dealt[c - distance :][: subtree_size(c, link.size)], (root + c) % link.size)
        for c in children(distance, link.size)
    ]
    out.copy_(dealt[0])
