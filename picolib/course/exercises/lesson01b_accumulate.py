"""Exercise 1.6: gradient accumulation whose gradients are m times too big, and which keeps every graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from picolib.course import values
from picolib.course.exercise import Case
from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.live import Live
from picolib.course.words import apart, times
from picolib.plan.memory import measure

WIDTH, CLASSES = 8, 5
SIZES = (4, 256), (3, 384), (1, 320)  # micro-batches, and rows of each: many, beside which the weights weigh nothing
MORE = 1.4  # times what lives with one micro-batch: sums of gradients and Python's own objects come to 1.1
SECOND_TIME = "backward through the graph a second time"  # in torch's error
RUNNING_TOTAL = (
    "Call backward() on this micro-batch's loss, not on the running total: that one holds the earlier losses too, and "
    "would count them again. (retain_graph=True hides the error, and counts them again.) Add up numbers: loss.item()."
)
TORCHS = ("torch.utils.checkpoint", "torch.distributed.algorithms")


def model_of(seed: int) -> nn.Module:
    """A small classifier in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES)).double()


def accumulation_cases(world_size: int, seed: int) -> list[Case]:
    """4 micro-batches, then 3, then a single one: each (inputs, targets)."""
    random, made = generator(seed, world_size), []
    for many, rows in SIZES:
        inputs = torch.randn(many, rows, WIDTH, dtype=torch.float64, generator=random)
        targets = torch.randint(CLASSES, (many, rows), generator=random)
        batches = [(x, t) for x, t in zip(inputs, targets, strict=True)]
        made.append(Case("accumulate", ((seed % 10_000, batches),), None))
    return made


def step_with(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: one accumulated step, measured, and another; then the same with one micro-batch alone, to compare."""
    seed, batches = arguments
    model = model_of(seed)
    with measure(model) as found, calls_into(*TORCHS) as called:
        said = fn(model, [tuple(batch) for batch in batches])
    with measure(alone := model_of(seed)) as one:
        of_one(alone, batches)
    graph = isinstance(said, torch.Tensor) and said.requires_grad
    value = said.detach().item() if isinstance(said, torch.Tensor) and said.numel() == 1 else said
    _live_step(of_one, seed, batches)  # what torch sets up at the first time is nobody's
    lives, runs = _live_step(fn, seed, batches)
    first = model_of(seed).state_dict()
    return {
        "borrowed": called[0] if called else "",
        "said": value,
        "graph": graph,
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "moved": [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, first[name])],
        "held": found.activations / one.activations,
        "lives": lives / _live_step(of_one, seed, batches)[0],
        "runs": runs,
    }


def of_one(model: nn.Module, batches: list[tuple]) -> None:
    """The gradients of the first micro-batch."""
    inputs, targets = batches[0]
    F.cross_entropy(model(inputs), targets).backward()


def _live_step(fn: Any, seed: int, batches: list[tuple]) -> tuple[int, int]:
    """The most bytes that live in such a step, and how often the model's first layer has run."""
    model = model_of(seed)
    known = [*model.parameters(), *(tensor for batch in batches for tensor in batch)]
    with Live(known, [model[0].weight]) as live:
        fn(model, [tuple(batch) for batch in batches])
    return live.most + live.most_objects, live.products[0]


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
    return (
        _borrowed(got)
        or _gradients(got, right, seed, batches)
        or _held(got, len(batches))
        or _more_than_asked(got, len(batches))
        or _returned(got, loss, len(batches))
    )


def _borrowed(got: dict) -> str | None:
    if not got["borrowed"]:
        return None
    return (
        f"your function calls {got['borrowed']}, which computes everything twice to save memory. Here it is not "
        "needed: a graph can go as soon as its own backward() has run, before the next one is made."
    )


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
    factor = float(mine[next(iter(right))].sum() / right[next(iter(right))].sum())
    if same(right, factor):
        return (
            f"every gradient is {times(factor)} the right one with {m} micro-batches. Their number is "
            "len(micro_batches), not always the same."
        )
    for number, batch in enumerate(batches):
        for factor in (1, 1 / m):
            if same(reference(seed, [batch])[1], factor):
                place = "last" if number == m - 1 else "first" if not number else f"number {number}"
                return (
                    f"the gradients are those of one micro-batch alone, the {place} of {m}. backward() adds to .grad: "
                    "let it, and clear .grad before the first only."
                )
    if text := _uneven(mine, seed, batches):
        return text
    name = next(iter(right))
    shown = apart(float(mine[name].flatten()[0]), float(right[name].flatten()[0]))
    return f"the gradient of `{name}` begins with {shown[0]}, where the whole batch gives {shown[1]}."


def _uneven(mine: dict, seed: int, batches: list[tuple]) -> str | None:
    """The micro-batches are all in it, but not all by the same factor."""
    each = torch.stack([_flat(reference(seed, [batch])[1]) for batch in batches], dim=1) / len(batches)
    shares = torch.linalg.lstsq(each, _flat(mine)[:, None]).solution[:, 0]
    if not torch.allclose(each @ shares, _flat(mine), rtol=1e-9, atol=1e-12):
        return None
    counted = ", ".join(times(abs(float(share))) for share in shares)
    told = f"the micro-batches count {counted}, where each should count 1x. "
    return told + (RUNNING_TOTAL if is_running_total(shares.tolist()) else "Divide every loss by m, not some of them.")


def _flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def is_running_total(shares: Sequence[float]) -> bool:
    """Whether the first of m counts m times as much as the last, the second m - 1 times, and so on."""
    last = [share / (len(shares) - k) for k, share in enumerate(shares)]
    return len(shares) > 1 and last[-1] > 0 and all(abs(share - last[-1]) < 1e-6 * last[-1] for share in last)


def _held(got: dict, m: int) -> str | None:
    if m == 1 or (got["held"] <= 1.01 and got["lives"] <= MORE):
        return None
    if got["held"] <= 1.01:
        return (
            f"The gradients are right, and autograd itself held little; but at the most {got['lives']:.2g}x what one "
            "micro-batch needs lived at a time, kept in another way. Nothing of a micro-batch is needed once its "
            "backward() has run: call it inside the loop, for one micro-batch after the other."
        )
    return (
        f"The gradients are right, but at its most autograd held {got['held']:.2g}x what one micro-batch needs: "
        "graphs live on. A graph is kept as long as a loss of it waits for backward(); call it inside the loop, "
        "for one micro-batch after the other."
    )


def _more_than_asked(got: dict, m: int) -> str | None:
    """Right gradients, but a step was taken, or the model ran too often."""
    if got["moved"]:
        return (
            f"The gradients are right, but `{got['moved'][0]}` has changed. Asked are gradients, no step: the "
            "optimizer steps later, where this function is called."
        )
    if got["runs"] > m:
        return (
            f"The gradients are right, but the model runs {got['runs']} times for {m} micro-batches: "
            "once for each is enough, as the loss that backward() starts from is the one to return."
        )
    return None


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
