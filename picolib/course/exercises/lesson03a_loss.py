"""Exercise 3.2: the loss whose gradients, averaged over ranks, are those of the mean over all tokens of the batch."""

from __future__ import annotations

import math
from typing import Any

import torch

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.rebuilt import note_calls_into
from picolib.course.words import apart, number_of, times

WEIGHTS = 4  # parameters of the little model whose gradients are compared
UNEVEN = 4096 + 15  # tokens of all ranks: no whole number that float16 (exact to 2,048) or bfloat16 (to 256) can hold
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}  # a count of shape [1] in float32 makes the whole loss float32


MEAN_AGAIN = (
    "a mean was divided once more: token_losses.mean() is divided by a rank's own tokens already. Begin with "
    "token_losses.sum()."
)


def loss_cases(world_size: int, seed: int) -> list[Case]:
    """Tokens of each rank, a row of numbers each: 3 and 9 first; then any number, on one rank none, at last many."""
    random = generator(seed, world_size)
    counts = torch.randint(1, 12, (world_size,), generator=random).tolist()
    empty = [0 if rank == world_size - 1 and rank else count for rank, count in enumerate(counts)]
    first, large = ([3, 9] + counts)[:world_size], [UNEVEN - sum(counts[1:]), *counts[1:]]
    return [_case("digits", first, random), *(_case("float64", many, random) for many in (counts, empty, large))]


def _case(kind: str, counts: list[int], random: torch.Generator) -> Case:
    tokens = []
    for rank, count in enumerate(counts):
        numbers = torch.randn(count, WEIGHTS, dtype=torch.float64, generator=random)
        tokens.append(torch.full_like(numbers, 10.0**rank) if kind == "digits" else numbers)
    mean = torch.cat(tokens).mean(0)
    return Case(kind, tuple((t,) for t in tokens), ({"gradient": mean},) * len(counts))


