"""Your collectives under everything: what the exercises leave to the caller is done here.

The exercises ask for the sum of a vector whose length N divides, in place. Callers bring any shape, and want means too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from picolib import comm
from picolib.course.stack.parts import Parts, is_the_world, wrong
from picolib.parallel import ddp, fsdp, zero

SHORT_BYTES = 4096  # up to here only the number of steps counts: recursive doubling, where it is yours
BROADCAST_PARTS = 8  # of 2.10
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
HOMES = (dist, dist.distributed_c10d)
Collective = Callable[..., Any]


class Done:
    """The handle of a collective that is over: yours has no other half that could run later."""

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install(parts: Parts) -> None:
    """Let `dist` and `comm` have your collectives, where yours can do what is asked for."""
    yours = {
        "all_reduce": _all_reduce,
        "reduce_scatter_tensor": _reduce_scatter,
        "all_gather_into_tensor": _all_gather,
        "broadcast": _broadcast,
    }
    for name, make in yours.items():
        for home in (*HOMES, *_modules_of_comm_with(name)):
            setattr(home, name, make(parts, getattr(home, name)))
    for strategy in (ddp.wrapper, zero.optimizer, fsdp.api):
        strategy.settled_algorithm = _left_open(parts, strategy.settled_algorithm)  # type: ignore[attr-defined]


def _modules_of_comm_with(name: str) -> list[Any]:
    """Loaded modules that have it: the package, the one that defines it, and whoever imported it by name."""
    inside = [module for path, module in sys.modules.items() if path.split(".")[:2] == ["picolib", "comm"]]
    return [module for module in inside if vars(module).get(name) is getattr(comm, name)]


def _left_open(parts: Parts, settled: Collective) -> Collective:
    """Strategies settle on an algorithm of the library's for what they start; with one of yours they leave it open."""
    yours = {"all_reduce": {"ring_all_reduce", "recursive_doubling", "halving_doubling"}}
    halves = {"ring_reduce_scatter", "bruck_all_gather"}

    def settled_algorithm(algorithm: str, collective: str, *where: Any) -> str:
        mine = yours.get(collective, halves) & set(parts)
        return algorithm if algorithm == "auto" and mine else settled(algorithm, collective, *where)

    return settled_algorithm


def _all_reduce(parts: Parts, librarys: Collective) -> Collective:
    def all_reduce(tensor: Any, op: Any = SUM, group: Any = None, async_op: bool = False, **options: Any) -> Any:
        fitting = _algorithm(parts, tensor) if _asks_for_a_sum(tensor, op, group, options) else None
        if fitting is None:
            return librarys(tensor, op, group, async_op, **options)
        with torch.no_grad():
            _in_place(fitting, tensor.detach(), dist.get_world_size())
            _finish(tensor.detach(), op)
        return Done() if async_op else None

    return all_reduce


def _reduce_scatter(parts: Parts, librarys: Collective) -> Collective:
    def reduce_scatter_tensor(
        output: Any, input: Any, op: Any = SUM, group: Any = None, async_op: bool = False, **options: Any
    ) -> Any:
        fits = _asks_for_a_sum(input, op, group, options) and _is_part_of(output, input)
        yours = parts.wanted("ring_reduce_scatter") if fits else None
        if yours is None:
            return librarys(output, input, op, group, async_op, **options)
        with torch.no_grad():
            part = yours(input.detach().reshape(-1))
            if not isinstance(part, torch.Tensor) or part.numel() != output.numel():
                raise wrong("ring_reduce_scatter", "did not return its chunk of the sum")
            output.detach().copy_(part.view_as(output))
            _finish(output.detach(), op)
        return Done() if async_op else None

    return reduce_scatter_tensor


def _all_gather(parts: Parts, librarys: Collective) -> Collective:
    """Yours for calls that wait: an asynchronous one, such as a prefetch, is to go on beside something else."""

    def all_gather_into_tensor(
        output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False, **options: Any
    ) -> Any:
        fits = _asks_for_a_sum(input_tensor, SUM, group, options) and _is_part_of(input_tensor, output_tensor)
        yours = parts.get("bruck_all_gather") if fits and not async_op else None
        if yours is None:
            return librarys(output_tensor, input_tensor, group, async_op, **options)
        with torch.no_grad():
            whole = yours(input_tensor.detach().reshape(-1))
            if not isinstance(whole, torch.Tensor) or whole.numel() != output_tensor.numel():
                raise wrong("bruck_all_gather", "did not return everybody's part")
            output_tensor.detach().copy_(whole.view_as(output_tensor))
        return None

    return all_gather_into_tensor


def _broadcast(parts: Parts, librarys: Collective) -> Collective:
    def broadcast(
        tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None, **options: Any
    ) -> Any:
        from_the_first = (src, group_src) in ((0, None), (None, 0))
        fits = from_the_first and _asks_for_a_sum(tensor, SUM, group, options) and tensor.dtype != torch.bool
        yours = parts.get("pipelined_broadcast") if fits else None
        if yours is None:
            return librarys(tensor, src, group, async_op, group_src, **options)
        with torch.no_grad():
            _in_place(yours, tensor.detach(), BROADCAST_PARTS)
        return Done() if async_op else None

    return broadcast


def _asks_for_a_sum(tensor: Any, op: Any, group: Any, options: dict[str, Any]) -> bool:
    """Whether the exercises cover this call; what they don't is the library's: other operations, smaller groups."""
    if not isinstance(tensor, torch.Tensor) or op not in (SUM, AVG) or not tensor.numel():
        return False
    if dist.get_world_size() == 1 or not is_the_world(group):
        return False
    return options.get("algorithm", "auto") == "auto" and (op == SUM or tensor.is_floating_point())


def _is_part_of(part: Any, whole: Any) -> bool:
    """One of N equal parts, of the same dtype; otherwise the library says what is wrong."""
    both = isinstance(part, torch.Tensor) and isinstance(whole, torch.Tensor)
    return both and part.numel() * dist.get_world_size() == whole.numel() and part.dtype == whole.dtype


def _algorithm(parts: Parts, tensor: torch.Tensor) -> Any:
    """Which of your all-reduces; None without one."""
    n = dist.get_world_size()
    doubling, halving = (parts.get(name) for name in ("recursive_doubling", "halving_doubling"))
    if n & (n - 1):
        doubling = halving = None  # those are for powers of two
    long = parts.get("ring_all_reduce") or halving
    if doubling and (tensor.nbytes <= SHORT_BYTES or not long):
        return doubling
    return long or parts.wanted("ring_all_reduce")


def _in_place(algorithm: Any, tensor: torch.Tensor, parts: int) -> None:
    """By an algorithm for vectors whose length this number of parts divides: zeros fill up the rest."""
    flat = tensor.reshape(-1)
    padded = torch.cat([flat, flat.new_zeros(-flat.numel() % parts)])
    algorithm(padded)
    tensor.copy_(padded[: flat.numel()].view_as(tensor))


def _finish(total: torch.Tensor, op: Any) -> None:
    if op == AVG:
        total.div_(dist.get_world_size())
