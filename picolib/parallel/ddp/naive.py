"""Data parallelism, step 1: after the backward pass, average each parameter's gradient over the ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from picolib import comm


def average_gradients(module: nn.Module, group: Any = None) -> None:
    """One all-reduce for each parameter. Call it between `backward()` and `optimizer.step()`.

    The ranks wait for each other once a parameter, and while they do, nothing is computed.
    """
    for parameter in module.parameters():
        if parameter.grad is not None:
            comm.all_reduce(parameter.grad, dist.ReduceOp.AVG, group)