def backward_of(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: the losses of its tokens, w·x each, through the learner's function; and the gradient of w."""
    (tokens,) = arguments
    weights = torch.ones(WEIGHTS, dtype=torch.float64, requires_grad=True)
    with note_calls_into("picolib.parallel", "picolib.train"):
        loss = fn(tokens @ weights)
    if not isinstance(loss, torch.Tensor):
        return {"kind": "nothing" if loss is None else f"a {type(loss).__name__}"}
    if loss.numel() != 1 or not loss.requires_grad:
        kind = "a tensor without a graph" if not loss.requires_grad else f"a tensor of shape {list(loss.shape)}"
        return {"kind": kind, "empty": not len(tokens)}
    loss.backward()
    if weights.grad is None:
        return {"kind": "a tensor whose graph does not begin at token_losses", "empty": not len(tokens)}
    return {"kind": "", "loss": float(loss.detach()), "gradient": weights.grad}


# The verdict ---------------------------------------------------------------------------------------------------


def judge_loss(attempt: Any) -> str | None:
    """The mean over ranks of their gradients is the gradient of the mean over all tokens; one number was sent."""
    return (
        _no_scalar(attempt)
        or _not_finite(attempt)
        or _gradient(attempt)
        or _one_count(attempt)
        or _others_count(attempt)
    )


def ignores_count(attempt: Any) -> list[int]:
    """All ranks, where the gradients are right though what the all-reduce left was no count of tokens."""
    useless = any(output["kind"] for output in attempt.outputs) or _gradient(attempt)
    return [] if useless else list(range(attempt.world_size))


def _no_scalar(attempt: Any) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        if not output["kind"]:
            continue
        if output.get("empty"):
            return (
                f"rank {rank} has no tokens and returned {output['kind']}: backward() reaches no parameter, and the "
                "other ranks wait for its gradients for ever. token_losses.sum() is 0 there, and has a graph."
            )
        return f"rank {rank} returned {output['kind']}; a scalar tensor computed from token_losses is asked for."
    return None


def _not_finite(attempt: Any) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        if not math.isfinite(output["loss"]) or not bool(output["gradient"].isfinite().all()):
            tokens = number_of(len(attempt.inputs()[rank]), "token")
            return (
                f"rank {rank} has {tokens} and its loss is {output['loss']}: a mean over nothing. "
                "One such rank makes the gradients of all ranks nan. Divide by something that is never 0."
            )
    return None


def _gradient(attempt: Any) -> str | None:
    got = torch.stack([output["gradient"] for output in attempt.outputs]).mean(0)
    right = attempt.case.expected[0]["gradient"]
    if torch.allclose(got, right, **FLOAT32):
        return None
    counts = [len(tokens) for tokens in attempt.inputs()]
    if text := _rounded(attempt, counts):
        return text
    for wrong, says in _usual_mistakes(attempt, right, counts):
        if torch.allclose(got, wrong, **FLOAT32):
            return f"Averaged over the ranks, {says} Tokens: {_listed(counts)}.{_more_than_a_count(attempt)}"
    shown = apart(float(got[0]), float(right[0]))
    return (
        f"Averaged over the ranks, the gradient is {shown[0]}, where {shown[1]} is right. Tokens: {_listed(counts)}."
        f"{_more_than_a_count(attempt)}"
    )


def _rounded(attempt: Any, counts: list[int]) -> str | None:
    """A count in a type that cannot hold it."""
    holds = {"bfloat16": 256, "float16": 2048, "uint8": 255, "int8": 127, "int16": 32767}
    dtypes = [entry[6] for record in attempt.ranks for entry in record.reductions if entry[6] in holds]
    if not dtypes or sum(counts) <= holds[dtypes[0]]:
        return None
    return (
        f"the count is all-reduced in {dtypes[0]}, which holds every whole number up to {holds[dtypes[0]]:,} only: of "
        f"{sum(counts):,} tokens it makes another number. A count is not data: keep it in float32 or int64."
    )


def _more_than_a_count(attempt: Any) -> str:
    """Said besides: an all-reduce of the loss is no mistake that gradients could show."""
    reduced = [c[1] for c in attempt.ranks[0].collectives if c[0] == "all_reduce"]
    if sum(reduced) < 2:
        return ""
    return (
        f" Besides, rank 0 all-reduced {number_of(sum(reduced), 'number')}; the count is enough. An all-reduce of the "
        "loss changes a number on the screen, and no gradient: autograd does not see what other ranks have added."
    )


def _usual_mistakes(attempt: Any, right: torch.Tensor, counts: list[int]) -> list[tuple[torch.Tensor, str]]:
    n, total = len(counts), sum(counts)
    means = torch.stack([t.mean(0) for t in attempt.inputs() if len(t)]).sum(0) / n
    at_least_one = right * total / sum(max(count, 1) for count in counts)
    return [
        (at_least_one, "an empty rank is counted as one token. Its count is 0; what divides is the count of all "
                       "ranks, and that is never 0."),
        (right / n, f"every gradient is exactly {times(n)} too small. The ranks' gradients are averaged after you: "
                    "they are divided by N once more."),
        (right / n**2, f"every gradient is exactly {times(n * n)} too small: it is divided by the number of ranks, "
                       "N, where it has to be multiplied by it."),
        (means, "it is the gradient of the mean of the ranks' means: a token of a rank with few tokens counts more "
                "than one of a rank with many. Divide by the number of tokens of all ranks."),
        (means * n, f"the sum is divided by the local count, so that each rank's mean counts {times(n)}: "
                    "every rank must divide by the same number, the tokens of all ranks."),
        (means * n / total, MEAN_AGAIN),
        (means / total, MEAN_AGAIN),
        (right * total / n, "the sum is not divided by the number of tokens."),
        (right * total, "the sum is not divided by the number of tokens."),
        (right * total**2, "the sum is multiplied by the number of tokens, where it has to be divided by it."),
        (right * total / max(counts), "the count is the largest of the ranks', not their sum."),
    ]  # fmt: skip


def _listed(counts: list[int]) -> str:
    return ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))


def _one_count(attempt: Any) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        reduced = [c[1] for c in record.collectives if c[0] == "all_reduce"]
        if reduced == [1]:
            continue
        if not reduced:
            return f"rank {rank} all-reduced nothing: how many tokens the others have, it cannot know."
        what = f"{number_of(len(reduced), 'all-reduce')} of {number_of(sum(reduced), 'number')} in all"
        return (
            f"The gradients are right, but rank {rank} made {what}: one all-reduce of one number, the count, is enough."
        )
    return None


def _others_count(attempt: Any) -> str | None:
    """What each rank gives is its own count, by the same factor on all of them."""
    counts = torch.tensor([float(len(tokens)) for tokens in attempt.inputs()], dtype=torch.float64)
    given = torch.tensor([record.reductions[0][5][0] for record in attempt.ranks], dtype=torch.float64)
    if torch.allclose(given, counts * given.sum() / counts.sum(), rtol=1e-5):
        return None
    return (
        "The gradients are right, but what the ranks give to the all-reduce is not each one's own count of tokens: "
        f"{', '.join(f'{x:g}' for x in given.tolist())} for {_listed(counts.int().tolist())}."
    )
