"""When the units of a model unshard, reshard and reduce: before and after the forward and backward pass of each.

    forward    unshard 0 | compute 0 | unshard 1 | compute 1 | …        reshard each after it (not the root)
    backward                          … | unshard 1 | compute 1, reduce 1 | unshard 0 | compute 0, reduce 0

While a unit computes, the next one's all-gather is under way already: in the order of the last forward pass, or in
the reverse order during the backward pass. A reduce-scatter has until the next unit's to get through.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from picolib import comm
from picolib.parallel.fsdp.parameter import ShardedParameter
from picolib.parallel.fsdp.unit import Unit
from picolib.parallel.hooks import inside_backward, refuse_sparse, results_with_gradient


class Conductor:
    """Directs the units of one root module.

    `order` is the order in which their forward passes began. `expected` are those that take part in the reduction even
    if their parameters get no gradient on this rank, since they may on another.
    """

    def __init__(self, root: Unit, units: list[Unit]) -> None:
        self.root, self.units = root, units
        self.order: list[Unit] = []
        self.last_order: list[Unit] = []
        self.expected: set[Unit] = set()
        self.running = 0  # forward passes of units, one inside the other
        self.will_end = False  # autograd will call `end_of_backward`
        self.reducing: Unit | None = None

    # Forward ----------------------------------------------------------------------------------------------------

    def before_forward(self, unit: Unit) -> None:
        """A unit's module is about to compute."""
        if inside_backward():  # a checkpoint does so again
            unit.unshard()
            return
        if unit is self.root or not self.running:
            self._begin()
        self.running += 1
        unit.unshard()
        self.order.append(unit)
        if torch.is_grad_enabled():
            self.expected.add(unit)
        self._fetch(self.last_order, len(self.order))

    def _begin(self) -> None:
        failed = self.will_end  # a backward pass began and did not come to its end
        for unit in self.units:
            unit.reshard()  # whatever was left unsharded may have been stepped meanwhile
            unit.gradients_there = 0
            if failed:
                unit.forget_gradients()
            unit.follow_shards()
        if torch.is_grad_enabled():
            self.expected.clear()
        self.last_order, self.order, self.will_end, self.running = self.order, [], False, 0

    def _fetch(self, order: list[Unit], place: int) -> None:
        if 0 <= place < len(order) and not order[place].is_through():
            order[place].start_unshard()

    def after_forward(self, unit: Unit, output: Any) -> None:
        """A unit's module has computed `output`, or has failed."""
        if torch.is_grad_enabled():
            for tensor in results_with_gradient(output):
                tensor.register_hook(lambda _: self.before_backward(unit))
        if inside_backward():
            return
        self.running = max(self.running - 1, 0)
        keeps = torch.is_grad_enabled() and (unit is self.root or not unit.reshard_after_forward)
        if not keeps:
            unit.reshard()

    # Backward ---------------------------------------------------------------------------------------------------

    def before_backward(self, unit: Unit) -> None:
        """The gradient of a unit's output is there, so its own backward pass begins."""
        if not self.will_end:
            self.will_end = True
            Variable._execution_engine.queue_callback(self.end_of_backward)
        unit.unshard()
        if unit in self.order:
            self._fetch(self.order, self.order.index(unit) - 1)
        comm.poll()

    def gradient_is_there(self, unit: Unit, parameter: ShardedParameter) -> None:
        """One of a unit's parameters has its gradient; after the last one the unit is through."""
        refuse_sparse(parameter.full.grad, parameter.name)
        unit.gradients_there += 1
        if unit.is_through():
            self.after_backward(unit)
        comm.poll()

    def after_backward(self, unit: Unit) -> None:
        """Free the parameters, and send the gradients on their way. One reduce-scatter at a time holds buffers."""
        unit.reshard()
        if not unit.synchronises:
            return
        if self.reducing is not None:
            self.reducing.finish_reduce()
        unit.start_reduce()
        self.reducing = unit

    def end_of_backward(self) -> None:
        """Units that have had no gradient, or not every one, are through as well now. Wait for what is under way."""
        if not self.will_end:
            return  # asked for twice
        self.will_end = False
        if any(unit.gradients_there for unit in self.units):
            self.finish()
        elif not torch.is_grad_enabled():  # create_graph: this gradient of an input is to be differentiated itself
            for unit in self.units:
                unit.reshard()

    def finish(self) -> None:
        """Reduce what is left. A unit whose forward pass ran on this rank takes part, with zeros if need be.

        All ranks must run the same units: nobody else can tell this rank what it missed.
        """
        for unit in reversed(self.units):
            through = unit.is_through() and not unit.has_gradients()
            if unit.trained and not through and (unit in self.expected or unit.has_gradients()):
                self.after_backward(unit)
        for unit in self.units:
            unit.reshard()
            unit.finish_reduce()
            unit.gradients_there = 0
        self.reducing = None


def find_units(root: nn.Module) -> list[tuple[str, Unit]]:
    """(path below the root, unit) of every wrapped module, the root's first."""
    found = []
    for name, module in root.named_modules():
        unit = module.__dict__.get("_picolib_unit")
        if unit is not None:
            found.append((name, unit))
    return found
