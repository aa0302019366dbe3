"""All-reduce on a cluster: fast links inside a node, slow ones between nodes.

Ranks 0 to k-1 are the first node, ranks k to 2k-1 the second, and so on.
"""

from __future__ import annotations

import torch

from picolib.comm import all_gather, all_reduce, reduce_scatter
from picolib.comm.chunks import split
from picolib.comm.engine import Steps
from picolib.comm.ops import Reduction
from picolib.comm.p2p import Link


def node_size(size: int) -> int:
    """The ranks per node where nobody says: the largest divisor not above the square root (4 -> 2, 12 -> 3, 5 -> 1)."""
    return max(k for k in range(1, size + 1) if size % k == 0 and k * k <= size)


def hierarchical(link: Link, vector: torch.Tensor, op: Reduction, ranks_per_node: int | None = None) -> Steps:
    """Reduce-scatter inside each node, all-reduce of each chunk across nodes, all-gather inside each node.

    With k ranks a node and m nodes, a rank sends 2(k-1)/k·S bytes inside its node and only 2(m-1)/m·S/k out of it.
    """
    k = ranks_per_node or node_size(link.size)
    node, place = divmod(link.rank, k)
    inside = link.among(range(node * k, (node + 1) * k))
    across = link.among(range(place, link.size, k))
    chunks = split(vector, k)
    yield from reduce_scatter.ring(inside, chunks, chunks[place], op.without_average())
    yield from all_reduce.ring(across, chunks[place], op.without_average())
    op.finish(chunks[place], link.size)
    yield from all_gather.ring(inside, chunks)
