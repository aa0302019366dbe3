"""Your FSDP inside `picolib.fully_shard`.

Which of your functions does what:

- `sharded_linear` (4.4) computes every nn.Linear. It gathers the weight in both passes, and scatters its gradient.
- What else a unit has (norms, embedding, biases; without 4.4 all of it) is gathered by `forward` (4.3) when its turn
  comes; or by `prefetched` (4.5) while the unit in front computes, wherever the order is known: in backward passes, and
  in forward passes from the second step on. These gradients are the library's to reduce.

Records, names, full states and hooks stay the library's: only what a unit does in its steps is yours.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from picolib.course.stack.lookahead import Lookahead
from picolib.course.stack.parts import Parts, is_the_world, wrong
from picolib.parallel.fsdp import api
from picolib.parallel.fsdp.conductor import Conductor
from picolib.parallel.fsdp.offload import OnDevice
from picolib.parallel.fsdp.parameter import ShardedParameter
from picolib.parallel.fsdp.unit import Unit
from picolib.parallel.hooks import inside_backward


def install(parts: Parts) -> None:
    """Whoever calls `fully_shard` gets units that are yours, where yours can do what is asked for."""
    api.Unit = partial(_unit, parts)  # type: ignore[misc, assignment]
    api.Conductor = partial(MyConductor, parts)  # type: ignore[misc, assignment]


def _unit(parts: Parts, module: nn.Module, parameters: list[ShardedParameter], *groups: Any, **options: Any) -> Unit:
    """The exercises know all ranks, one dtype, and the device: for groups, policies and offload it is the library's."""
    shard_group, replicate_group = groups
    plain = all(p.dtype is None and type(p.home) is OnDevice for p in parameters) and options["reduce_dtype"] is None
    if is_the_world(shard_group) and replicate_group is None and plain and dist.get_world_size() > 1:
        return MyUnit(parts, module, parameters, *groups, **options)
    return Unit(module, parameters, *groups, **options)


