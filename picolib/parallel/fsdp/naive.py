"""FSDP by hand: shard everything, gather everything for a step, shard again.

It saves memory between steps and none during them, since the whole model is there at once. `unit` does the same one
module at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib import comm


class NaiveFullyShard:
    """Keeps 1/N of a module's parameters, in `shards`, for an optimizer; the module is whole inside `backward` only."""

    def __init__(self, module: nn.Module, group: Any = None) -> None:
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.parameters = list(module.parameters())
        self.shapes = [p.shape for p in self.parameters]
        self.shards = [nn.Parameter(self._own_part(p.detach())) for p in self.parameters]
        self._free()

    def backward(self, loss_of: Any) -> torch.Tensor:
        """`loss_of()` runs the forward pass. Afterwards each shard's `.grad` is its part of the mean over the ranks."""
        for parameter, shard, shape in zip(self.parameters, self.shards, self.shapes, strict=True):
            everything = shard.new_empty(self.size * len(shard))
            comm.all_gather_into_tensor(everything, shard.detach(), self.group)
            parameter.data = everything[: shape.numel()].view(shape)
        loss = loss_of()
        loss.backward()
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            shard.grad = torch.empty_like(shard)
            gradient = self._padded(parameter.grad)
            comm.reduce_scatter_tensor(shard.grad, gradient, dist.ReduceOp.AVG, self.group)
        self._free()
        return loss.detach()

    def _free(self) -> None:
        for parameter in self.parameters:
            parameter.data, parameter.grad = parameter.data.new_empty(0), None

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        part = -(-tensor.numel() // self.size)
        return nn.functional.pad(tensor.flatten(), (0, part * self.size - tensor.numel()))

    def _own_part(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._padded(tensor).chunk(self.size)[self.rank].clone()
