"""Exercise 5.4: cross-entropy on logits whose vocabulary is split, without the full logits anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson05a_common import (
    ALLOWED,
    LESSON,
    READY_MADE,
    both_passes,
    count_fault,
    first_fault,
    g,
    numbers_text,
    only_all_reduce,
    reduced,
    same,
)
from picolib.course.exercises.lesson05a_logits import EACH, Whole
from picolib.course.words import apart, times

TOKENS = 5
HUGE = 1000.0
INSTEAD = "Full logits are what this loss avoids: three numbers a token are enough, a maximum and two sums."
BOTH_SUMS = "2 are right: the maximum, and both sums together (torch.stack), since each all-reduce costs its latency."
NONE_NEEDED = "none is needed: a rank knows softmax - target for its own words."


def loss_cases(world_size: int, seed: int) -> list[Case]:
    """Small logits, then logits of up to ±1000 in one to three calls. Each rank's first and last word is a target."""
    random = generator(seed, world_size)
    small = [_numbers(world_size, random, 1.0)]
    others = [_numbers(world_size, random, HUGE) for _ in range(1 + seed % 3)]
    return [
        Case(kind, tuple(([(x.chunk(world_size, 1)[rank], t) for x, t in made],) for rank in range(world_size)), None)
        for kind, made in (("small", small), ("huge", [*others, _numbers(world_size, random, 2.0)]))
    ]


