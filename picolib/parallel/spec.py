"""What a local parameter stands for: its name and shape in the whole model, and how each group holds it.

A sharded parameter is a plain `nn.Parameter` with this rank's numbers. The record of what it is a part of stands on the
*module* that owns it (attributes of a parameter get lost when it is copied or loaded), and is the only source for full
states, clipping, checkpoints and initialisation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_SPECS = "_picolib_specs"
_UNITS = "_picolib_units"


@dataclass(frozen=True)
class Shard:
    """Split along `dim`, in the layout of torch.chunk: of 6 rows over 5 ranks, 2, 2, 2, 0 and 0."""

    dim: int


@dataclass(frozen=True)
class Replicate:
    """The same on every rank of the group."""


@dataclass(frozen=True)
class Partial:
    """The same on every rank of the group, but each rank's gradient is a summand: DTensor's Partial, of the gradient.

    Whoever declares it sums the gradient over the group, once, in backward (`replicated.py`); afterwards it is
    as with Replicate.
    """


@dataclass(frozen=True)
class ShardSpec:
    """name, shape: of the full parameter. placements: (process group, Shard | Replicate | Partial), outermost first."""

    name: str
    shape: torch.Size
    placements: tuple[tuple[Any, Shard | Replicate | Partial], ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardSpec:
        return self  # of the same groups; nobody can copy those


class HasGroup:
    """For modules with a process group in `group`: a deep copy works in the same group."""

    group: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> HasGroup:
        twin = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.group)] = self.group
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin


def set_spec(module: nn.Module, attribute: str, spec: ShardSpec) -> None:
    """Record what `module.<attribute>` is a part of."""
    module.__dict__.setdefault(_SPECS, {})[attribute] = spec


def spec_of(module: nn.Module, attribute: str) -> ShardSpec | None:
    """The record of `module.<attribute>`; None for a parameter that is whole."""
    return module.__dict__.get(_SPECS, {}).get(attribute)


def set_unit(module: nn.Module, attribute: str, unit: Any) -> None:
    """Record the unit of FSDP that `module.<attribute>` belongs to."""
    module.__dict__.setdefault(_UNITS, {})[attribute] = unit


def unit_of(module: nn.Module, attribute: str) -> Any:
    """The unit of FSDP that `module.<attribute>` belongs to, or None."""
    return module.__dict__.get(_UNITS, {}).get(attribute)


def named_specs(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, ShardSpec | None]]:
    """(name below `module`, parameter, record) of every parameter, a tied one once.

    The parameter is what the record tells of: where FSDP has made it whole for a forward pass, this rank's shard again.
    """
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for unit in part.__dict__.get(_UNITS, {}).values():
            unit.reshard()
        for attribute, parameter in part._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}.{attribute}".lstrip("."), parameter, spec_of(part, attribute)


def refuse_parts_of_one_tensor(argument: str, group: Any, specs: Iterable[tuple[str, ShardSpec | None]]) -> None:
    """ValueError where ranks of `group` hold different parts of a parameter: they are no replicas of each other."""
    ranks = set(dist.get_process_group_ranks(group))
    for name, spec in specs:
        for other, placement in spec.placements if spec is not None else ():
            shared = sorted(ranks & set(dist.get_process_group_ranks(other)))
            if isinstance(placement, Shard) and len(shared) > 1:
                raise ValueError(
                    f"{argument} must hold replicas, but ranks {shared[0]} and {shared[1]} in it hold different "
                    f"parts of {name}: give the data-parallel dimension of the mesh."
                )


def rows_of(total: int, size: int, rank: int) -> tuple[int, int]:
    """The first row of a rank's shard, and the first one that is not in it.

    >>> [rows_of(6, 5, rank) for rank in range(5)]
    [(0, 2), (2, 4), (4, 6), (6, 6), (6, 6)]
    """
    chunk = -(-total // size)
    return min(rank * chunk, total), min((rank + 1) * chunk, total)
