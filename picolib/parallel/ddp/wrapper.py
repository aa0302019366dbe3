"""`DistributedDataParallel`: a module whose gradients, after `backward()`, are those of the whole batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from picolib import comm
from picolib.parallel.agree import all_agree
from picolib.parallel.choice import settled_algorithm
from picolib.parallel.ddp.bucketed import assign_buckets, copy_back
from picolib.parallel.ddp.label import Label
from picolib.parallel.ddp.reducer import Reducer
from picolib.parallel.hooks import refuse_what_is_reduced_already, results_with_gradient
from picolib.parallel.spec import named_specs, refuse_parts_of_one_tensor

MIB = 1 << 20


class DistributedDataParallel(nn.Module):
    """Replicate `module` over a group of ranks: each gives its share of the batch, all take the same step.

    Parameters and buffers are copied from the group's first rank. When `backward()` returns, each parameter's `.grad`
    is the sum of the ranks' gradients divided by `gradient_divide_factor`, with the same bits on every rank. A rank
    sends 2(N-1)/N times the bytes of the gradients a step (mean over N ranks), in one all-reduce a bucket, which starts
    while the backward pass goes on.

    Args:
        module: its parameters must be on one device, with the same names, shapes and dtypes on all ranks.
        process_group: the replicas; None means all ranks.
        bucket_cap_mb: a bucket is full when it holds this many MiB of gradients.
        find_unused_parameters: the forward pass may leave parameters out, others on each rank. Costs one small
            all-reduce a step, and such a parameter's bucket starts at the end of the backward pass.
        broadcast_buffers: buffers (running statistics) are copied from the first rank before each forward pass.
        gradient_as_bucket_view: `.grad` is a view into a bucket, which saves a copy and the memory for it.
        gradient_divide_factor: None means the number of replicas, which gives the mean. 1 gives the sum, for a loss
            that is divided by the number of tokens of the whole batch already.
        reduce_dtype: sum in this dtype, for example torch.float32 for parameters in bfloat16.
        algorithm: of the all-reduce; "auto" means "direct" on gloo (two phases, so it overlaps best).

    Raises:
        ValueError: an argument is wrong, or the module differs between ranks. The same sentence on all ranks.

    Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", sections 3 and 4.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        process_group: Any = None,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = True,
        gradient_divide_factor: float | None = None,
        reduce_dtype: torch.dtype | None = None,
        algorithm: str = "auto",
    ) -> None:
        super().__init__()
        _check(module, bucket_cap_mb, gradient_divide_factor)
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        refuse_what_is_reduced_already("module", [p for _, p in trained])
        specs = ((name, spec) for name, _, spec in named_specs(module))
        refuse_parts_of_one_tensor("process_group", process_group, specs)
        algorithm = settled_algorithm(algorithm, "all_reduce", trained[0][1].device, process_group)
        self.module = module
        self._look_up_tables()
        self.process_group, self.broadcast_buffers = process_group, broadcast_buffers
        self.require_backward_grad_sync = True
        self.options = {
            "cap_bytes": bucket_cap_mb * MIB, "find_unused": find_unused_parameters, "as_view": gradient_as_bucket_view,
            "divide_by": gradient_divide_factor, "dtype": reduce_dtype, "algorithm": algorithm,
        }  # fmt: skip
        options = [
            f"bucket_cap_mb={bucket_cap_mb}", f"find_unused_parameters={find_unused_parameters}",
            f"broadcast_buffers={broadcast_buffers}", f"gradient_divide_factor={gradient_divide_factor}",
            f"reduce_dtype={reduce_dtype}", f"algorithm={algorithm}",
        ]  # fmt: skip
        all_agree("module and options", [*_described(module), *options], process_group)
        self.label = Label(module, process_group)
        self._copy_from_first_rank([*module.parameters(), *module.buffers()])
        self.reducer = Reducer(trained, process_group, **self.options, label=self.label)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass."""
        if self.broadcast_buffers and self.require_backward_grad_sync:
            self._copy_from_first_rank(self._tensors("buffers"))
        output = self.module(*args, **kwargs)
        if torch.is_grad_enabled():
            self._refuse_strangers()
            self.reducer.expect_backward(results_with_gradient(output), self.require_backward_grad_sync)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward and backward passes in here add to `.grad` on each rank alone; the next one outside synchronises."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Whether the backward passes of later forward passes synchronise; `no_sync` does it for a block."""
        self.require_backward_grad_sync = requires_gradient_sync

    def finalize_grads(self) -> None:
        """Synchronise what was left by `no_sync`. Does nothing when no forward pass came after the last time.

        For a rank whose loss did not need the module at all this is what stands in for `backward()`.
        """
        if self.reducer.open:
            self.reducer.finish()

    # A copy gets a reducer of its own, since hooks stay behind with the parameters that they were made for.

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not None:
            raise TypeError("DistributedDataParallel with a process_group can't be pickled: save its state_dict().")
        return self._without_what_is_derived()

    def _without_what_is_derived(self) -> dict[str, Any]:
        derived = ("reducer", "tree", "tables")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._look_up_tables()
        trained = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        self.reducer = Reducer(trained, self.process_group, **self.options, label=self.label)

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        twin = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.process_group)] = self.process_group  # the same ranks
        twin.__setstate__(copy.deepcopy(self._without_what_is_derived(), memo))
        return twin

    def _look_up_tables(self) -> None:
        """Where the tree of modules keeps its tensors: walking through a large one in each step takes its time."""
        parts = list(self.module.modules())
        self.tables = {kind: [getattr(p, f"_{kind}") for p in parts] for kind in ("modules", "parameters", "buffers")}
        self.tree = self._entries("modules")

    def _entries(self, kind: str) -> list[Any]:
        return [entry for table in self.tables[kind] for entry in table.values() if entry is not None]

    def _tensors(self, kind: str) -> list[torch.Tensor]:
        """The "parameters" or "buffers" that the module has now; one that stands in two places, twice."""
        if self._entries("modules") != self.tree:  # somebody has put in another layer
            self._look_up_tables()
        return self._entries(kind)

    def _refuse_strangers(self) -> None:
        """A parameter that began to require a gradient after wrapping would differ between ranks from now on."""
        watched = {id(p) for p in self.reducer.parameters}
        stranger = next((p for p in self._tensors("parameters") if p.requires_grad and id(p) not in watched), None)
        if stranger is not None:
            name = next(name for name, p in self.module.named_parameters() if p is stranger)
            raise RuntimeError(
                f"{name} requires a gradient now, and did not (or was not there) when the module was wrapped: "
                "add and unfreeze parameters first, then wrap."
            )

    @torch.no_grad()
    def _copy_from_first_rank(self, tensors: list[torch.Tensor]) -> None:
        """Flat copies, as gradients travel: a broadcast for each buffer would cost a latency for each.

        By `.data`, which autograd does not count as a change: batch norm saves its running statistics for backward,
        and does not count its own changes either, since its gradient in training does not depend on them.
        """
        for bucket in assign_buckets(tensors, 25 * MIB):
            together = [tensors[position].data for position in bucket]
            flat = torch.cat([tensor.flatten() for tensor in together])
            comm.broadcast(flat, group=self.process_group, group_src=0)
            copy_back(flat, together)


def _check(module: Any, bucket_cap_mb: Any, divide_factor: Any) -> None:
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}.")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("module must have a parameter that requires a gradient: there is nothing to average here.")
    if any(p.is_meta for p in module.parameters()):
        name = next(name for name, p in module.named_parameters() if p.is_meta)
        raise ValueError(f"module must hold real numbers, but {name} is on the meta device: call init_weights first.")
    if not isinstance(bucket_cap_mb, (int, float)) or not bucket_cap_mb > 0:
        raise ValueError(f"bucket_cap_mb must be a number of MiB above 0, got {bucket_cap_mb!r}.")
    if divide_factor is not None and not divide_factor > 0:
        raise ValueError(f"gradient_divide_factor must be above 0, or None for the mean, got {divide_factor!r}.")


def _described(module: nn.Module) -> list[str]:
    parameters = [f"{_line(name, p)}{'' if p.requires_grad else ', frozen'}" for name, p in module.named_parameters()]
    return parameters + [_line(name, buffer) for name, buffer in module.named_buffers()]


def _line(name: str, tensor: torch.Tensor) -> str:
    return f"{name} ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