def _numbers(world_size: int, random: torch.Generator, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [tokens, V] and targets [tokens]."""
    tokens = TOKENS + world_size
    logits = scale * (2 * torch.rand(tokens, EACH * world_size, dtype=torch.float64, generator=random) - 1)
    if scale == HUGE:
        logits[0] = logits[0] / 4 - 0.7 * HUGE  # one token far below the others: each has a maximum of its own
    targets = torch.randint(EACH * world_size, (tokens,), generator=random)
    first = torch.arange(world_size) * EACH
    targets[: 2 * world_size] = torch.cat([first, first + EACH - 1])
    return logits, targets


def run_loss(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: both passes of the loss, and the largest tensor that it made."""
    (batches,) = arguments
    with calls_into(*READY_MADE) as called:
        calls = [_passes(fn, *batch) for batch in batches]
    how = "tensor operations, dist.all_reduce and the function that it is given"
    return {"calls": calls, "borrowed": called[:1], "instead": how}


def _passes(fn: Callable, part: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    logits = part.clone().requires_grad_()
    loss, fits, most = both_passes(lambda: fn(logits, targets.clone(), g), lambda loss: loss.numel() == 1)
    kept = torch.equal(logits.detach(), part)
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    return {"loss": value, "kind": type(loss).__name__, "fits": fits, "gradient": logits.grad, "most": most,
            "kept": kept}  # fmt: skip


def judge_loss(attempt: Any) -> str | None:
    """Size of what travels and of what is made, the loss, its gradient, and the all-reduces."""
    for number in range(len(attempt.outputs[0]["calls"])):
        text = first_fault((_size_fault, _loss_fault, _gradient_fault), attempt, number, Whole(attempt, number))
        if text:
            return text
    return count_fault(attempt, "Loss and gradient", {"forward": (2, BOTH_SUMS), "backward": (0, NONE_NEEDED)})


def _size_fault(attempt: Any, rank: int, got: dict, whole: Whole) -> str | None:
    full = whole.logits.numel()
    sent = max((size for calls in reduced(attempt.ranks[rank], "forward") for size in calls), default=0)
    if sent >= full // whole.n:
        whose, size = ("the full", full) if sent >= full else ("its own", full // whole.n)
        return f"rank {rank} all-reduces {sent} numbers, and {whose} logits have {size}. {INSTEAD}"
    if got["most"] > full // whole.n + len(whole.targets):
        return (
            f"rank {rank} makes a tensor of {got['most']} numbers: its own logits have {full // whole.n}, the full "
            f"ones {full}. Nothing may be larger than its own logits."
        )
    return None


def _loss_fault(attempt: Any, rank: int, got: dict, whole: Whole) -> str | None:
    loss, right = got["loss"], float(whole.loss.detach())
    if not isinstance(loss, (torch.Tensor, float, int)) or (isinstance(loss, torch.Tensor) and loss.numel() != 1):
        shown = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else got["kind"]
        return f"rank {rank}: your function must return one number, the mean loss, not {shown}."
    value = torch.as_tensor(loss, dtype=torch.float64).reshape(())
    if not bool(torch.isfinite(value)):
        if float(whole.parts.abs().max()) < HUGE / 10:
            return f"rank {rank}: the loss is {float(value)}: of which of the two sums is the logarithm taken?"
        return (
            f"rank {rank}: the loss is {float(value)}, where {right:.6g} is right; logits go up to "
            f"{float(whole.parts.abs().max()):.0f}. exp(1000) is more than any float holds, and log(0) less: subtract "
            "the largest logit over all ranks first."
        )
    if same(value, whole.loss.detach()):
        return None
    why = next((text for wrong, text in whole.guesses(rank) if same(value, wrong)), "")
    shown = apart(float(value), right)
    return f"rank {rank}: the loss is {shown[0]}, where {shown[1]} is right. {why}".rstrip()


def _gradient_fault(attempt: Any, rank: int, got: dict, whole: Whole) -> str | None:
    right, gradient = whole.gradient(rank), got["gradient"]
    if not got["kept"]:
        return f"rank {rank}: logits have changed: they are needed for the backward pass. Work on a copy."
    if not got["fits"] or gradient is None:
        return f"rank {rank}: the loss is right, but the logits get no gradient: the graph ends on the way to the loss."
    if same(gradient, right):
        return None
    head = f"rank {rank}: the loss is right, but the gradient of the logits is wrong: it should be (softmax - 1 at the "
    head += "target) / tokens, for this rank's words. "
    for factor in (whole.n, 1 / whole.n):
        if same(gradient, right * factor):
            size = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
            return f"{head}It is exactly {size}: is something summed in the backward pass, too?"
    wrong = (gradient - right).abs() > 1e-9
    if not bool(wrong[whole.parts[rank] < whole.largest[rank].unsqueeze(1)].any()):
        rows = wrong.any(1).nonzero().flatten().tolist()
        return (
            f"{head}It differs at each token's largest logit alone (tokens {numbers_text(rows)}): your maximum is part "
            "of the graph, and all_reduce does not tell autograd of the other ranks. It is a constant: logits.detach()."
        )
    return head + "Sums that are added up over the ranks need g: dist.all_reduce tells autograd nothing."


def ignoring(attempt: Any) -> list[int]:
    """Ranks with the right loss though every all-reduce left something else."""
    right = Whole(attempt, 0).loss.detach()
    losses = [output["calls"][0]["loss"] for output in attempt.outputs]
    return [
        rank for rank, loss in enumerate(losses) if isinstance(loss, torch.Tensor) and same(loss.reshape(()), right)
    ]


EXERCISE = Exercise(
    id="5.4",
    function="vocab_loss",
    title="vocabulary loss",
    lesson=LESSON,
    sitting="05A",
    difficulty=3,
    minutes=9,
    task="Cross-entropy on logits whose vocabulary is split over the ranks: two all-reduces, three numbers a token.",
    cases=loss_cases,
    call=run_loss,
    judge=judge_loss,
    ignores=ignoring,
    operations=frozenset({"MAX"}),
    sizes=(4, 3, 2),
    allows=ALLOWED,
    raised=(
        (
            "out of bounds",
            "Targets are numbers of the whole vocabulary, and logits has this rank's words alone, from number "
            "rank * logits.shape[1] on.",
        ),
    ),
    rules=(borrowed, only_all_reduce(INSTEAD)),
    tags=("gradients",),
    verified="no tensor larger than a rank's own logits, right at ±1000, two all-reduces and no more",
    hints=(
        "loss = log Σ exp(x - m) - (x_target - m), with m the largest logit over ALL ranks. What does a rank know?",
        "m = logits.detach().amax(1), all-reduced with op=dist.ReduceOp.MAX. This rank's words begin at "
        "rank * logits.shape[1]: is the target among them? torch.where(mine, looked_up, 0.0).",
        "g(torch.stack([shifted.exp().sum(1), target_logit])) is both sums in one all-reduce; then log, minus, mean().",
    ),
)
