"""One parameter under FSDP: this rank's rows for the optimizer, and the whole tensor while a module computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from picolib.parallel.fsdp.offload import OnDevice
from picolib.parallel.missing import nobody_had, write_gradient
from picolib.parallel.spec import rows_of, spec_of


class ShardedParameter:
    """`shard` holds this rank's rows (dimension 0, as torch.chunk cuts) and is what the module shows between steps.

    `full` is the whole parameter. It is one tensor object for ever, since autograd saves it in the forward pass and
    looks at it in the backward pass; only its memory comes and goes. Writes go through `.data`, which autograd does not
    count as changes: what it saved is again in place when it is needed.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        owners: list[tuple[nn.Module, str]],
        rank: int,
        size: int,
        dtype: torch.dtype | None,
        home: OnDevice,
    ) -> None:
        self.owners, self.size, self.shape, self.dtype, self.home = owners, size, parameter.shape, dtype, home
        whole = parameter.detach()
        rows = whole.view(-1, 1) if whole.dim() < 2 else whole.flatten(1)  # a scalar is one row of one number
        self.total_rows, self.row_length = rows.shape[0], rows.shape[1]
        self.first, self.last = rows_of(self.total_rows, size, rank)
        self.chunk_rows = rows_of(self.total_rows, size, 0)[1]
        trains = parameter.requires_grad
        own = rows[self.first : self.last].reshape(self.last - self.first, *self.shape[1:])
        self.shard = nn.Parameter(home.keep(own), requires_grad=trains)
        self.shard.picolib_shard = True  # by itself it must not be clipped
        self.full = nn.Parameter(self._room(), requires_grad=trains)
        self.nbytes = self.full.untyped_storage().nbytes()
        self.lacks = False  # whether this rank had no gradient in the last reduction
        self.free()

    def _room(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype or self.shard.dtype, device=self._compute_device())

    def _compute_device(self) -> torch.device:
        return self.home.compute_device or self.shard.device

    @property
    def name(self) -> str:
        """Its name in the sharded module."""
        return spec_of(*self.owners[0]).name

    def follow_shard(self) -> None:
        """The whole parameter takes over what users have done to the shard: dtype, device, frozen or not.

        What was offloaded is taken home again where a conversion has moved it.

        Raises:
            RuntimeError: the module shows something else than the shard.
        """
        for module, attribute in self.owners:
            if module._parameters.get(attribute) is not self.shard:
                raise RuntimeError(
                    f"{self.name} was replaced after fully_shard: copy into it, or use picolib.load_full_state_dict."
                )
        if not self.home.holds(self.shard.data):
            self.shard.data = self.home.keep(self.shard.data)
        if self.full.dtype != (self.dtype or self.shard.dtype) or self.full.device != self._compute_device():
            self.full.grad = None
            self.full.data = self._room()
            self.nbytes = self.full.untyped_storage().nbytes()
            self.free()
        self.full.requires_grad_(self.shard.requires_grad)

    @property
    def wire_length(self) -> int:
        """Numbers that every rank sends, padding included."""
        return self.chunk_rows * self.row_length

    def write_own(self, wire: torch.Tensor) -> None:
        """This rank's rows, into a vector of `wire_length` numbers on the compute device.

        A copy from pinned memory is not waited for: the copy back of the gradients is, and follows it on the stream.
        """
        own = self.shard.detach().reshape(-1)
        wire[: own.numel()].copy_(own, non_blocking=self.home.pins)
        wire[own.numel() :].zero_()

    def fill(self, wires: torch.Tensor) -> None:
        """Everybody's rows [size, wire_length] become the whole parameter."""
        self.full.data.untyped_storage().resize_(self.nbytes)
        for ours, theirs in self._rows_by_rank(self.full.data, wires):
            ours.copy_(theirs)

    def write_gradient(self, wires: torch.Tensor) -> None:
        """What this rank adds to the sum of gradients, into everybody's rows [size, wire_length]."""
        self.lacks = self.full.grad is None
        if self.lacks:
            write_gradient(None, wires)
            return
        if self.chunk_rows * self.size != self.total_rows:
            wires.zero_()  # the padding
        for ours, theirs in self._rows_by_rank(self.full.grad, wires):
            write_gradient(ours, theirs)

    def _rows_by_rank(self, whole: torch.Tensor, wires: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(each rank's rows in the whole tensor, the same in its wire, which may end with padding).

        A gradient may be laid out in any way; the whole parameter is contiguous, so that its rows are no copies.
        """
        rows = whole.reshape(self.total_rows, self.row_length)
        for rank in range(self.size):
            first, last = rows_of(self.total_rows, self.size, rank)
            yield rows[first:last].reshape(-1), wires[rank, : (last - first) * self.row_length]

    def nobody_had_gradient(self, wire: torch.Tensor) -> bool:
        """Whether this sum is one of no gradients at all. Only who had none has to look."""
        return self.lacks and nobody_had(wire)

    def take_gradient(self, wire: torch.Tensor) -> None:
        """This rank's rows of the reduced gradient: added to what the shard has."""
        own = wire[: self.shard.numel()].view(self.shard.shape).to(self.shard.dtype)
        if self.shard.grad is None:
            self.shard.grad = self.home.keep(own)
        else:
            self.shard.grad += own.to(self.shard.device)

    def free(self) -> None:
        """Give the whole parameter's memory back; the tensor stays, as a name for it."""
        self.full.data.untyped_storage().resize_(0)

    def show(self, parameter: nn.Parameter) -> None:
        """Let the module, and every other module that is tied to it, have the shard or the whole parameter."""
        for module, attribute in self.owners:
            module._parameters[attribute] = parameter


class ReplacedParameter(nn.Parameter):
    """What a parameter becomes when its module is sharded. An optimizer that was built before holds it, and is told."""

    @property
    def grad(self) -> Any:
        """Optimizers ask for this in `step()` and `zero_grad()`."""
        raise RuntimeError(
            "This optimizer holds parameters from before fully_shard, which nothing uses any more: "
            "build the optimizer after sharding, from model.parameters()."
        )

    @grad.setter
    def grad(self, value: Any) -> None:
        raise RuntimeError("This parameter was replaced by fully_shard: use those of model.parameters().")


def replace(parameter: nn.Parameter) -> None:
    """The full parameter's memory is given back, and whoever still holds the tensor learns of it."""
    parameter.data = parameter.data.new_empty(0)
    parameter.__class__ = ReplacedParameter
