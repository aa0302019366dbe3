"""Clip gradients by the norm of all of them together, wherever they are.

    norm = (sum of |g|^p over every element of every gradient of the model) ^ (1/p),    g *= min(1, max_norm / norm)

(Pascanu, Mikolov & Bengio 2013, algorithm 1.) A rank may hold a part of the gradients only. The p-th powers of the
parts' norms add up, so one number a group is enough, and every rank then scales by the same factor. Clipping each part
by its own norm would turn the gradient's direction, and differently on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from picolib import comm
from picolib.parallel.hooks import who_reduces
from picolib.parallel.spec import Shard, named_specs

Clippable = nn.Module | torch.Tensor


@torch.no_grad()
def clip_grad_norm_(
    module_or_modules_or_parameters: Clippable | Iterable[Clippable],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    groups: Iterable[dist.ProcessGroup] = (),
) -> torch.Tensor:
    """Scales all gradients in place, so that their total norm is at most `max_norm`; returns the norm before.

    Every element counts once: a parameter that is used twice (tied, or given twice) has one gradient, one that all
    ranks hold alike (data parallelism) is counted on this rank alone, without communication, and one that is sharded
    (fully_shard, tensor parallelism) is counted on all ranks that share it, as its module's record tells.

    Args:
        module_or_modules_or_parameters: what to clip. Parameters without a gradient are left out.
        max_norm: the largest norm that is left as it is; infinity only measures.
        norm_type: p; infinity means the largest absolute value.
        groups: process groups whose ranks hold *different* parameters, which the parameters themselves can't tell: the
            stages of a pipeline. All their ranks must call this, and get the norm over all of them.

    Raises:
        TypeError: something to clip is neither a module nor a tensor.
        ValueError: max_norm or norm_type makes no sense, a sharded parameter comes without its module, or the
            gradients belong to a ZeroRedundancyOptimizer, which has a clip_grad_norm_ of its own.
    """
    if not max_norm >= 0:
        raise ValueError(f"max_norm={max_norm} must be 0 or more.")
    if not norm_type > 0:
        raise ValueError(f"norm_type={norm_type} must be above 0: 2.0, 1.0, or infinity for the largest value.")
    holders = distinct_parameters(module_or_modules_or_parameters)
    parameters = [parameter for held_alike in holders.values() for parameter in held_alike]
    norms = []
    for sharers, held_alike in holders.items():
        norm = norm_of_own_gradients(held_alike, float(norm_type))
        for group in sharers:
            norm = norm_over_ranks(norm, float(norm_type), group)
        norms.append(norm)
    total_norm = norms[0] if len(norms) == 1 else get_total_norm([n.double() for n in norms], float(norm_type))
    for group in groups:
        total_norm = norm_over_ranks(total_norm, float(norm_type), group)
    clip_grads_with_norm_(parameters, max_norm, total_norm)
    return total_norm


def distinct_parameters(
    given: Clippable | Iterable[Clippable],
) -> dict[tuple[dist.ProcessGroup, ...], list[torch.Tensor]]:
    """All parameters of the modules and tensors given, each once, by the groups over which they are sharded."""
    if isinstance(given, Clippable):
        given = [given]
    found: dict[torch.Tensor, tuple[dist.ProcessGroup, ...]] = {}
    for part in given:
        if isinstance(part, nn.Module):
            for _, parameter, spec in named_specs(part):
                _refuse_unreduced(parameter)
                shards = [group for group, how in spec.placements if isinstance(how, Shard)] if spec else []
                found[parameter] = tuple(shards)
        elif isinstance(part, torch.Tensor):
            if getattr(part, "picolib_shard", False) and part not in found:
                raise ValueError("A sharded parameter can't be clipped by itself; give the module that it belongs to.")
            _refuse_unreduced(part)
            found.setdefault(part, ())
        else:
            raise TypeError(f"{part!r} can't be clipped; give modules or parameters.")
    holders: dict[tuple[dist.ProcessGroup, ...], list[torch.Tensor]] = {}
    for parameter, sharers in found.items():
        holders.setdefault(sharers, []).append(parameter)
    return holders or {(): []}


def _refuse_unreduced(parameter: torch.Tensor) -> None:
    if who_reduces(parameter) == "ZeroRedundancyOptimizer":  # not before its step: until then each rank has its own
        raise ValueError("ZeroRedundancyOptimizer reduces these gradients: call its clip_grad_norm_(max_norm) instead.")


def norm_of_own_gradients(parameters: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of what this rank's parameters stand for: a scalar tensor of the gradients' dtype, 0 without any."""
    gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]  # nothing has no largest value
    return get_total_norm(gradients, norm_type)


def norm_over_ranks(norm: torch.Tensor, norm_type: float, group: dist.ProcessGroup) -> torch.Tensor:
    """The norm of all ranks' parts together, from the norm of each: one all-reduce of one number.

    In float64, so that ranks whose gradients differ in dtype (or that have none) still send the same kind of number,
    and so that a p-th power doesn't overflow.
    """
    norm = norm.double()
    if math.isinf(norm_type):
        comm.all_reduce(norm, dist.ReduceOp.MAX, group)
        return norm
    power = norm**norm_type
    comm.all_reduce(power, group=group)
    return power ** (1 / norm_type)
