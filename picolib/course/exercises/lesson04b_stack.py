"""The layers of exercise 4.4, one on the other: both passes in a rank, and the same in one process.

What is alive is counted after the forward pass, at any time, and when the step is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04b_refuse import no_ready_made_fsdp
from picolib.course.exercises.lesson04b_watch import Alive

WIDTHS = (192, 288, 128, 240)  # of x, and of what each layer puts out: a weight is [out, in]
LAYERS = len(WIDTHS) - 1
WHOLE = [out * in_ * 8 for in_, out in zip(WIDTHS, WIDTHS[1:], strict=False)]  # bytes; 4 and 3 ranks divide the numbers
KEPT = 0.9 * min(WHOLE)  # bytes that may be alive after the forward pass: activations, objects (50 KB are usual)
BATCHES = (2, 3, 4, 5)  # rows of x


def backward_cases(world_size: int, seed: int) -> list[Case]:
    """A step in which rank r counts 10^r times as much as rank 0, then two to seven steps of random numbers."""
    random = generator(seed, world_size)
    weights = [
        torch.randn(out, in_, dtype=torch.float64, generator=random) / in_
        for in_, out in zip(WIDTHS, WIDTHS[1:], strict=False)
    ]
    parts = [[w.flatten().chunk(world_size)[rank] for w in weights] for rank in range(world_size)]
    made = []
    for kind, steps in (("powers", 1), ("steps", 2 + seed % 6)):
        inputs = [[_batch(kind, rank, random) for _ in range(steps)] for rank in range(world_size)]
        made.append(Case(kind, tuple(zip(parts, inputs, strict=True)), None))
    return made


def _batch(kind: str, rank: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The input of the stack, and the gradient of its output: [batch, width] each, of some rows."""
    rows = BATCHES[-1] if kind == "powers" else BATCHES[int(torch.randint(len(BATCHES), (), generator=random))]
    x, grad = (torch.randn(rows, width, dtype=torch.float64, generator=random) for width in (WIDTHS[0], WIDTHS[-1]))
    return (x, grad) if kind != "powers" else (x.abs() * 10.0**rank, torch.full_like(grad, 1.0 + rank))


def most_alive(ranks: int) -> float:
    """Bytes that may be alive at any time: four whole tensors; the shards' gradients; activations."""
    return 4 * max(WHOLE) + most_left(ranks)


def most_left(ranks: int) -> float:
    """Bytes that may be alive when the step is over."""
    return sum(WHOLE) / ranks + KEPT


def run_steps(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: forward and backward of the stack, for each step; what was left, and what was alive."""
    parts, batches = arguments
    steps, n = [], dist.get_world_size()
    with no_ready_made_fsdp():
        for x, grad in batches:
            shards = [part.clone().requires_grad_() for part in parts]
            for shard in shards:
                shard.grad = torch.ones_like(shard)  # as of another micro-batch: a backward pass adds to it
            alive, x = Alive(most_alive(n)), x.clone().requires_grad_()
            with alive:
                y = x
                for shard in shards:
                    y = fn(shard, y)
                    if not isinstance(y, torch.Tensor):
                        return {"kind": type(y).__name__}
                held = alive.now(KEPT), alive.objects(KEPT)
                if y.requires_grad and y.shape == grad.shape:
                    (y * grad).sum().backward()
                left = alive.now(most_left(n))
            steps.append({"y": y.detach(), "x": x.grad, "shards": [_added(s) for s in shards], "graph": y.requires_grad,
                          "held": held[0], "objects": held[1], "most": alive.most, "left": left,
                          "given": alive.given, "unchanged": _unchanged(shards, parts)})  # fmt: skip
    return {"kind": "", "steps": steps}


def _added(shard: torch.Tensor) -> torch.Tensor | None:
    """What a backward pass has added to the gradient; None where that is nothing."""
    return None if shard.grad is None or bool((shard.grad == 1).all()) else shard.grad - 1


def _unchanged(shards: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(shard.detach(), part) for shard, part in zip(shards, parts, strict=True))


def right_step(attempt: Any, rank: int, step: int) -> dict[str, Any]:
    """Output, gradient of the input, and each rank's own gradients of the whole weights, in one process.

    Also the gradients of the weights that the first row of x has alone.
    """
    own = [inputs[0] for inputs in attempt.case.inputs]
    x, grad = attempt.case.inputs[rank][1][step]
    weights = [torch.cat([parts[i] for parts in own]).view(-1, width) for i, width in enumerate(WIDTHS[:-1])]
    first = _one_process(weights, x[:1], grad[:1])["weights"]
    return {**_one_process(weights, x, grad), "first": first}


def _one_process(weights: Sequence[torch.Tensor], x: torch.Tensor, grad: torch.Tensor) -> dict[str, Any]:
    weights = [weight.clone().requires_grad_() for weight in weights]
    y = x = x.clone().requires_grad_()
    for weight in weights:
        y = y @ weight.T
    (y * grad).sum().backward()
    return {"y": y.detach(), "x": x.grad, "weights": [w.grad.flatten() for w in weights]}
