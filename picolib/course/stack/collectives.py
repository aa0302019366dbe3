"""Your all-reduce under everything: what the exercises leave to the caller is done here.

The exercises ask for the sum of a vector whose length N divides, in place. Callers bring any shape, and want means too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from picolib import comm

SHORT_BYTES = 4096  # up to here only the number of steps counts: recursive doubling, where it is yours
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


class Done:
    """The handle of a collective that is over: yours has no other half that could run later."""

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install(parts: Mapping[str, Any]) -> None:
    """Let `dist.all_reduce` and `comm.all_reduce` be yours, where yours can do what is asked for."""
    if "ring_all_reduce" in parts or "recursive_doubling" in parts:
        for home in (dist, dist.distributed_c10d, comm, comm.api):
            home.all_reduce = _all_reduce(parts, home.all_reduce)


def _all_reduce(parts: Mapping[str, Any], librarys: Callable[..., Any]) -> Callable[..., Any]:
    def all_reduce(tensor: Any, op: Any = SUM, group: Any = None, async_op: bool = False, **options: Any) -> Any:
        algorithm = options.get("algorithm", "auto")
        fitting = _fitting(parts, tensor, op, group) if algorithm == "auto" else None
        if fitting is None:
            return librarys(tensor, op, group, async_op, **options)
        with torch.no_grad():
            _sum(fitting, tensor.detach())
            if op == AVG:
                tensor.detach().div_(dist.get_world_size())
        return Done() if async_op else None

    return all_reduce


def _fitting(parts: Mapping[str, Any], tensor: Any, op: Any, group: Any) -> Any:
    """Your algorithm for this call; None where it takes the library's: other operations, smaller groups."""
    n = dist.get_world_size()
    if not isinstance(tensor, torch.Tensor) or op not in (SUM, AVG) or n == 1 or not tensor.numel():
        return None
    if group is not None and dist.get_process_group_ranks(group) != list(range(n)):
        return None
    if op == AVG and not tensor.is_floating_point():
        return None
    ring, doubling = parts.get("ring_all_reduce"), parts.get("recursive_doubling") if n & (n - 1) == 0 else None
    return doubling if doubling and (tensor.nbytes <= SHORT_BYTES or not ring) else ring


def _sum(algorithm: Any, tensor: torch.Tensor) -> None:
    """In place, by an algorithm for vectors whose length the number of ranks divides: zeros fill up the rest."""
    flat, n = tensor.reshape(-1), dist.get_world_size()
    padded = torch.cat([flat, flat.new_zeros(-flat.numel() % n)])
    algorithm(padded)
    tensor.copy_(padded[: flat.numel()].view_as(tensor))
