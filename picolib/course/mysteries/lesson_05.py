"""Before 05A and 05B: the gathered layers of 04B, the cut blocks of 05A."""

from __future__ import annotations

import torch
from torch import nn

from picolib.course.mysteries.pretended import LAYERS, Pretended, model, step, two_steps
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question


def sharded() -> None:
    """04B: each layer gathered before its forward and its backward, its gradients reduce-scattered."""
    import picolib

    module = model()
    for layer in module:
        picolib.fully_shard(layer)
    two_steps(picolib.fully_shard(module))


STREAM = 250_000  # numbers between the blocks


class Block(nn.Module):
    """A block that is cut over the ranks: every rank computes a summand of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from picolib.comm import functional

        entered = functional.copy_to_group(x, algorithm="direct")
        return functional.reduce_from_group(Pretended.apply(entered, self.weight), algorithm="direct")


class Widen(nn.Module):
    """The stream between the blocks, from the one number that a step begins with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(STREAM)


def cut_layers() -> None:
    """05A: a sum behind each block in forward (g), and one in front of it in backward (f)."""
    two_steps(nn.Sequential(Widen(), *(Block() for _ in range(LAYERS))))


MYSTERIES = (
    Mystery(
        "05A",
        4,
        sharded,
        step,
        Question(
            "05A.mystery",
            "Now something travels in forward, too. Which strategy is it?",
            (
                Answer("ZeRO-2", "that has whole parameters on every rank: its forward pass needs nobody."),
                Answer(
                    "FSDP",
                    "each layer is gathered before its forward and again before its backward, and its gradients are "
                    "reduce-scattered behind the next one's.",
                    right=True,
                ),
                Answer("data parallel with buffers", "buffers are small, and travel once before forward."),
            ),
        ),
    ),
    Mystery(
        "05B",
        4,
        cut_layers,
        step,
        Question(
            "05B.mystery",
            "As much travels in forward as in backward, and nothing starts before a computation has ended. Which "
            "strategy?",
            (
                Answer("FSDP without prefetch", "its backward pass sends twice what its forward pass sends."),
                Answer(
                    "tensor parallelism",
                    "a sum behind each block in forward, one in front of it in backward, and what comes next needs it: "
                    "everything is exposed.",
                    right=True,
                ),
                Answer("data parallel, a hook for each parameter", "then nothing would travel in forward."),
            ),
        ),
    ),
)
