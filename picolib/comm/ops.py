"""Reduction operations: how partial results become one.

Every rank must end with the same bits. Floating-point addition is commutative but not associative, and
min(0.0, -0.0) depends on the order of its arguments, so wherever two ranks compute the same value each for
itself, both combine the lower rank's operand first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp


class Reduction(NamedTuple):
    """A named operation. `op(lower, higher, out=target)` combines, `op.finish` ends an average."""

    name: str
    combine: Callable[..., torch.Tensor]
    average: bool = False

    def __call__(self, lower: torch.Tensor, higher: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Combine two partial results into `out`, which may be either of them."""
        return self.combine(lower, higher, out=out)

    def in_order(self, mine: torch.Tensor, theirs: torch.Tensor, mine_first: bool, out: torch.Tensor) -> torch.Tensor:
        """Combine with a partner's partial result, the lower rank's first: `mine_first` when that is this rank."""
        return self.combine(mine, theirs, out=out) if mine_first else self.combine(theirs, mine, out=out)

    def combine_all(self, contributions: Sequence[torch.Tensor], out: torch.Tensor, scratch: torch.Tensor) -> None:
        """Combine one contribution per rank, in rank order, into `out`, which may be one of them.

        `scratch` holds what is combined so far.
        """
        total = contributions[0]
        for contribution in contributions[1:-1]:
            total = self.combine(total, contribution, out=scratch)
        if len(contributions) > 1:
            self.combine(total, contributions[-1], out=out)
        elif out is not total:
            out.copy_(total)

    def finish(self, total: torch.Tensor, size: int) -> torch.Tensor:
        """Turn the combination of all `size` contributions into the result, in place: AVG divides."""
        return total.div_(size) if self.average else total

    def without_average(self) -> Reduction:
        """The same combination for a part of the ranks: the division comes once, at the end."""
        return self._replace(average=False)


_REDUCTIONS = {
    ReduceOp.SUM: Reduction("sum", torch.add),
    ReduceOp.AVG: Reduction("avg", torch.add, average=True),
    ReduceOp.PRODUCT: Reduction("product", torch.mul),
    ReduceOp.MIN: Reduction("min", torch.minimum),
    ReduceOp.MAX: Reduction("max", torch.maximum),
    ReduceOp.BAND: Reduction("band", torch.bitwise_and),
    ReduceOp.BOR: Reduction("bor", torch.bitwise_or),
    ReduceOp.BXOR: Reduction("bxor", torch.bitwise_xor),
}


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """The Reduction for one of torch's ReduceOps, or one sentence why this dtype cannot have it."""
    return _reduction(getattr(op, "op", op), dtype)  # ReduceOp(ReduceOp.SUM) wraps the plain one


@lru_cache(maxsize=256)
def _reduction(op: Any, dtype: torch.dtype) -> Reduction:
    found = _REDUCTIONS.get(op)
    if found is None:
        known = ", ".join(r.name.upper() for r in _REDUCTIONS.values())
        raise ValueError(f"op must be one of ReduceOp's {known}, got {op!r}.")
    if found.average and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"ReduceOp.AVG needs a floating-point tensor, got {dtype}: use SUM and divide.")
    probe = torch.zeros(1).to(dtype)
    try:
        found.combine(probe, probe, out=torch.empty_like(probe))
    except (RuntimeError, NotImplementedError):
        raise ValueError(f"ReduceOp.{found.name.upper()} does not exist for tensors of {dtype}.") from None
    return found
