"""The front door: torch.distributed's names and signatures, plus `algorithm="auto"`."""

from __future__ import annotations

import torch
import torch.distributed as dist

from picolib.comm import all_reduce as all_reduces
from picolib.comm import engine
from picolib.comm.groups import resolve
from picolib.comm.ops import reduction
from picolib.comm.p2p import Link
from picolib.launch import monitor


def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False, *, algorithm="auto"):
    process_group, members = resolve(group)
    algorithm = "ring" if algorithm == "auto" else algorithm
    combine = reduction(op, tensor.dtype)
    call = monitor.collective("all_reduce", process_group, (tensor,), op=op, algorithm=algorithm, async_op=async_op)
    vector = tensor.detach().view(-1)
    steps = getattr(all_reduces, algorithm)(Link(process_group, members, members.next_tag(), call), vector, combine)
    if async_op:
        return engine.Work(steps, members, call)
    with call:
        engine.run(steps)
