"""What the mysteries share: layers that only pretend to compute, steps through them, and pictures of a trace."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from picolib.course.figures.canvas import Figure
from picolib.course.figures.matrix import message_matrix
from picolib.course.figures.training_step import training_step

LAYERS, WEIGHTS, FORWARD, BACKWARD = 6, 250_000, 0.010, 0.020  # weights of a layer, and the seconds that it takes


class Pretended(torch.autograd.Function):
    """A layer's work on a device: it takes its time, and the gradient of its weights is there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        import picolib

        ctx.save_for_backward(weight)
        picolib.pretend(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        import picolib

        picolib.pretend(BACKWARD)
        return gradient, torch.ones_like(ctx.saved_tensors[0])


class Layer(nn.Module):
    """A layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Pretended.apply(x, self.weight)


def model() -> nn.Sequential:
    """Six layers."""
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def two_steps(module: nn.Module, after_backward: Any = None, optimizer: Any = None, micro_batches: int = 1) -> None:
    """The first step settles what is settled once; pictures show the second."""
    import picolib

    for _ in range(2):
        with picolib.mark("step"):
            for _ in range(micro_batches):
                with picolib.mark("forward"):
                    loss = module(torch.zeros(1, requires_grad=True)).sum()
                with picolib.mark("backward"):
                    loss.backward()
            if after_backward:
                after_backward()
            if optimizer:
                optimizer.step()
        module.zero_grad()


def matrix(trace: Any, title: str) -> Figure:
    """Who sent how much to whom."""
    return message_matrix(trace, f"{title}: bytes sent, from row to column")


def step(trace: Any, title: str) -> Figure:
    """The second step of two ranks."""
    return training_step(trace, f"{title}: one training step", number=1, ranks=(0, 1))
