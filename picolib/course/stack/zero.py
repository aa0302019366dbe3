"""Your ZeRO-1 step (4.1) in the place of `picolib.ZeroRedundancyOptimizer`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from picolib import comm
from picolib.course.stack.parts import Parts
from picolib.parallel.zero import ZeroRedundancyOptimizer


def install(parts: Parts) -> None:
    """Whoever makes a ZeroRedundancyOptimizer gets one whose steps are yours, where yours can do what is asked for."""
    librarys, listed = ZeroRedundancyOptimizer.__init__, {}

    def make(cls: type, params: Any, optimizer_class: Any, *, process_group: Any = None, **options: Any) -> Any:
        stage_1 = options.pop("stage", 1) == 1
        alone = process_group is None and not {"gradient_divide_factor", "bucket_cap_mb", "algorithm"} & set(options)
        listed[id(params)] = found = list(params)  # `model.parameters()` can be gone through once only
        plain = stage_1 and alone and all(isinstance(p, torch.Tensor) and p.requires_grad for p in found)
        zero1_step = parts.wanted("zero1_step") if plain else None
        if zero1_step:
            return MyZeroOptimizer(zero1_step, found, optimizer_class, **options)
        return object.__new__(cls)  # groups, frozen parameters, other options: the library's

    def init(self: Any, params: Any, *args: Any, **options: Any) -> None:
        librarys(self, listed.pop(id(params), params), *args, **options)

    ZeroRedundancyOptimizer.__new__ = staticmethod(make)  # type: ignore[method-assign]
    ZeroRedundancyOptimizer.__init__ = init  # type: ignore[method-assign]


class MyZeroOptimizer(torch.optim.Optimizer):
    """An optimizer whose `step()` is your `zero1_step`; `state_of_mine` is all the state that this rank has."""

    def __init__(self, zero1_step: Any, params: Iterable[nn.Parameter], optimizer_class: Any, **defaults: Any) -> None:
        self.zero1_step, self.optimizer_class = zero1_step, optimizer_class
        self.state_of_mine: dict[str, Any] = {}
        self.named = {"lr", *defaults}  # what changes from step to step, and what was asked for
        super().__init__(params, optimizer_class([torch.zeros(1)], **defaults).defaults)
        for parameter in self.param_groups[0]["params"]:  # the exercise leaves a common start to its caller
            comm.broadcast(parameter.data, group_src=0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of all parameters that have a gradient on this rank."""
        if closure is not None:
            raise ValueError("closure must be None: the state of others would have to travel for it")
        parameters = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        self.zero1_step(parameters, self.state_of_mine, self._update)

    def _update(self, part: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]) -> None:
        """A step of the optimizer asked for, on a part: the same numbers as on the whole, since it is element-wise."""
        options = {name: self.param_groups[0][name] for name in self.named}
        stand_in = nn.Parameter(part)
        stand_in.grad = gradient
        optimizer = self.optimizer_class([stand_in], **options)
        if "inner" in state:
            optimizer.state[stand_in] = state["inner"]
        optimizer.step()
        state["inner"] = optimizer.state[stand_in]
        if stand_in.data_ptr() != part.data_ptr():
            part.copy_(stand_in)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Not here: the exercise averages the gradients inside its step."""
        raise TypeError('use="mine": your zero1_step averages inside its step, so nothing can be clipped before it')

    def state_dict(self) -> dict[str, Any]:
        """Not here: the exercise does not gather the state."""
        raise TypeError('use="mine": your zero1_step gathers no state; save from a run with the library\'s optimizer')
