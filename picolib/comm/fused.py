"""A ring that computes between its messages: each block is used, or made, while others are on the wire.

Not part of the front door: a collective with a function in it is no call of torch.distributed's. The trace shows the
collective's own name and bytes. Where the backend carries other devices than the CPU, the collective is torch's own and
the computing comes after it, or before it: there a kernel on a stream of its own would have to do this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm import api
from picolib.comm.all_gather import ring as plain_gather_ring
from picolib.comm.call import Call
from picolib.comm.chunks import split
from picolib.comm.engine import Steps
from picolib.comm.ops import Reduction, reduction
from picolib.comm.p2p import Link
from picolib.comm.reduce_scatter import ring as plain_scatter_ring


def gather_ring(link: Link, blocks: list[torch.Tensor], use: Callable[[int], None]) -> Steps:
    """`all_gather.ring`, in which `use(r)` is called once block r is there, beside the next step's messages."""
    for step, messages in enumerate(plain_gather_ring(link, blocks)):
        use((link.rank - step) % link.size)  # the block that is on its way to the right now
        yield messages
    use((link.rank + 1) % link.size)  # whose block has come the whole way round


def scatter_ring(
    link: Link, chunks: list[torch.Tensor], out: torch.Tensor, op: Reduction, make: Callable[[int], None]
) -> Steps:
    """`reduce_scatter.ring`, in which `make(r)` fills chunk r as late as can be, beside the step before's messages."""
    make((link.rank - 1) % link.size)  # the chunk that leaves first
    for step, messages in enumerate(plain_scatter_ring(link, chunks, out, op)):
        make((link.rank - 2 - step) % link.size)  # whose sum is on its way here: our share of it comes next
        yield messages


def all_gather_and_use(
    output: torch.Tensor, input: torch.Tensor, use: Callable[[int], None], *, group: Any = None, label: str = ""
) -> None:
    """all_gather_into_tensor; `use(r)` is called once for each rank's block of `output`, when it has arrived.

    output: contiguous, [ranks, *input.shape].
    """
    call = Call("all_gather_into_tensor", group, False)
    if output.device.type != "cpu":
        api.all_gather_into_tensor(output.flatten(0, 1), input.contiguous(), group, label=label)
        for rank in range(call.members.size):
            use(rank)
        return
    output[call.members.rank].copy_(input)
    call.choose("ring", output.device, 0)
    blocks = split(call.writes(output), call.members.size)
    call.start([input], blocks, use, label=label, run=gather_ring)


def make_and_reduce_scatter(
    output: torch.Tensor, input: torch.Tensor, make: Callable[[int], None], *, group: Any = None, label: str = ""
) -> None:
    """reduce_scatter_tensor (sum); `make(r)` is called once for each rank's block of `input`, and must fill it.

    input: contiguous, [ranks, *output.shape].
    """
    call = Call("reduce_scatter_tensor", group, False)
    if output.device.type != "cpu":
        for rank in range(call.members.size):
            make(rank)
        api.reduce_scatter_tensor(output, input.flatten(0, 1), group=group, label=label)
        return
    call.choose("ring", output.device, 0)
    chunks, total = split(call.reads(input), call.members.size), reduction(dist.ReduceOp.SUM, output.dtype)
    call.start([input], chunks, call.writes(output), total, make, op=dist.ReduceOp.SUM, label=label, run=scatter_ring)
