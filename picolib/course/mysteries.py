"""The mysteries that open the sittings: each is a job of an earlier one, and a question about its trace."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from picolib.course.figures.canvas import Figure
from picolib.course.figures.matrix import message_matrix
from picolib.course.figures.training_step import training_step
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question

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


def _model() -> nn.Sequential:
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def _two_steps(model: nn.Module, after_backward: Any = None, optimizer: Any = None) -> None:
    """The first step settles what is settled once; pictures show the second."""
    import picolib

    for _ in range(2):
        with picolib.mark("step"):
            with picolib.mark("forward"):
                loss = model(torch.zeros(1, requires_grad=True)).sum()
            with picolib.mark("backward"):
                loss.backward()
            if after_backward:
                after_backward()
            if optimizer:
                optimizer.step()
        model.zero_grad()


def ring() -> None:
    """02A: a ring all-reduce of 4,000 bytes."""
    from picolib import comm

    comm.all_reduce(torch.ones(1000), algorithm="ring")


def doubling() -> None:
    """02B: recursive doubling of 3,200 bytes."""
    from picolib import comm

    comm.all_reduce(torch.ones(800), algorithm="recursive_doubling")


def hook_for_each() -> None:
    """03A: each gradient is averaged as soon as it is there, and backward waits for it."""
    from picolib import comm

    model = _model()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: comm.all_reduce(p.grad, algorithm="direct"))
    _two_steps(model)


def overlapped() -> None:
    """03B: buckets of two layers, behind the backward pass."""
    import picolib

    _two_steps(picolib.DistributedDataParallel(_model(), bucket_cap_mb=1.9))


def zero_1() -> None:
    """04A: reduce-scatter after backward, a step on the own share, all-gather."""
    import picolib

    model = _model()
    optimizer = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    _two_steps(model, optimizer=optimizer)


def sharded() -> None:
    """04B: each layer gathered before its forward and its backward, its gradients reduce-scattered."""
    import picolib

    model = _model()
    for layer in model:
        picolib.fully_shard(layer)
    _two_steps(picolib.fully_shard(model))


def _matrix(trace: Any, title: str) -> Figure:
    return message_matrix(trace, f"{title}: bytes sent, from row to column")


def _step(trace: Any, title: str) -> Figure:
    return training_step(trace, f"{title}: one training step", number=1, ranks=(0, 1))


MYSTERIES = (
    Mystery(
        "02B",
        4,
        ring,
        _matrix,
        Question(
            "02B.mystery",
            "Each of four ranks holds 4,000 bytes, and at the end each has the sum. How was it done?",
            (
                Answer("everybody sends to rank 0, which sends the sum to all", "then row 0 and column 0 were full."),
                Answer(
                    "around the ring",
                    "each rank sends to one neighbour only, 2(N-1)/N times its 4,000 bytes, in six messages.",
                    right=True,
                ),
                Answer("everybody sends everything to everybody", "then every cell off the diagonal held 4,000 bytes."),
            ),
        ),
    ),
    Mystery(
        "03A",
        8,
        doubling,
        _matrix,
        Question(
            "03A.mystery",
            "Eight ranks, 3,200 bytes each, all end with the sum. Which algorithm leaves such a pattern?",
            (
                Answer("a ring", "there each rank sends to its neighbour alone."),
                Answer(
                    "a binary tree", "there most ranks send up once and down to two; nobody sends to three as equals."
                ),
                Answer(
                    "recursive doubling",
                    "partners differ by one bit: 1, 2 and 4 away. Three messages of everything, log2(N) steps.",
                    right=True,
                ),
            ),
        ),
    ),
    Mystery(
        "03B",
        4,
        hook_for_each,
        _step,
        Question(
            "03B.mystery",
            "Six layers, one step, four ranks. When did the gradients travel?",
            (
                Answer("all together, after the backward pass", "then the red would stand behind it, in one piece."),
                Answer(
                    "each when it was there, and the backward pass waited for it",
                    "six pieces of red inside backward: the hook of `wrap`, one for each parameter. Nothing is hidden.",
                    right=True,
                ),
                Answer("each when it was there, while the next layer computed", "then there were little red."),
            ),
        ),
    ),
    Mystery(
        "04A",
        4,
        overlapped,
        _step,
        Question(
            "04A.mystery",
            "The same six layers. What has been done about the waiting?",
            (
                Answer("nothing: one all-reduce for each parameter", "there are three messages' worth, not six."),
                Answer("one bucket for everything", "then nothing could start before the last gradient."),
                Answer(
                    "buckets of two layers, started from hooks",
                    "three all-reduces, two of them behind the backward pass; only the last one is exposed.",
                    right=True,
                ),
            ),
        ),
    ),
    Mystery(
        "04B",
        4,
        zero_1,
        _step,
        Question(
            "04B.mystery",
            "Nothing travels during forward and backward; afterwards two things do, of equal size. Which strategy?",
            (
                Answer(
                    "ZeRO-1",
                    "gradients are reduce-scattered, each rank steps its share, parameters are gathered: an all-reduce "
                    "in two halves, with the optimizer in between.",
                    right=True,
                ),
                Answer("data parallel, by hand", "one all-reduce, before the optimizer; nothing after it."),
                Answer("data parallel with accumulation", "that changes how often, not what travels."),
            ),
        ),
    ),
    Mystery(
        "05A",
        4,
        sharded,
        _step,
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
)
