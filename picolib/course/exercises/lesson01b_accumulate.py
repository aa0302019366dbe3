"""Exercise 1.6: gradient accumulation whose gradients are m times too big, and which keeps every graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from picolib.course import values
from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.words import apart, times
from picolib.plan.memory import measure

ROWS, WIDTH, CLASSES = 6, 8, 5


def model_of(seed: int) -> nn.Module:
    """A small classifier in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES)).double()


def accumulation_cases(world_size: int, seed: int) -> list[Case]:
    """4 micro-batches, then 3, then a single one: each (inputs, targets)."""
    random, made = generator(seed, world_size), []
    for many in (4, 3, 1):
        inputs = torch.randn(many, ROWS, WIDTH, dtype=torch.float64, generator=random)
        targets = torch.randint(CLASSES, (many, ROWS), generator=random)
        batches = [(x, t) for x, t in zip(inputs, targets, strict=True)]
        made.append(Case("accumulate", ((seed % 10_000, batches),), None))
    return made


def step_with(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: one accumulated step, measured; then one micro-batch alone, to compare."""
    seed, batches = arguments
    model = model_of(seed)
    with measure(model) as found:
        said = fn(model, [tuple(batch) for batch in batches])
    alone = model_of(seed)
    with measure(alone) as one:
        F.cross_entropy(alone(batches[0][0]), batches[0][1]).backward()
    graph = isinstance(said, torch.Tensor) and said.requires_grad
    gradients = {name: p.grad for name, p in model.named_parameters()}
    value = said.detach().item() if isinstance(said, torch.Tensor) and said.numel() == 1 else said
    return {"said": value, "graph": graph, "gradients": gradients, "held": found.activations / one.activations}


def reference(seed: int, batches: list[tuple]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the whole batch at once."""
    model = model_of(seed)
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def judge_accumulation(attempt: Any) -> str | None:
    """The whole batch's gradients and loss; never more than one micro-batch's graph."""
    got, (seed, batches) = attempt.outputs[0], attempt.case.inputs[0]
    loss, right = reference(seed, batches)
    return _gradients(got, right, seed, batches) or _held(got, len(batches)) or _returned(got, loss, len(batches))


def _gradients(got: dict, right: dict, seed: int, batches: list[tuple]) -> str | None:
    m = len(batches)
    mine = got["gradients"]
    missing = [name for name in right if mine[name] is None]
    if missing:
        return f"`{missing[0]}` has no gradient: was backward() called, and is .grad still there at the end?"
    same = lambda others, factor: all(  # noqa: E731
        torch.allclose(mine[n], factor * others[n], rtol=1e-9, atol=1e-12) for n in right
    )
    if same(right, 1):
        return None
    if same(right, m):
        return (
            f"every gradient is exactly {times(m)} too big: a sum of {m} means. Divide each micro-batch's loss by "
            f"their number, {m}."
        )
    if same(right, 1 / m):
        return f"every gradient is exactly {times(m)} too small. Is the division by {m} there twice?"
    for number, batch in enumerate(batches):
        for factor in (1, 1 / m):
            if same(reference(seed, [batch])[1], factor):
                place = "last" if number == m - 1 else "first" if not number else f"number {number}"
                return (
                    f"the gradients are those of one micro-batch alone, the {place} of {m}. backward() adds to .grad: "
                    "let it, and clear .grad before the first only."
                )
    name = next(iter(right))
    shown = apart(float(mine[name].flatten()[0]), float(right[name].flatten()[0]))
    return f"the gradient of `{name}` begins with {shown[0]}, where the whole batch gives {shown[1]}."


def _held(got: dict, m: int) -> str | None:
    if got["held"] <= 1.01 or m == 1:
        return None
    return (
        f"The gradients are right, but at its most autograd held {got['held']:.2g}x what one micro-batch needs: "
        "graphs live on. A graph is kept as long as a loss of it waits for backward(); call it inside the loop, "
        "for one micro-batch after the other."
    )


def _returned(got: dict, loss: float, m: int) -> str | None:
    said = got["said"]
    if got["graph"]:
        return (
            "The gradients are right, but what you return still has a graph: whoever collects it in a list, step by "
            "step, collects graphs. Return a number: loss.item(), or loss.detach()."
        )
    if not isinstance(said, (int, float)) or isinstance(said, bool):
        return f"The gradients are right, but the loss returned must be a number, not {values.shown(said)}."
    if abs(said - loss) <= 1e-9 * abs(loss):
        return None
    why = f" It is {times(m)} the mean." if abs(said - m * loss) <= 1e-9 * abs(loss) else " Is it the mean over all?"
    return f"The gradients are right, but the loss returned is {said:.6g}, where {loss:.6g} is the whole batch's.{why}"
