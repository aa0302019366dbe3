"""ZeRO-1 by hand: an all-reduce is a reduce-scatter and an all-gather, and the optimizer fits in between.

Data parallelism all-reduces gradients, and then every rank computes the same step on all parameters, with the same
optimizer state. If each rank steps only its own part, it needs only its own part of the gradients and of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from picolib import comm


def zero_1_step(
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    step: Callable[[torch.Tensor, torch.Tensor], None],
    group: Any = None,
) -> None:
    """One step on a flat vector of parameters, whose length the group's size divides.

    Args:
        parameters: the same on every rank, before and after.
        gradient: this rank's own, of the same length.
        step: changes a part of the parameters in place, given its averaged gradient; keeps state for that part alone.
    """
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    mine = parameters.chunk(n)[rank]
    averaged = torch.empty_like(mine)
    comm.reduce_scatter_tensor(averaged, gradient, dist.ReduceOp.AVG, group)  # (N-1)/N of the bytes
    step(mine, averaged)
    comm.all_gather_into_tensor(parameters, mine, group)  # and (N-1)/N again
