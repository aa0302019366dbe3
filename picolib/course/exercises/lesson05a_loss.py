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
    in_the_graph,
    numbers_text,
    only_all_reduce,
    reduced,
    same,
)
from picolib.course.exercises.lesson05a_logits import WORDS, Whole
from picolib.course.words import apart, times

TOKENS = 5
HUGE = 1000.0
INSTEAD = "Full logits are what this loss avoids: three numbers a token are enough, a maximum and two sums."
BOTH_SUMS = "2 are right: the maximum, and both sums together (torch.stack), since each all-reduce costs its latency."
NONE_NEEDED = "none is needed: a rank knows softmax - target for its own words."


def loss_cases(world_size: int, seed: int) -> list[Case]:
    """Small logits; then up to ±1000 in one to three calls, and once targets of one rank's words only.

    Each call has another number of tokens, and its loss another gradient; before the last, each rank's first and last
    word is a target.
    """
    random = generator(seed, world_size)
    small = [(*_numbers(world_size, random, 1.0), 1.0)]
    huge = [(*_numbers(world_size, random, HUGE, more), 0.5) for more in range(1, 2 + seed % 3)]
    logits, targets = _numbers(world_size, random, 2.0, 4)
    words = WORDS[world_size]
    lonely = logits, targets % words + words * int(torch.randint(world_size, (1,), generator=random)), 3.0
    return [
        Case(kind, tuple(([(x.chunk(world_size, 1)[r], *more) for x, *more in made],) for r in range(world_size)), None)
        for kind, made in (("small", small), ("huge", [*huge, lonely]))
    ]


def _numbers(n: int, random: torch.Generator, scale: float, more: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [tokens, V] and targets [tokens]."""
    tokens, words = TOKENS + n + more, WORDS[n]
    logits = scale * (2 * torch.rand(tokens, words * n, dtype=torch.float64, generator=random) - 1)
    if scale == HUGE:
        logits[0] = logits[0] / 4 - 0.7 * HUGE  # one token far below the others: each has a maximum of its own
        of_ranks = torch.full((n, 1), -0.9 * HUGE, dtype=torch.float64)
        of_ranks[-1] = 0.9 * HUGE  # one token whose largest logit one rank alone has
        logits[1] = (logits[1].view(n, words) / 20 + of_ranks).flatten()
    targets = torch.randint(words * n, (tokens,), generator=random)
    first = torch.arange(n) * words
    targets[: 2 * n] = torch.cat([first, first + words - 1])
    return logits, targets


def run_loss(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: both passes of the loss, and the largest tensor that it made."""
    (batches,) = arguments
    with calls_into(*READY_MADE) as called:
        calls = [_passes(fn, *batch) for batch in batches]
    how = "tensor operations, dist.all_reduce and the function that it is given"
    return {"calls": calls, "borrowed": called[:1], "instead": how}


def _passes(fn: Callable, part: torch.Tensor, targets: torch.Tensor, scale: float) -> dict[str, Any]:
    logits, asked = part.clone().requires_grad_(), targets.clone()
    seen = both_passes(lambda: fn(logits, asked, g), lambda loss: loss.numel() == 1, scale)
    loss, most = seen.output, max(seen.forward.most, seen.backward.most)
    kept = [torch.equal(logits.detach(), part), torch.equal(asked, targets)]
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    return {"loss": value, "kind": type(loss).__name__, "fits": seen.both, "gradient": logits.grad, "most": most,
            "kept": kept}  # fmt: skip


def judge_loss(attempt: Any) -> str | None:
    """Size of what travels and of what is made, the loss, its gradient, and the all-reduces."""
    for number in range(len(attempt.outputs[0]["calls"])):
        text = first_fault((_size_fault, _loss_fault, _gradient_fault), attempt, number, Whole(attempt, number))
        if text:
            return text
    if attempt.case.kind == "small":
        return None  # who takes no maximum is to hear that first, and not of the number of all-reduces
    counts = {"forward": (2, BOTH_SUMS), "backward": (0, NONE_NEEDED)}
    return count_fault(attempt, "Loss and gradient", counts) or _numbers_fault(attempt) or in_the_graph(attempt)


def _numbers_fault(attempt: Any) -> str | None:
    """More than three numbers a token, or fewer: then the others came by another way."""
    calls = attempt.case.inputs[0][0]
    for rank, record in enumerate(attempt.ranks):
        for sizes, (_, targets, _) in zip(reduced(record, "forward"), calls, strict=False):
            if sum(sizes) != 3 * len(targets):
                why = "enough" if sum(sizes) > 3 * len(targets) else "needed"
                return (
                    f"Loss and gradient are right, but rank {rank} all-reduces {sum(sizes)} numbers for {len(targets)} "
                    f"tokens. Three a token are {why}: a maximum, and two sums."
                )
    return None


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
            why = "of which of the two sums is the logarithm taken? Of the target's logit, other ranks' summand is 0."
            return f"rank {rank}: the loss is {float(value)}: {why}"
        added = "all_reduce" in attempt.code and "MAX" not in attempt.code
        return (
            f"rank {rank}: the loss is {float(value)}, where {right:.6g} is right; logits go up to "
            f"{float(whole.parts.abs().max()):.0f}. exp(1000) is more than any float holds, and log(0) less: subtract "
            "the largest logit of each token over all ranks first."
            + (" An all-reduce adds up; the largest is left by op=dist.ReduceOp.MAX." if added else "")
        )
    if same(value, whole.loss.detach()):
        return None
    why = next((text for wrong, text in whole.guesses(rank) if same(value, wrong)), "")
    shown = apart(float(value), right)
    return f"rank {rank}: the loss is {shown[0]}, where {shown[1]} is right. {why}".rstrip()


def _gradient_fault(attempt: Any, rank: int, got: dict, whole: Whole) -> str | None:
    right, gradient = whole.gradient(rank), got["gradient"]
    if not all(got["kept"]):
        which = "targets" if got["kept"][0] else "logits"
        return f"rank {rank}: {which} have changed: they are somebody else's, too. Work on a tensor of your own."
    if not got["fits"] or gradient is None:
        return f"rank {rank}: the loss is right, but the logits get no gradient: the graph ends on the way to the loss."
    if same(gradient, right):
        return None
    head = f"rank {rank}: the loss is right, but the gradient of the logits is wrong: it should be (softmax - 1 at the "
    head += "target) / tokens, for this rank's words. "
    if same(gradient, right / whole.scale):
        size = f"{times(whole.scale)} too small" if whole.scale > 1 else f"{times(1 / whole.scale)} too big"
        return (
            f"{head}It is exactly {size}: the gradient of the loss itself is {whole.scale:g} here. A backward pass "
            "multiplies by the gradient that it is given."
        )
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
    if any(entry[0] == "graph" for entry in attempt.ranks[rank].entries):
        return head + "Sums that are added up over the ranks need g: dist.all_reduce tells autograd nothing."
    return head + "Both sums go through g, and nothing on the way to it may be detached but the maximum."


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
            "leaf Variable that requires grad",
            "logits are needed as they are: logits - largest is a new tensor, logits -= largest is not.",
        ),
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
