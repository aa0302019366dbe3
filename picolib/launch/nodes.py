"""How many ranks share a machine, as all ranks have agreed when they joined; what hierarchical algorithms go by."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

_of_world: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def agree(ranks_per_node: int, local_rank: int) -> None:
    """Called once by every rank of the world: remember the number, if it describes all nodes.

    That is so when it is the same on all of them and ranks are numbered node by node (0 to k-1 on the first).
    """
    out_of_place = dist.get_rank() % ranks_per_node != local_rank
    device = "cpu" if dist.get_backend() != "nccl" else "cuda"
    seen = torch.tensor([ranks_per_node, -ranks_per_node, int(out_of_place)], device=device)
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    largest, smallest, anybody = seen.tolist()
    if largest == -smallest and not anybody and dist.get_world_size() % ranks_per_node == 0:
        tell(ranks_per_node)


def tell(ranks_per_node: int) -> None:
    """Remember what is known to describe all nodes."""
    _of_world[dist.group.WORLD] = ranks_per_node


def ranks_per_node(members: Sequence[int]) -> int | None:
    """How many of these ranks (of the world, in the order of their group) sit on each node, one node after the other.

    None where nobody has told, or where the nodes hold different numbers of them.
    """
    size = _of_world.get(dist.group.WORLD)
    if size is None:
        return None
    nodes = [rank // size for rank in members]
    each = nodes.count(nodes[0])
    blocks = [nodes[start : start + each] for start in range(0, len(nodes), each)]
    even = all(len(set(block)) == 1 and len(block) == each for block in blocks)
    return each if even and len({block[0] for block in blocks}) == len(blocks) else None
