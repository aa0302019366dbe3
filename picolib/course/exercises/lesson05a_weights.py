"""The weights of exercise 5.2: what each rank is given, and what comes of the whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator

SIZES = {4: (7, 5, 4), 3: (6, 7, 5), 2: (9, 4, 6)}  # ranks: tokens, h, hidden numbers of one rank
NAMES = ("x", "up", "up_bias", "down", "down_bias")


def mlp_cases(world_size: int, seed: int) -> list[Case]:
    """One call, the same on all ranks; then two to four in which each has its own part right, and noise elsewhere."""
    random = generator(seed, world_size)
    first, *others = (_numbers(world_size, random) for _ in range(3 + seed % 3))
    each = SIZES[world_size][2]
    own = [[_with_noise(batch, rank, each, random) for batch in others] for rank in range(world_size)]
    return [
        Case("first", tuple(([first],) for _ in range(world_size)), None),
        Case("others", tuple((batches,) for batches in own), None),
    ]


def _with_noise(batch: list[torch.Tensor], rank: int, each: int, random: torch.Generator) -> list[torch.Tensor]:
    noisy = [torch.randn(tensor.shape, dtype=tensor.dtype, generator=random) for tensor in batch[1:4]]
    for noise, tensor, where in zip(noisy, batch[1:4], parts_of(rank, each), strict=True):
        noise[where] = tensor[where]
    return [batch[0], *noisy, *batch[4:]]


def parts_of(rank: int, each: int) -> tuple:
    """Where a rank's part of `up`, `up_bias` and `down` is."""
    own = slice(rank * each, (rank + 1) * each)
    return own, own, (slice(None), own)


def assembled(attempt: Any, number: int) -> list[torch.Tensor]:
    """The numbers of a call, each part from the rank to which it belongs."""
    batch = [tensor.clone() for tensor in attempt.case.inputs[0][0][number]]
    for rank, (batches,) in enumerate(attempt.case.inputs):
        where_of = parts_of(rank, SIZES[attempt.world_size][2])
        for tensor, theirs, where in zip(batch[1:4], batches[number][1:4], where_of, strict=True):
            tensor[where] = theirs[where]
    return batch


def _numbers(world_size: int, random: torch.Generator) -> list[torch.Tensor]:
    """x, the weights and biases, and the gradient of the output."""
    tokens, width, each = SIZES[world_size]
    hidden = each * world_size
    shapes = [(tokens, width), (hidden, width), (hidden,), (width, hidden), (width,), (tokens, width)]
    return [torch.randn(*shape, dtype=torch.float64, generator=random) for shape in shapes]


def rights(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Output and gradients of the whole MLP."""
    *given, grad = batch
    x, up, up_bias, down, down_bias = variables = [tensor.clone().requires_grad_() for tensor in given]
    y = F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
    y.backward(grad)
    return {"y": y.detach()} | {name: v.grad for name, v in zip(NAMES, variables, strict=True)}
