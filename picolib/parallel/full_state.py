"""The whole model's state from sharded parameters, and back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib import comm
from picolib.parallel.spec import Shard, ShardSpec, named_specs, rows_of


def full_state_dict(module: nn.Module) -> dict[str, torch.Tensor]:
    """Full tensors by the names of the plain model, on every rank, as copies. Every rank must call this.

    One all-gather for each sharded parameter. A wrapper such as DistributedDataParallel leaves no trace in the names;
    a tied parameter stands under all of its names, as in `state_dict()`.
    """
    module = _plain(module)
    whole = {id(p): _gathered(p.detach(), spec) for _, p, spec in named_specs(module)}
    state = {name: whole[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    persistent = module.state_dict(keep_vars=True)
    return {name: state[name] if name in state else _copy(value) for name, value in persistent.items()}


@torch.no_grad()
def load_full_state_dict(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Every rank takes its part of a full state; nothing is sent.

    Raises:
        ValueError: a name is missing or too many, or a shape differs. Nothing has been changed then.
    """
    module = _plain(module)
    targets = {name: (p, spec) for name, p, spec in named_specs(module)}
    buffers = dict(module.named_buffers())
    expected = module.state_dict().keys()
    wrong = sorted(expected ^ state.keys())
    if wrong:
        where = "lacks" if wrong[0] in expected else "has"
        raise ValueError(f"state must have the model's names, but it {where} {wrong[0]}.")
    shapes = {name: p.shape if spec is None else spec.shape for name, (p, spec) in targets.items()}
    shapes |= {name: buffer.shape for name, buffer in buffers.items() if name in state}
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise ValueError(f"state[{name!r}] must have shape {list(shape)}, got {list(state[name].shape)}.")
    for name, (parameter, spec) in targets.items():
        parameter.copy_(state[name] if spec is None else own_part(state[name], spec))
    for name, buffer in buffers.items():
        if name in state:
            buffer.copy_(state[name])
    for prefix, part in module.named_modules():
        extra = f"{prefix}._extra_state".lstrip(".")
        if extra in state:
            part.set_extra_state(state[extra])


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def own_part(whole: torch.Tensor, spec: ShardSpec) -> torch.Tensor:
    """This rank's part of a full tensor."""
    for group, placement in spec.placements:
        if isinstance(placement, Shard):
            whole = whole if whole.dim() else whole.view(1)
            first, last = rows_of(whole.shape[placement.dim], dist.get_world_size(group), dist.get_rank(group))
            whole = whole.narrow(placement.dim, first, last - first)
    return whole


def _gathered(part: torch.Tensor, spec: ShardSpec | None) -> torch.Tensor:
    if spec is None:
        return part.clone()
    cuts, whole = [], list(spec.shape) or [1]
    for group, placement in spec.placements:  # the next one cuts what this one has left
        if isinstance(placement, Shard):
            cuts.append((whole[placement.dim], placement.dim, group))
            first, last = rows_of(whole[placement.dim], dist.get_world_size(group), dist.get_rank(group))
            whole[placement.dim] = last - first
    for total, dim, group in reversed(cuts):
        part = _gather_dim(part, total, dim, group)
    return part.reshape(spec.shape)


def _gather_dim(part: torch.Tensor, total: int, dim: int, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    spans = [rows_of(total, size, rank) for rank in range(size)]
    pieces = [part.new_empty(*part.shape[:dim], last - first, *part.shape[dim + 1 :]) for first, last in spans]
    comm.all_gather(pieces, part.contiguous(), group)
    return torch.cat(pieces, dim)


def _plain(module: nn.Module) -> nn.Module:
    """The module inside a data-parallel wrapper."""
    from picolib.parallel.ddp import DistributedDataParallel

    return module.module if isinstance(module, DistributedDataParallel) else module
