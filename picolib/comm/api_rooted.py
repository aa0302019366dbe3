"""The front door of collectives with a root: one rank's data for all (or in parts), or all ranks' data for one.

The root is a global rank, `src` or `dst`; or, in their stead, `group_src` or `group_dst`: a place in the group. The
other arguments are those of every collective, see `api`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from picolib.comm.arguments import check_rooted_list, nbytes
from picolib.comm.call import Call
from picolib.comm.groups import is_member, peer_rank, warn_not_member
from picolib.comm.ops import reduction

SUM = dist.ReduceOp.SUM
Tensors = list[torch.Tensor]


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "auto",
) -> Any:
    """Copy the tensor of rank `src` (a global rank; or `group_src`, a place in the group) to all ranks."""
    if not is_member(group):
        return warn_not_member("broadcast")
    call = Call("broadcast", group, async_op)
    call.check_tensors([tensor], "tensor")
    root = peer_rank(call.members, src, group_src, "src")
    if call.choose(algorithm, tensor.device, nbytes(tensor)) == "native":
        return dist.broadcast(tensor, src, group, async_op, group_src)
    vector = call.writes(tensor, and_reads=call.members.rank == root)
    return call.start([tensor], vector, root, root=root)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Any = SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "auto",
) -> Any:
    """Combine `tensor` over all ranks into that of rank `dst`; the other ranks' tensors stay as they are."""
    if not is_member(group):
        return warn_not_member("reduce")
    call = Call("reduce", group, async_op)
    call.check_tensors([tensor], "tensor")
    root, combine = peer_rank(call.members, dst, group_dst, "dst"), reduction(op, tensor.dtype)
    if call.choose(algorithm, tensor.device, nbytes(tensor)) == "native":
        return dist.reduce(tensor, dst, op, group, async_op, group_dst)
    vector = call.writes(tensor, and_reads=True) if call.members.rank == root else call.reads(tensor)
    return call.start([tensor], vector, vector, root, combine, op=op, root=root)


def gather(
    tensor: torch.Tensor,
    gather_list: Tensors | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str = "auto",
) -> Any:
    """Collect every rank's `tensor` in `gather_list` on rank `dst` (by default the group's first)."""
    if not is_member(group):
        return warn_not_member("gather")
    call = Call("gather", group, async_op)
    call.check_tensors([tensor], "tensor")
    root = _root_or_first(call, dst, group_dst, "dst")
    check_rooted_list(call, root, gather_list, "gather_list", tensor)
    if call.choose(algorithm, tensor.device, nbytes(tensor)) == "native":
        return dist.gather(tensor, gather_list, group=group, async_op=async_op, group_dst=root)
    blocks = [call.writes(t) for t in gather_list] if gather_list else None
    return call.start([tensor], call.reads(tensor), blocks, root, root=root)


def scatter(
    tensor: torch.Tensor,
    scatter_list: Tensors | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str = "auto",
) -> Any:
    """Hand entry r of `scatter_list` of rank `src` (by default the group's first) to rank r, in `tensor`."""
    if not is_member(group):
        return warn_not_member("scatter")
    call = Call("scatter", group, async_op)
    call.check_tensors([tensor], "tensor")
    root = _root_or_first(call, src, group_src, "src")
    check_rooted_list(call, root, scatter_list, "scatter_list", tensor)
    if call.choose(algorithm, tensor.device, nbytes(tensor)) == "native":
        return dist.scatter(tensor, scatter_list, group=group, async_op=async_op, group_src=root)
    blocks = [call.reads(t) for t in scatter_list] if scatter_list else None
    return call.start([tensor], blocks, call.writes(tensor), root, root=root)


def _root_or_first(call: Call, rank: int | None, group_rank: int | None, argument: str) -> int:
    """The root's place in the group: by default the first."""
    return 0 if rank is None and group_rank is None else peer_rank(call.members, rank, group_rank, argument)
