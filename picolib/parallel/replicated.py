"""Parameters that every rank holds, while each rank's gradient is a summand only: they are summed once, here.

    norms in sequence parallelism     each rank sees its own tokens
    key-value heads, fewer than ranks each rank's query heads use a copy of the same head

Their ShardSpec says Partial for the group. A replicated parameter that sees the same on every rank (a norm without
sequence parallelism) has the whole gradient everywhere already: to sum it would make it t times too big.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib import comm
from picolib.parallel.spec import Partial, ShardSpec, set_spec, spec_of


def sum_gradient_over(module: nn.Module, attribute: str, group: Any) -> None:
    """For a replicated parameter that does a part of the work on each rank: its gradient is the sum of the ranks'.

    The module says so, at each forward pass: a hook on the parameter alone would stay behind where the module gets
    another one, as by deepcopy or fully_shard.
    """
    spec = spec_of(module, attribute) or ShardSpec(attribute, getattr(module, attribute).shape, ())
    set_spec(module, attribute, dataclasses.replace(spec, placements=(*spec.placements, (group, Partial()))))

    def summed(gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        comm.all_reduce(total, group=group, label="gradient of a replicated parameter")
        return total

    def watch(module: nn.Module, args: tuple) -> None:
        parameter = getattr(module, attribute)
        if parameter.requires_grad and summed not in (parameter._backward_hooks or {}).values():
            parameter.register_hook(summed)

    module.register_forward_pre_hook(watch)


def groups_of_heads(heads: int, group: Any) -> tuple[Any, Any]:
    """(the group that the heads are cut over, the group that holds copies of this rank's head).

    Where every rank has heads of its own, those are `group` and None. Else rank r of t has head r // (t / heads):

        4 ranks, 2 heads     cut over [0, 2] and [1, 3]     copies on [0, 1] and [2, 3]

    All ranks of `group` must call this, and no others.

    Raises:
        ValueError: neither divides the other.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if heads % size == 0:
        return group, None
    if size % heads:
        raise ValueError(
            f"num_key_value_heads={heads} must be divisible by the group's size, {size}, or divide it: then ranks "
            "share a head."
        )
    copies = size // heads
    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    head, copy = divmod(rank, copies)
    return _new_group(ranks[copy::copies]), _new_group(ranks[head * copies : (head + 1) * copies])


def _new_group(ranks: list[int]) -> Any:
    """A group that only its members make: the rest of the world may be busy with other models."""
    return dist.new_group(ranks, use_local_synchronization=True)
