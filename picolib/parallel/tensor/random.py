"""Dropout in a tensor-parallel group: masks differ where activations are cut, and agree where they are replicated.

    replicated    every rank holds the same numbers and must drop the same ones, or the ranks' copies drift apart
    cut           every rank holds other numbers; with one mask for all of them, what should be independent is not

All ranks of a group draw from the same stream (`torch.manual_seed(seed)`, the same seed on all of them), so replicated
regions agree by themselves. A cut region takes one number from that stream, the same on all ranks, and goes on from
(that number, rank). What it draws inside leaves the common stream alone. And since everything follows from the common
stream, which `torch.utils.checkpoint` puts back, recomputation drops the same numbers again. (Megatron-LM keeps a
second stream for cut regions, which its own checkpoint function must put back as well.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib.model.seeds import named_generator
from picolib.parallel.spec import HasGroup


@contextmanager
def sharded_region(group: Any = None) -> Iterator[None]:
    """Random numbers drawn inside differ from rank to rank of the group. All its ranks must enter it, in one order.

        with sharded_region(group):
            x = F.dropout(x, 0.1)        # x is cut over the group

    Outside, ranks that have drawn alike so far go on drawing alike.
    """
    drawn = int(torch.randint(1 << 62, ()))
    mine = named_generator(drawn, f"rank {dist.get_rank(group)}").initial_seed()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(mine)
        if devices:
            torch.cuda.manual_seed(mine)
        yield


class ShardedDropout(HasGroup, nn.Dropout):
    """nn.Dropout for activations that are cut over a group: by features, by heads, or by tokens.

    For replicated activations nn.Dropout is right as it is, if all ranks of the group have the same seed.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, group: Any = None) -> None:
        super().__init__(p, inplace)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x with its own mask on each rank."""
        if not self.training:
            return x
        with sharded_region(self.group):
            return super().forward(x)
