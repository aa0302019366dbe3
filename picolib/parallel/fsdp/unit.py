"""A unit of FSDP: the parameters of one wrapped module, less those of wrapped modules inside it. They travel together.

Its three steps, each one collective or none:

    unshard   all-gather the parameters            (N-1)/N of their bytes sent by each rank
    reshard   free them
    reduce    reduce-scatter their gradients       (N-1)/N of the bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib import comm
from picolib.parallel.fsdp.parameter import ShardedParameter


class Unit:
    """Parameters that are sharded over `shard_group`; with a `replicate_group`, other groups hold the same shards."""

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[ShardedParameter],
        shard_group: Any,
        replicate_group: Any,
        *,
        reshard_after_forward: bool,
        reduce_dtype: torch.dtype | None,
        algorithm: str,
    ) -> None:
        self.module, self.parameters = module, list(parameters)
        self.group, self.replicas, self.algorithm = shard_group, replicate_group, algorithm
        self.size, self.rank = dist.get_world_size(shard_group), dist.get_rank(shard_group)
        self.reshard_after_forward, self.reduce_dtype = reshard_after_forward, reduce_dtype
        self.divide_by: float = self.size * (dist.get_world_size(replicate_group) if replicate_group else 1)
        self.name = "model"  # its path below the root, for labels
        self.trained = [p for p in self.parameters if p.shard.requires_grad]
        self.synchronises = True  # whether backward passes reduce the gradients
        self.lengths = [p.wire_length for p in self.parameters]
        self.is_unsharded = False
        self.gathering: tuple[Any, torch.Tensor] | None = None
        self.reducing: tuple[Any, torch.Tensor, torch.Tensor] | None = None
        self.gradients_there = 0  # of `trained`, in this backward pass

    # unshard ----------------------------------------------------------------------------------------------------

    def start_unshard(self) -> None:
        """Start the all-gather; does nothing when it has been started, or the parameters are there."""
        if self.is_unsharded or self.gathering or not self.parameters:
            return
        full = self.parameters[0].full
        wires = torch.empty(self.size, sum(self.lengths), dtype=full.dtype, device=full.device)
        for parameter, wire in zip(self.parameters, wires[self.rank].split(self.lengths), strict=True):
            parameter.write_own(wire)
        work = comm.all_gather_into_tensor(
            wires.view(-1), wires[self.rank], self.group, True, algorithm=self.algorithm, label=f"{self.name} unshard"
        )
        self.gathering = work, wires

    def unshard(self) -> None:
        """The module has whole parameters afterwards."""
        if self.is_unsharded:
            return
        self.start_unshard()
        if self.gathering is not None:
            work, wires = self.gathering
            work.wait()
            for parameter, columns in zip(self.parameters, wires.split(self.lengths, dim=1), strict=True):
                parameter.fill(columns)
                parameter.show(parameter.full)
        self.gathering, self.is_unsharded = None, True

    def follow_shards(self) -> None:
        """Before a forward pass: parameters may have been converted, frozen or unfrozen since the last one."""
        for parameter in self.parameters:
            parameter.follow_shard()
        self.trained = [p for p in self.parameters if p.shard.requires_grad]

    # reshard ----------------------------------------------------------------------------------------------------

    def reshard(self) -> None:
        """The module has its shards afterwards, and the memory of the whole parameters is free."""
        if self.gathering is not None:  # fetched in advance, and not used after all
            self.unshard()
        if self.is_unsharded:
            for parameter in self.parameters:
                parameter.show(parameter.shard)
                parameter.free()
        self.is_unsharded = False

    # reduce -----------------------------------------------------------------------------------------------------

    def has_gradients(self) -> bool:
        """Whether there is something that the other ranks don't know yet."""
        return any(p.full.grad is not None for p in self.trained)

    def is_through(self) -> bool:
        """Whether every parameter has had its gradient in this backward pass."""
        return 0 < len(self.trained) == self.gradients_there

    @torch.no_grad()  # hooks run with gradients enabled under create_graph; the buffers must not join that graph
    def start_reduce(self) -> None:
        """Start the reduce-scatter of the whole gradients, and free them."""
        self.finish_reduce()
        first = self.trained[0]
        dtype, lengths = self.reduce_dtype or first.full.dtype, [p.wire_length for p in self.trained]
        wires = torch.empty(self.size, sum(lengths), dtype=dtype, device=first.full.device)
        for parameter, columns in zip(self.trained, wires.split(lengths, dim=1), strict=True):
            parameter.write_gradient(columns)
            parameter.full.grad = None
        own = wires.new_empty(sum(lengths))
        work = comm.reduce_scatter_tensor(
            own, wires.view(-1), group=self.group, async_op=True, algorithm=self.algorithm,
            label=f"{self.name} reduce",
        )  # fmt: skip
        self.reducing = work, own, wires

    def forget_gradients(self) -> None:
        """Throw away what has not been reduced, or not to its end."""
        if self.reducing is not None:
            self.reducing[0].wait()
        self.reducing, self.gradients_there = None, 0
        for parameter in self.parameters:
            parameter.full.grad = None

    def finish_reduce(self) -> None:
        """The shards have their gradients afterwards: the sum over all ranks, divided by `divide_by`.

        A parameter that no rank's loss used gets none.
        """
        if self.reducing is None:
            return
        work, own, _ = self.reducing
        self.reducing = None
        work.wait()
        if self.replicas is not None:
            comm.all_reduce(own, group=self.replicas, label=f"{self.name} replicas")
        parts = zip(self.trained, own.split([p.wire_length for p in self.trained]), strict=True)
        found = [(parameter, part) for parameter, part in parts if not parameter.nobody_had_gradient(part)]
        if self.divide_by != 1:
            own /= self.divide_by
        for parameter, part in found:
            parameter.take_gradient(part)
