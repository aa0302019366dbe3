"""The front door: torch.distributed's collectives by name and signature, plus `algorithm="auto"`.

Here are those in which all ranks do the same; where one rank is the source, or the goal, see `api_rooted`. Each
function checks its arguments, settles the algorithm, brings tensors into the form that the algorithms take (contiguous
vectors) and starts it. All share these arguments:

    group: a process group; None means all ranks.
    async_op: return at once, with a handle to wait for.
    algorithm: one of `algorithms(name)`; "auto" chooses by size, "native" is torch's own.

A rank that is not in the group gets a warning and does nothing, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm.arguments import (
    blocks_of,
    check_multiple,
    check_one_size,
    exchange,
    nbytes,
    part_sizes,
    settle_uneven,
)
from picolib.comm.call import Call
from picolib.comm.chunks import adjacent, split
from picolib.comm.groups import is_member, warn_not_member
from picolib.comm.ops import reduction

SUM = dist.ReduceOp.SUM
Tensors = list[torch.Tensor]


def all_reduce(
    tensor: torch.Tensor,
    op: Any = SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    ranks_per_node: int | None = None,
    label: str | None = None,
) -> Any:
    """Combine `tensor` over all ranks, in place: every rank ends with the same bits.

    `ranks_per_node` is for algorithm="hierarchical" and says where the fast links are (else what `picolib.init` was
    told by torchrun or SLURM, else the largest divisor of the group's size up to its square root). `label` says what
    is reduced ("bucket 2"): it stands in the trace, and ranks whose labels differ are told so before data are mixed.
    """
    if not is_member(group):
        return warn_not_member("all_reduce")
    call = Call("all_reduce", group, async_op)
    call.check_tensors([tensor], "tensor")
    combine = reduction(op, tensor.dtype)
    chosen = call.choose(algorithm, tensor.device, nbytes(tensor))
    if chosen == "native":
        return dist.all_reduce(tensor, op, group, async_op)
    extra = ()
    if ranks_per_node is not None:
        if chosen != "hierarchical" or ranks_per_node < 1 or call.members.size % ranks_per_node:
            call.complain(
                "ranks_per_node goes with algorithm='hierarchical' and must divide the number of ranks "
                f"({call.members.size}), got {ranks_per_node} with {chosen!r}"
            )
        extra = (ranks_per_node,)
    elif chosen == "hierarchical":
        extra = (call.members.ranks_per_node,)
    return call.start([tensor], call.writes(tensor, and_reads=True), combine, *extra, op=op, label=label)


def all_gather(
    tensor_list: Tensors, tensor: torch.Tensor, group: Any = None, async_op: bool = False, *, algorithm: str = "auto"
) -> Any:
    """Collect every rank's `tensor` in `tensor_list`, which may differ in size between ranks (then: direct or ring)."""
    if not is_member(group):
        return warn_not_member("all_gather")
    call = Call("all_gather", group, async_op)
    call.check_list(tensor_list, "tensor_list")
    call.check_tensors([*tensor_list, tensor], "tensor_list and tensor")
    call.check_distinct(tensor_list, "tensor_list")
    mine = tensor_list[call.members.rank]
    if mine.numel() != tensor.numel():
        call.complain(f"tensor has {tensor.numel()} elements, its place in tensor_list {mine.numel()}")
    even = settle_uneven(call, tensor_list, algorithm, ("direct", "ring"))
    if call.algorithm == "native":
        return dist.all_gather(tensor_list, tensor, group, async_op)
    blocks = blocks_of(call, tensor_list)
    blocks[call.members.rank].copy_(call.reads(tensor))
    return call.start([tensor], blocks, strict_shapes=even)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    label: str | None = None,
) -> Any:
    """Collect every rank's `input_tensor`, one after the other, in `output_tensor` (concatenated or stacked)."""
    if not is_member(group):
        return warn_not_member("all_gather_into_tensor")
    call = Call("all_gather_into_tensor", group, async_op)
    call.check_tensors([output_tensor, input_tensor], "output_tensor and input_tensor")
    check_multiple(call, output_tensor, "output_tensor", input_tensor, "input_tensor")
    if call.choose(algorithm, input_tensor.device, nbytes(output_tensor)) == "native":
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
    blocks = split(call.writes(output_tensor), call.members.size)
    own, block = blocks[call.members.rank], call.reads(input_tensor)
    if own.data_ptr() != block.data_ptr():
        own.copy_(block)
    return call.start([input_tensor], blocks, label=label)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Tensors,
    op: Any = SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
) -> Any:
    """Combine the ranks' lists entry by entry; rank r keeps entry r, in `output`. Entries may differ in size."""
    if not is_member(group):
        return warn_not_member("reduce_scatter")
    call = Call("reduce_scatter", group, async_op)
    call.check_list(input_list, "input_list")
    call.check_tensors([*input_list, output], "input_list and output")
    mine = input_list[call.members.rank]
    if mine.numel() != output.numel():
        call.complain(f"output has {output.numel()} elements, this rank's entry of input_list {mine.numel()}")
    combine = reduction(op, output.dtype)
    even = settle_uneven(call, input_list, algorithm, ("direct", "ring"))
    if call.algorithm == "native":
        return dist.reduce_scatter(output, input_list, op, group, async_op)
    chunks = [call.reads(t) for t in input_list]
    if call.algorithm in ("naive", "recursive_halving") and not adjacent(chunks):
        chunks = split(torch.cat(chunks), len(chunks))
    return call.start(input_list, chunks, call.writes(output), combine, op=op, strict_shapes=even)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
    label: str | None = None,
) -> Any:
    """Combine `input` over all ranks; rank r keeps the r-th of its n equal parts, in `output`."""
    if not is_member(group):
        return warn_not_member("reduce_scatter_tensor")
    call = Call("reduce_scatter_tensor", group, async_op)
    call.check_tensors([output, input], "output and input")
    check_multiple(call, input, "input", output, "output")
    combine = reduction(op, output.dtype)
    if call.choose(algorithm, input.device, nbytes(input)) == "native":
        return dist.reduce_scatter_tensor(output, input, op, group, async_op)
    chunks = split(call.reads(input), call.members.size)
    return call.start([input], chunks, call.writes(output), combine, op=op, label=label)


