"""Data parallelism, step 3: a bucket's all-reduce starts as soon as its last gradient is there.

The backward pass goes on meanwhile. Autograd calls a hook after each gradient; the hook starts what can start, and
polls what is under way, so that a collective's next messages leave without waiting for the end (DESIGN: a collective
is a generator, advanced by polling).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib import comm
from picolib.parallel.ddp.bucketed import assign_buckets, copy_back


class OverlappedAverage:
    """Average a module's gradients during its backward pass; call `finish()` after it.

    Every parameter must get a gradient in every backward pass, on every rank in the same order: what happens
    otherwise is the business of `reducer`.
    """

    def __init__(self, module: nn.Module, cap_bytes: float, group: Any = None) -> None:
        self.group = group
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.buckets = assign_buckets(self.parameters, cap_bytes)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.under_way: list[tuple] = []
        for number, bucket in enumerate(self.buckets):
            for position in bucket:
                hook = lambda parameter, number=number: self._gradient_is_there(number)
                self.parameters[position].register_post_accumulate_grad_hook(hook)

    def _gradient_is_there(self, number: int) -> None:
        self.missing[number] -= 1
        if self.missing[number] == 0:
            gradients = [self.parameters[position].grad for position in self.buckets[number]]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            work = comm.all_reduce(flat, dist.ReduceOp.AVG, self.group, async_op=True, label=f"bucket {number}")
            self.under_way.append((work, flat, gradients))
        comm.poll()

    def finish(self) -> None:
        """Wait for what is still under way. Then every gradient is the mean over the ranks."""
        for work, flat, gradients in self.under_way:
            work.wait()
            copy_back(flat, gradients)
        self.under_way = []
        self.missing = [len(bucket) for bucket in self.buckets]