class MyUnit(Unit):
    """A unit of your functions. Weights of linear layers are none of its `parameters`, where `sharded_linear` is."""

    def __init__(
        self, parts: Parts, module: nn.Module, parameters: list[ShardedParameter], *groups: Any, **options: Any
    ) -> None:
        linear = [p for p in parameters if is_linear(p)]
        sharded_linear = parts.wanted("sharded_linear") if linear else None
        own = [p for p in parameters if sharded_linear is None or p not in linear]
        super().__init__(module, own, *groups, **options)
        for parameter in linear if sharded_linear else []:
            layer = parameter.owners[0][0]
            layer.forward = partial(_linear, sharded_linear, self, layer, parameter.chunk_rows)  # type: ignore
        self.gather = parts.wanted("forward") if own else None
        self.lookahead: Lookahead | None = None  # of the pass that is under way

    def unshard(self) -> None:
        """The unit has whole parameters afterwards, from your gather."""
        if self.is_unsharded or self.gathering or not self.parameters:
            super().unshard()
        elif self.lookahead is not None and self.lookahead.is_next(self):
            self.take(self.lookahead.fetch())
        elif self.gather is not None:
            self.gather([self.own_part()], [self._arrived], torch.zeros(()))
            if not self.is_unsharded:
                raise wrong("forward", "returned without calling its layer")
        else:
            super().unshard()

    @torch.no_grad()
    def own_part(self) -> torch.Tensor:
        """This rank's part of all its parameters, flat, as long as everybody's."""
        wire = self.parameters[0].full.new_empty(sum(self.lengths))
        for parameter, part in zip(self.parameters, wire.split(self.lengths), strict=True):
            parameter.write_own(part)
        return wire

    def _arrived(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The layer that `forward` calls: it computes nothing, the module will."""
        refuse_other_weight("forward", weight, self.own_part())
        self.take(weight)
        return x

    @torch.no_grad()
    def take(self, weight: torch.Tensor) -> None:
        """Everybody's parts, one after the other, become the whole parameters."""
        columns = weight.reshape(self.size, -1).split(self.lengths, dim=1)
        for parameter, wires in zip(self.parameters, columns, strict=True):
            parameter.fill(wires)
            parameter.show(parameter.full)
        self.is_unsharded = True


def refuse_other_weight(name: str, weight: Any, own: torch.Tensor) -> None:
    """An error for a weight that is not whole, or in which this rank's part is another."""
    n, rank = dist.get_world_size(), dist.get_rank()
    if not isinstance(weight, torch.Tensor) or weight.numel() != n * own.numel():
        got = f"{weight.numel()} numbers" if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise wrong(name, f"gave a layer {got} as its whole weight, where {n * own.numel()} numbers are right")
    if not torch.equal(weight.reshape(n, -1)[rank], own):
        raise wrong(name, f"gave a layer a weight in which part {rank} is not the one of rank {rank}")


def is_linear(parameter: ShardedParameter) -> bool:
    """The weight of a plain linear layer, and of nothing else."""
    (owner, attribute), *others = parameter.owners
    return type(owner) is nn.Linear and attribute == "weight" and not others


def _linear(sharded_linear: Any, unit: Unit, layer: nn.Linear, rows: int, x: torch.Tensor) -> torch.Tensor:
    """[..., in] -> [..., out]. Your parts are equally long; this rank's rows may be fewer, so zeros follow them."""
    part = layer.weight.flatten()
    part = F.pad(part, (0, rows * layer.in_features - part.numel()))
    if part.requires_grad:  # yours is the mean; others may have asked for the sum
        part.register_hook(lambda gradient: gradient * (unit.size / unit.divide_by))
    y = sharded_linear(part, x.reshape(-1, layer.in_features))
    right = [x.numel() // layer.in_features, rows * unit.size]
    if not isinstance(y, torch.Tensor) or list(y.shape) != right:
        got = list(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
        raise wrong("sharded_linear", f"returned {got}, where a tensor of shape {right} is right")
    y = y[:, : layer.out_features].reshape(*x.shape[:-1], layer.out_features)
    return y if layer.bias is None else y + layer.bias


class MyConductor(Conductor):
    """Lets `prefetched` go through a pass, where it is yours. Without it your gathers come when they are needed."""

    def __init__(self, parts: Parts, root: Unit, units: list[Unit]) -> None:
        super().__init__(root, units)
        self.parts = parts
        self.lookahead: Lookahead | None = None

    def _begin(self) -> None:
        self._pass_is_over()
        super()._begin()
        self._pass_begins(self.last_order)

    def after_forward(self, unit: Unit, output: Any) -> None:
        """As the library's; the root's is the end of the pass."""
        super().after_forward(unit, output)
        if unit is self.root and not inside_backward():
            self._pass_is_over()

    def before_backward(self, unit: Unit) -> None:
        """As the library's; the first one begins the pass."""
        if not self.will_end:
            self._pass_is_over()
            self._pass_begins(self.order[::-1])
        super().before_backward(unit)

    def finish(self) -> None:
        """As the library's; it is the end of the pass."""
        self._pass_is_over()
        super().finish()

    def _pass_begins(self, order: list[Unit]) -> None:
        coming = [unit for unit in order if isinstance(unit, MyUnit) and unit.parameters and not unit.is_unsharded]
        prefetched = self.parts.wanted("prefetched") if coming else None
        if prefetched is None or len(set(coming)) < len(coming):  # a module that runs twice is no order
            return
        self.lookahead = Lookahead(prefetched, coming, refuse_other_weight)
        for unit in coming:
            unit.lookahead = self.lookahead

    def _pass_is_over(self) -> None:
        if self.lookahead is not None:
            self.lookahead.end()
        self.lookahead = None
        for unit in self.units:
            if isinstance(unit, MyUnit):
                unit.lookahead = None

    def _fetch(self, order: list[Unit], place: int) -> None:
        """The library's prefetch, for units of its own, and where no gather is yours."""
        if not {"forward", "prefetched"} & set(self.parts):
            super()._fetch(order, place)