def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
) -> Any:
    """Send entry d of the inputs to rank d; entry s of the outputs comes from rank s.

    Entries may differ in size, but not for "naive" and "bruck".
    """
    if not is_member(group):
        return warn_not_member("all_to_all")
    call = Call("all_to_all", group, async_op)
    call.check_list(output_tensor_list, "output_tensor_list")
    call.check_list(input_tensor_list, "input_tensor_list")
    call.check_tensors([*output_tensor_list, *input_tensor_list], "outputs and inputs")
    call.check_distinct(output_tensor_list, "output_tensor_list")
    if algorithm in ("bruck", "naive"):
        check_one_size(call, algorithm, [*output_tensor_list, *input_tensor_list])
    outgoing, incoming = [call.reads(t) for t in input_tensor_list], output_tensor_list
    device = output_tensor_list[0].device
    if call.choose(algorithm, device, 0, fixed="direct") == "native":
        return dist.all_to_all(output_tensor_list, input_tensor_list, group, async_op)
    return exchange(call, outgoing, [call.writes(t) for t in incoming], input_tensor_list[:1])


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str = "auto",
) -> Any:
    """Send part d of `input` to rank d; part s of `output` comes from rank s.

    Without split sizes all parts are equal; with them, they count rows of dimension 0 (not for "naive" and "bruck").
    """
    if not is_member(group):
        return warn_not_member("all_to_all_single")
    call = Call("all_to_all_single", group, async_op)
    call.check_tensors([output, input], "output and input")
    sending = part_sizes(call, input, input_split_sizes, "input")
    receiving = part_sizes(call, output, output_split_sizes, "output")
    even = not input_split_sizes and not output_split_sizes
    if even and input.numel() != output.numel():
        call.complain(f"output has {output.numel()} elements, input {input.numel()}")
    if algorithm in ("bruck", "naive") and not even:
        call.complain(f"algorithm {algorithm!r} needs equal parts: use 'direct' or 'pairwise' with split sizes")
    if call.choose(algorithm, input.device, nbytes(input), fixed=None if even else "direct") == "native":
        return dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)
    outgoing = torch.split_with_sizes(call.reads(input), sending)
    incoming = torch.split_with_sizes(call.writes(output), receiving)
    return exchange(call, outgoing, incoming, [input], even)


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None, *, algorithm: str = "auto"
) -> Any:
    """Return when every rank of the group has called it. `device_ids` and `timeout` are for the native one."""
    if not is_member(group):
        return warn_not_member("barrier")
    call = Call("barrier", group, async_op)
    if call.choose(algorithm, torch.device("cpu"), 0, fixed="dissemination") == "native":
        return dist.barrier(group, async_op, device_ids, timeout)
    return call.start([])
