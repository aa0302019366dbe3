"""A bucket: gradients that travel in one all-reduce, and the flat buffer in which they live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from picolib import comm


class Bucket:
    """Some of the parameters (`positions` in the reducer's list), a buffer, and a view into it for each parameter.

    With `as_view`, a parameter's `.grad` *is* its view once the gradient has been put in: what the all-reduce leaves in
    the buffer is the gradient, without a copy back. A `dtype` other than the parameters' sums in that precision.
    """

    def __init__(
        self,
        number: int,
        positions: Sequence[int],
        parameters: Sequence[nn.Parameter],
        dtype: torch.dtype | None,
        as_view: bool,
    ) -> None:
        self.number, self.positions = number, list(positions)
        self.parameters = [parameters[position] for position in positions]
        first = self.parameters[0]
        self.flat = torch.zeros(
            sum(p.numel() for p in self.parameters), dtype=dtype or first.dtype, device=first.device
        )
        parts = self.flat.split([p.numel() for p in self.parameters])
        self.views = [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]
        self.as_view = as_view and self.flat.dtype == first.dtype
        self.work: Any = None
        self.reset()

    def reset(self) -> None:
        """Before a backward pass: nothing is there yet."""
        self.missing = len(self.positions)

    def put_in(self, place: int, scale: float = 1.0) -> None:
        """Parameter number `place` has its gradient: it moves into its view, unless it lives there, times `scale`.

        At once, and not when the bucket is full: its own memory is then free for the next layer's gradient.
        """
        parameter, view = self.parameters[place], self.views[place]
        if parameter.grad is None:  # unused on this rank: it adds nothing to the sum
            view.zero_()
            return
        gradient = parameter.grad.detach()  # under create_graph it has a graph, which the buffer must not join
        if scale != 1 and gradient.dtype == view.dtype:
            torch.mul(gradient, scale, out=view)
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            if scale != 1:
                view.mul_(scale)
        if self.as_view:
            parameter.grad = view

    def start(self, group: Any, algorithm: str, label: Callable[[str], str] = str) -> None:
        """All gradients are there: start to sum them. `label` makes "bucket 0" what it is called in the trace."""
        called = label(f"bucket {self.number}")
        self.work = comm.all_reduce(self.flat, group=group, async_op=True, algorithm=algorithm, label=called)

    def wait(self) -> None:
        """Run the all-reduce to its end."""
        self.work.wait()
        self.work = None

    def abandon(self) -> None:
        """After a backward pass that failed: let the all-reduce end, whatever it sums."""
        if self.work is not None:
            self.work.wait()
            self.work = None

    def hand_out(self, used: Sequence[bool]) -> None:
        """Every parameter gets the result as its gradient, but for one that no rank has used: it keeps what it has."""
        for parameter, view, is_used in zip(self.parameters, self.views, used, strict=True):
            if parameter.grad is None:
                if is_used:
                    parameter.grad = view if self.as_view else view.to(parameter.dtype, copy=True)
            elif parameter.grad.data_ptr() != view.data_ptr():
                parameter.grad.copy_(view)
