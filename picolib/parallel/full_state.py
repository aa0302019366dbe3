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

    Parameters on the meta device are created on the CPU. One full tensor is looked at after the other, so a state that
    reads each from a file when asked for it never stands in memory as a whole.

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
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, (parameter, spec) in targets.items():
        if parameter.is_meta:
            made[parameter] = like_meta(parameter, own_part(state[name], spec))
        else:
            parameter.copy_(own_part(state[name], spec))
    replace_parameters(module, made)
    for name, buffer in buffers.items():
        if name in state:
            buffer.copy_(state[name])
    for prefix, part in module.named_modules():
        extra = f"{prefix}._extra_state".lstrip(".")
        if extra in state:
            part.set_extra_state(state[extra])


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def own_part(whole: torch.Tensor, spec: ShardSpec | None) -> torch.Tensor:
    """This rank's part of a full tensor, as a view; all of it where there is no record."""
    for group, placement in spec.placements if spec is not None else ():
        if isinstance(placement, Shard):
            whole = whole if whole.dim() else whole.view(1)
            first, last = rows_of(whole.shape[placement.dim], dist.get_world_size(group), dist.get_rank(group))
            whole = whole.narrow(placement.dim, first, last - first)
    return whole


def like_meta(parameter: nn.Parameter, value: torch.Tensor) -> nn.Parameter:
    """A parameter with these numbers in memory of its own, in place of one on the meta device."""
    numbers = value.detach().to(parameter.dtype).clone(memory_format=torch.contiguous_format)
    return nn.Parameter(numbers, requires_grad=parameter.requires_grad)


def replace_parameters(module: nn.Module, made: dict[nn.Parameter, nn.Parameter]) -> None:
    """Puts each new parameter wherever the old one stood; the same old one in two places stays one (a tie)."""
    for part in module.modules():
        for name, old in list(part._parameters.items()):
            if old in made:
                part._parameters[name] = made[old]


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
