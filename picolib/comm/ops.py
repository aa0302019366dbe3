"""Reduction operations: how two partial results become one.

Every rank must end with the same bits. Floating-point addition is commutative but not associative, and
min(0.0, -0.0) depends on the order of its arguments, so wherever two ranks compute the same value each for
itself, both combine the lower rank's operand first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp


class Reduction(NamedTuple):
    """A named operation. `reduction(lower, higher, out=target)` combines, `finish` ends an average."""

    name: str
    combine: Callable[..., torch.Tensor]
    average: bool = False

    def __call__(self, lower: torch.Tensor, higher: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Combine two partial results into `out`, which may be either of them."""
        return self.combine(lower, higher, out=out)

    def finish(self, total: torch.Tensor, size: int) -> torch.Tensor:
        """Turn the combination of all `size` contributions into the result, in place: AVG divides."""
        return total.div_(size) if self.average else total


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
    try:
        return _reduction(op, dtype)
    except TypeError:  # not hashable
        raise ValueError(f"op must be one of torch.distributed.ReduceOp, got {op!r}.") from None


@lru_cache(maxsize=256)
def _reduction(op: Any, dtype: torch.dtype) -> Reduction:
    found = _REDUCTIONS.get(getattr(op, "op", op))
    if found is None:
        known = ", ".join(r.name.upper() for r in _REDUCTIONS.values())
        raise ValueError(f"op must be one of {known}, got {op!r}.")
    if found.average and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"ReduceOp.AVG needs a floating-point tensor, got {dtype}: use SUM and divide.")
    probe = torch.ones(1).to(dtype)
    try:
        found.combine(probe, probe, out=torch.empty_like(probe))
    except (RuntimeError, NotImplementedError):
        raise ValueError(f"ReduceOp.{found.name.upper()} does not exist for tensors of {dtype}.") from None
    return found
