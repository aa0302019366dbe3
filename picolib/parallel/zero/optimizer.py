"""`ZeroRedundancyOptimizer`: any element-wise torch.optim optimizer, with its state shared out over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from picolib import comm
from picolib.comm.groups import resolve
from picolib.parallel.agree import all_agree
from picolib.parallel.choice import settled_algorithm
from picolib.parallel.ddp.bucketed import assign_buckets
from picolib.parallel.hooks import GradientHook, refuse_sparse, refuse_what_is_reduced_already
from picolib.parallel.zero.elementwise import refuse_unless_elementwise
from picolib.parallel.zero.flat import FlatBucket
from picolib.parallel.zero.full_state import full_state, take_from_full_state

MIB = 1 << 20


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """Data parallelism in which each of N ranks keeps 1/N of the optimizer's state, in stage 2 of gradients too.

    Wrap nothing in DistributedDataParallel: the parameters are copied from the first rank, and the gradients reduced,
    here. Stage 1 leaves `.grad` as this rank's own until `step()`, which sends (N-1)/N of the gradients' bytes
    (reduce-scatter) and as many of the parameters' (all-gather). Stage 2 reduce-scatters each bucket during the
    backward pass, frees its gradients, and keeps this rank's part: less memory, and a reduce-scatter in every backward
    pass instead of one a step.

    Forget gradients with this optimizer's `zero_grad()`: in stage 2 the module's own can't see them. What a rank's loss
    did not use adds nothing to the sum there; what no rank's loss used is not stepped, as in one process. A rank may
    leave out `backward()` in a step; otherwise all ranks must call it equally often in stage 2.

    Args:
        params: parameters or groups of them, as for any optimizer, the same on all ranks.
        optimizer_class: element-wise, such as torch.optim.AdamW: each number's step depends on that number alone.
        process_group: the replicas; None means all ranks.
        stage: 1 or 2.
        gradient_divide_factor: None means the number of replicas, which gives the mean; 1 gives the sum.
        bucket_cap_mb: parameters of so many MiB travel together.
        algorithm: of both collectives; "auto" means "direct" on gloo.
        defaults: for `optimizer_class`: lr, betas, …

    Raises:
        ValueError: the optimizer is not element-wise, the parameters belong to DistributedDataParallel, or differ
            between ranks.
        RuntimeError: from `step()`, where a parameter has moved to other memory (`module.to(...)`), or was unfrozen
            after the optimizer was built.

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        *,
        process_group: Any = None,
        stage: int = 1,
        gradient_divide_factor: float | None = None,
        bucket_cap_mb: float = 25,
        algorithm: str = "auto",
        **defaults: Any,
    ) -> None:
        if stage not in (1, 2):
            raise ValueError(f"stage must be 1 or 2 (3 is picolib.fully_shard), got {stage!r}.")
        refuse_unless_elementwise(optimizer_class, defaults)
        super().__init__(params, dict(defaults))
        self.process_group, self.stage = process_group, stage
        members = resolve(process_group)[1]
        self.rank, self.size = members.rank, members.size
        self.divide_by = gradient_divide_factor or self.size
        self.parameters: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        trained = [p for p in self.parameters if p.requires_grad]
        refuse_what_is_reduced_already("params", trained)
        if not trained:
            raise ValueError("params must have one that requires a gradient: there is nothing to step on here.")
        lines = [f"{p.dtype} {list(p.shape)}{'' if p.requires_grad else ', frozen'}" for p in self.parameters]
        options = {"optimizer_class": optimizer_class.__name__, "stage": stage, "bucket_cap_mb": bucket_cap_mb}
        options |= {"gradient_divide_factor": gradient_divide_factor, "algorithm": algorithm}
        options |= {name: value for name, value in defaults.items() if isinstance(value, (bool, int, float, tuple))}
        lines += [f"{name}={value}" for name, value in options.items()]
        all_agree("params and options", lines, process_group)
        device = self.parameters[0].device
        self.algorithm = settled_algorithm(algorithm, "reduce_scatter", device, process_group)
        self.buckets = self._in_buckets(bucket_cap_mb * MIB)
        self.inner = optimizer_class(self._shard_groups(), **defaults)
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            for name in inner.keys() - outer.keys():
                outer[name] = inner[name]  # betas and the like, where schedulers and state_dict look for them
        self.defaults, self.state = {**self.inner.defaults}, self.inner.state  # of this rank's pieces
        self._start_over()
        self.is_reduced = False  # whether this rank has taken part in a reduction since zero_grad(), in stage 1 in all
        hook = GradientHook("ZeroRedundancyOptimizer", self, lambda zero, p: zero._gradient_is_there(p))
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(hook)

    def _in_buckets(self, cap_bytes: float) -> list[FlatBucket]:
        trained = [i for i, p in enumerate(self.parameters) if p.requires_grad]
        assigned = assign_buckets([self.parameters[i] for i in trained], cap_bytes)
        buckets = []
        for number, places in enumerate(assigned):
            positions = sorted(trained[place] for place in places)
            buckets.append(FlatBucket(number, positions, self.parameters, self.rank, self.size))
            comm.broadcast(buckets[-1].flat, group=self.process_group, group_src=0)
        for frozen in (p for p in self.parameters if not p.requires_grad):
            comm.broadcast(frozen.data, group=self.process_group, group_src=0)
        self.home = {self.parameters[i]: bucket for bucket in buckets for i in bucket.positions}
        return buckets

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while the optimizer is being built: the buckets are cut once.

        Raises:
            RuntimeError: any later.
        """
        if hasattr(self, "inner"):
            raise RuntimeError(
                "ZeroRedundancyOptimizer can't add_param_group: give all groups to it when it is built, and freeze "
                "what should not be trained yet."
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> Any:
        raise TypeError("ZeroRedundancyOptimizer can't be copied or pickled: take its state_dict().")

    def _shard_groups(self) -> list[dict[str, Any]]:
        """The parameter groups with this rank's pieces in place of the parameters, in the parameters' order."""
        pieces = sorted((piece for bucket in self.buckets for piece in bucket.pieces), key=lambda piece: piece.position)
        groups, first = [], 0
        for group in self.param_groups:
            mine = range(first, first + len(group["params"]))
            settings = {name: value for name, value in group.items() if name != "params"}
            groups.append({**settings, "params": [piece.shard for piece in pieces if piece.position in mine]})
            first += len(group["params"])
        return groups

    # Reducing ---------------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self.ready = {bucket.number: 0 for bucket in self.buckets}
        self.started = 0
        self.will_end = False

    def _gradient_is_there(self, parameter: nn.Parameter) -> None:
        refuse_sparse(parameter.grad, f"Parameter number {self._number(parameter)}")
        if self.stage == 1:
            self.is_reduced = False
            return
        if not self.will_end:
            self.will_end = True
            Variable._execution_engine.queue_callback(self._end_of_backward)
        self.ready[self.home[parameter].number] += 1
        while self.started < len(self.buckets) and self._is_complete(self.buckets[self.started]):
            self._reduce(self.buckets[self.started])
            self.started += 1
        comm.poll()

    def _number(self, parameter: nn.Parameter) -> int:
        return next(i for i, p in enumerate(self.parameters) if p is parameter)

    def _is_complete(self, bucket: FlatBucket) -> bool:
        return self.ready[bucket.number] == len(bucket.positions)

    def _reduce(self, bucket: FlatBucket) -> None:
        bucket.take_in(self.divide_by)  # of an earlier backward pass
        bucket.start_reduce_scatter(self.process_group, self.algorithm)
        if self.stage == 2:
            for parameter in bucket.parameters:
                parameter.grad = None

    def _end_of_backward(self) -> None:
        """All ranks start the same buckets in a backward pass; a gradient that is missing adds nothing to the sum."""
        asked, self.will_end = self.will_end, False
        if asked:
            for bucket in self.buckets[self.started :]:
                self._reduce(bucket)
            self._start_over()
            self.is_reduced = True

    def finalize_grads(self) -> None:
        """Reduce what has not been reduced yet, and wait for it: then every piece has its gradient. Idempotent."""
        if not self.is_reduced:
            for bucket in self.buckets:
                for piece in bucket.pieces:
                    piece.shard.grad = None  # in stage 1 .grad holds the whole sum since zero_grad()
                self._reduce(bucket)
            self.is_reduced = True
        for bucket in self.buckets:
            bucket.take_in(self.divide_by)

    # The optimizer's own interface --------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Reduce, step on the own pieces, and tell everybody the new parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_what_a_step_would_not_reach()
        self.finalize_grads()
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({name: value for name, value in outer.items() if name != "params"})  # a scheduler's lr
        self.inner.step()
        gathers = [bucket.start_all_gather(self.process_group, self.algorithm) for bucket in self.buckets]
        for gather in gathers:
            gather.wait()
        return loss

    def _refuse_what_a_step_would_not_reach(self) -> None:
        for number in (number for bucket in self.buckets for number in bucket.moved()):
            raise RuntimeError(
                f"Parameter number {number} has moved to other memory since this optimizer was built: call "
                "module.to(...) first, then build the optimizer."
            )
        for number, parameter in enumerate(self.parameters):
            if parameter.requires_grad and parameter not in self.home:
                raise RuntimeError(
                    f"Parameter number {number} requires a gradient now, and did not when this optimizer was built: "
                    "build it while everything that will be trained requires a gradient, then freeze."
                )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, this rank's own and the reduced ones, and a backward pass that failed."""
        super().zero_grad(set_to_none)
        self.is_reduced = False
        for bucket in self.buckets:
            bucket.take_in(1)
        self._start_over()
        self.inner.zero_grad(True)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the reduced gradients so that their Euclidean norm, over all ranks' parts, is at most `max_norm`.

        Call it between `backward()` and `step()`. Returns the norm before. One all-reduce of one number.
        """
        self.finalize_grads()
        shards = [piece.shard for bucket in self.buckets for piece in bucket.pieces if piece.shard.grad is not None]
        square = torch.zeros((), dtype=torch.float64, device=self.buckets[0].flat.device)
        for shard in shards:
            square += shard.grad.double().square().sum()
        comm.all_reduce(square, group=self.process_group)
        norm = square.sqrt()
        for shard in shards:
            shard.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1).to(shard.dtype))
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The full state, as `optimizer_class` would have it in one process. Every rank must call this."""
        return full_state(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's part of a full state, from this class or from `optimizer_class` in one process."""
        take_from_full_state(self, state_dict)
