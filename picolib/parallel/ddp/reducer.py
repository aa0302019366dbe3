"""The reducer: turns the ranks' own gradients into the gradient of the whole batch, while backward runs.

For each parameter two facts count. *Fresh*: its `.grad` holds something that the other ranks don't know yet.
*Settled*: its `.grad` is what all ranks have agreed on. A backward pass makes gradients fresh; a synchronised one then
settles all of them, bucket by bucket. Buckets start in their fixed order, since that is what matches the ranks' calls,
even when gradients become ready in another order on another rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from picolib import comm
from picolib.comm.groups import resolve
from picolib.parallel.ddp.bucket import Bucket
from picolib.parallel.ddp.bucketed import assign_buckets
from picolib.parallel.hooks import GradientHook, refuse_sparse


class Reducer:
    """Watches the gradients of named parameters, all of which require one, and reduces them over a group.

    Each ends as the sum over the group divided by `divide_by`. After a forward pass call `expect_backward`. `label`
    makes "bucket 0" what the collective is called.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, nn.Parameter]],
        group: Any,
        cap_bytes: float,
        *,
        find_unused: bool = False,
        as_view: bool = True,
        divide_by: float | None = None,
        dtype: torch.dtype | None = None,
        algorithm: str = "auto",
        label: Callable[[str], str] = str,
    ) -> None:
        self.names = [name for name, _ in named_parameters]
        self.parameters = [parameter for _, parameter in named_parameters]
        self.group, self.size = group, resolve(group)[1].size
        self.cap_bytes, self.as_view, self.dtype, self.algorithm = cap_bytes, as_view, dtype, algorithm
        self.find_unused, self.divide_by, self.label = find_unused, divide_by or self.size, label
        self.synchronises = True  # whether the backward pass that comes will
        self.open = False  # a forward pass has run whose gradients are not settled
        self.will_end = False  # autograd will call `_end_of_backward`
        self.fresh: set[int] = set()
        self.settled: set[int] = set()
        # The order of the gradients in the first backward pass; None once it has been used.
        self.order: list[int] | None = None if find_unused else []
        for position, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(Reducer._gradient_is_there, position))
        self._begin()

    def _begin(self) -> None:
        """Buckets and hooks for parameters as they are: once more when `module.to(...)` has changed their dtype."""
        self.kinds = [(p.dtype, p.device) for p in self.parameters]
        self._build(assign_buckets(self.parameters, self.cap_bytes))
        if self.divide_by != self.size:
            # The nodes that add to `.grad`. (A hook on the parameter would also be called by torch.autograd.grad.)
            self.accumulators = [get_gradient_edge(p).node for p in self.parameters]
            for position, node in enumerate(self.accumulators):
                node.register_prehook(self._hook(Reducer._before_more_is_added, position))

    def _hook(self, act: Callable[..., None], *args: Any) -> GradientHook:
        return GradientHook("DistributedDataParallel", self, lambda reducer, _: act(reducer, *args))

    def _build(self, buckets: list[list[int]]) -> None:
        self.buckets = [
            Bucket(number, positions, self.parameters, self.dtype, self.as_view)
            for number, positions in enumerate(buckets)
        ]
        self.home = {p: (bucket, place) for bucket in self.buckets for place, p in enumerate(bucket.positions)}
        self._start_over()

    def _start_over(self) -> None:
        self.ready: set[int] = set()
        self.started = 0  # buckets whose all-reduce has been started
        for bucket in self.buckets:
            bucket.reset()

    # Before and during backward ---------------------------------------------------------------------------------

    def expect_backward(self, outputs: Sequence[torch.Tensor], synchronises: bool) -> None:
        """A forward pass has been made. What a backward pass that failed has left behind is cleared away."""
        for bucket in self.buckets:
            bucket.abandon()
        self._start_over()
        if self.kinds != [(p.dtype, p.device) for p in self.parameters]:
            self._begin()
        self.synchronises, self.open, self.will_end = synchronises, True, False
        for output in outputs:  # a graph keeps its reducer alive, even if the wrapper is gone by then
            output.register_hook(lambda _: self._ask_for_the_end())

    def _ask_for_the_end(self) -> None:
        """Have autograd call back when backward is through.

        Asked for by the module's output: a callback belongs to the backward pass in which it was asked for, and under
        reentrant checkpointing a parameter's hook runs in an inner one, which ends early.
        """
        if not self.will_end:
            self.will_end = True
            Variable._execution_engine.queue_callback(self._end_of_backward)

    def _before_more_is_added(self, position: int) -> None:
        """A settled gradient is on every rank, and would enter the next sum `size` times: take each rank's share."""
        gradient = self.parameters[position].grad
        if position in self.settled and gradient is not None:
            gradient.mul_(self.divide_by / self.size)
        self.settled.discard(position)

    def _gradient_is_there(self, position: int) -> None:
        if not self.will_end:
            self._ask_for_the_end()
        refuse_sparse(self.parameters[position].grad, self.names[position])
        self.fresh.add(position)
        if not self.synchronises:
            return
        if position in self.ready:
            raise RuntimeError(
                f"{self.names[position]} got a gradient twice in one backward pass, and its all-reduce may be under "
                "way: use checkpoint(..., use_reentrant=False) where a checkpointed layer is used twice."
            )
        if self.order is not None:
            self.order.append(position)
        self._is_ready(position)
        if self.started:
            comm.poll()

    def _is_ready(self, position: int) -> None:
        self.ready.add(position)
        bucket, place = self.home[position]
        bucket.put_in(place, 1 / self.divide_by)
        bucket.missing -= 1
        while self.started < len(self.buckets) and self.buckets[self.started].missing == 0:
            self.buckets[self.started].start(self.group, self.algorithm, self.label)
            self.started += 1

    # The end ----------------------------------------------------------------------------------------------------

    def _end_of_backward(self) -> None:
        asked, self.will_end = self.will_end, False
        if not asked or not self.synchronises:  # asked twice where a checkpoint has run the forward pass a second time
            return
        if self.ready or (self.find_unused and any(p.requires_grad for p in self.parameters)):
            self.finish()  # else this pass was about other gradients: an input's, or those of the module before

    def finish(self) -> None:
        """Settle every gradient: start what has not started, wait for everything.

        Raises:
            RuntimeError: a parameter got no gradient, and `find_unused` is off.
        """
        late = [i for i in range(len(self.parameters)) if i not in self.ready]
        self.fresh = {i for i in self.fresh if self.parameters[i].grad is not None}  # zero_grad() may have come between
        unused = [i for i in late if i not in self.fresh]  # the others have had theirs without synchronisation
        missing = [i for i in unused if self.parameters[i].requires_grad]
        if missing and not self.find_unused:
            raise RuntimeError(self._about_unused(missing))
        for position in late:
            if position in unused and self.divide_by != self.size:
                self._before_more_is_added(position)
            self._is_ready(position)
        used = self._used_anywhere() if self.find_unused else [p.requires_grad for p in self.parameters]
        for bucket in self.buckets:
            bucket.wait()
            bucket.hand_out([used[position] for position in bucket.positions])
        self.settled = set(range(len(self.parameters)))
        self.fresh.clear()
        self.open = False
        self._start_over()
        if self.order is not None:
            self._follow_order_of_use()

    def _used_anywhere(self) -> list[bool]:
        mine = torch.tensor([i in self.fresh for i in range(len(self.parameters))], dtype=torch.uint8)
        mine = mine.to(self.parameters[0].device)
        comm.all_reduce(mine, dist.ReduceOp.MAX, self.group, label=self.label("used parameters"))
        return [bool(flag) for flag in mine.tolist()]

    def _about_unused(self, unused: list[int]) -> str:
        names = ", ".join(self.names[i] for i in unused[:5]) + (", …" if len(unused) > 5 else "")
        count = f"{len(unused)} parameters" if len(unused) > 1 else "A parameter"
        return (
            f"{count} got no gradient in this backward pass: {names}. The other ranks wait for it. If the forward pass "
            "does not use every parameter, pass find_unused_parameters=True; or freeze with requires_grad_(False) "
            "before wrapping."
        )

    def _follow_order_of_use(self) -> None:
        """After the first backward pass: buckets in the order in which rank 0's gradients came (as PyTorch does)."""
        seen = self.order if len(self.order or []) == len(self.parameters) else []
        self.order = None
        order = torch.tensor(seen or range(len(self.parameters) - 1, -1, -1), device=self.parameters[0].device)
        comm.broadcast(order, group_src=0, group=self.group)
        positions = order.flip(0).tolist()  # assign_buckets takes the last first
        buckets = assign_buckets([self.parameters[i] for i in positions], self.cap_bytes)
        buckets = [[positions[i] for i in bucket] for bucket in buckets]
        if buckets != [bucket.positions for bucket in self.buckets]:
            self._build(buckets)
            for bucket in self.buckets:
                for place in range(len(bucket.positions)):
                    bucket.put_in(place)
