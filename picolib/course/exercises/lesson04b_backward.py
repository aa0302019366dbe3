"""Exercise 4.4: a linear layer on a sharded weight, forward and backward.

Layers of the learner's function stand one on the other (`lesson04b_stack`). After the forward pass no whole weight may
be alive; the gradient of each shard is this rank's part of the mean over the ranks, and a step sends 3(N-1)/N times
the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.course.exercise import COLLECTIVES, Exercise
from picolib.course.exercises.lesson04b_calls import WRONG_ROOM
from picolib.course.exercises.lesson04b_refuse import GATHERS, SCATTERS, only
from picolib.course.exercises.lesson04b_stack import (
    KEPT,
    LAYERS,
    WHOLE,
    backward_cases,
    most_alive,
    most_left,
    right_step,
    run_steps,
)
from picolib.course.words import apart, number_of, ranks_text, times

SHARES = dict.fromkeys(GATHERS | SCATTERS | {"broadcast"}, 1) | {"all_reduce": 2}  # times (N-1)/N of what travels
RAISED = (
    (
        r"returned an (invalid|incorrect number of) gradient",
        "backward returns one gradient for each argument of forward, in that order: of shard, then of x.",
    ),
    (
        r"outputShape|worldSize",
        "reduce_scatter_tensor cuts its input along the first dimension, one piece a rank: flatten() the gradient.",
    ),
    (r"dtype\(\) ==", "Make room in the dtype of the shard, and as long as it: torch.empty_like(shard)."),
    (
        r"shapes cannot be multiplied|size mismatch|shape '\[.*\]' is invalid for input of size",
        "The flat weight is cut into rows as long as a row of x: whole.view(-1, x.shape[1]), which is [out, in].",
    ),
    *WRONG_ROOM,
)
ENOUGH = "Four whole tensors at a time are enough: the weight, its gradient, and copies of these on their way."


def judge_backward(attempt: Any) -> str | None:
    """Output and gradients, in every step; then what is kept, and the bytes."""
    for rank, output in enumerate(attempt.outputs):
        if output["kind"]:
            return f"rank {rank}: your function returned {output['kind']}: return y, a tensor."
    for step in range(len(attempt.outputs[0]["steps"])):
        right = [right_step(attempt, rank, step) for rank in range(attempt.world_size)]
        for look in (_passes_fault, _shards_fault):
            text = look(attempt, step, right)
            if text:
                return ("The first step is right; in a later one, " if step else "") + text
    looks = [_memory_fault, _bytes_fault, _given_fault]
    if any(call[0] == "all_reduce" for record in attempt.ranks for call in record.collectives):
        looks.insert(0, _bytes_fault)  # whose parts are views that keep the whole
    return next((text for look in looks if (text := look(attempt))), None)


def _passes_fault(attempt: Any, step: int, right: Sequence[dict]) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        got = output["steps"][step]
        if not got["unchanged"]:
            return f"rank {rank}: a shard has changed. It is the optimizer's: gather into a tensor of your own."
        if got["y"].shape != right[rank]["y"].shape or not torch.allclose(got["y"], right[rank]["y"], rtol=1e-9):
            gathered = any(call[0] in GATHERS for call in attempt.ranks[rank].collectives)
            why = "" if gathered else " Nothing was gathered: what the other ranks have of the weight is not there."
            return f"rank {rank}: the output is not x @ weight.T, with the whole weight of [out, in].{why}"
        if not got["graph"]:
            return f"rank {rank}: y has no graph, so backward cannot start from it: return ShardedLinear.apply(...)."
        if got["x"] is None:
            return f"rank {rank}: x has no gradient. backward returns one for each argument of forward: shard, then x."
        if not torch.allclose(got["x"], right[rank]["x"], rtol=1e-9):
            return f"rank {rank}: the gradient of x is wrong: it is grad @ weight, and every rank keeps its own."
    return None


def _shards_fault(attempt: Any, step: int, right: Sequence[dict]) -> str | None:
    n = attempt.world_size
    for rank, output in enumerate(attempt.outputs):
        for layer, got in enumerate(output["steps"][step]["shards"]):
            own = [one["weights"][layer] for one in right]
            exact = (sum(own) / n).chunk(n)[rank]
            head = f"rank {rank}, layer {layer}: "
            if got is None:
                return f"{head}the shard has no gradient. backward returns one for each argument: shard, then x."
            if got.shape != exact.shape:
                return f"{head}the shard's gradient has {got.numel()} numbers, and the shard {exact.numel()}."
            if not torch.allclose(got, exact, rtol=1e-8, atol=1e-12):
                rows, first = len(attempt.case.inputs[rank][1][step][0]), [one["first"][layer] for one in right]
                return head + (_rows(got, exact, sum(first).chunk(n)[rank] / n, rows) or _why(got, exact, own, rank))
    return None


def _rows(got: torch.Tensor, exact: torch.Tensor, first: torch.Tensor, rows: int) -> str | None:
    """Of x's rows only the first, or their mean."""
    if torch.allclose(got, first, rtol=1e-8, atol=1e-12):
        return f"that is the gradient of the first row of x alone, and x has {rows}: grad.T @ x adds all up."
    if torch.allclose(got * rows, exact, rtol=1e-8, atol=1e-12):
        return (
            f"the shard's gradient is exactly {times(rows)} too small, and x has {rows} rows: grad.T @ x adds them up. "
            "The mean is over the ranks."
        )
    return None


def _why(got: torch.Tensor, exact: torch.Tensor, own: Sequence[torch.Tensor], rank: int) -> str:
    n = len(own)
    same = lambda other: torch.allclose(got, other, rtol=1e-8, atol=1e-12)  # noqa: E731
    for factor in (n, 1 / n, n * n):
        if same(exact * factor):
            word = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
            why = {n: "summed where it should be averaged?", n * n: "multiplied by N where it should be divided?"}
            return f"the shard's gradient is exactly {word}. Was it {why.get(factor, 'divided once too often?')}"
    if any(same(own[rank].chunk(n)[rank] * f) for f in (1, 1 / n)):
        return "the shard has the gradient of this rank's batch alone; the others' batches are to be in it, too."
    for other in range(n):
        if any(same((sum(own) / n).chunk(n)[other] * f) for f in (1, n)):
            return f"that is the part of rank {other}. Rank {rank} keeps part {rank} of the gradient."
    if same(exact - 1):
        return "what .grad held before, from another micro-batch, is gone: return the gradient, autograd adds it up."
    missing = [q for q in range(n) if any(same((sum(own) - own[q]).chunk(n)[rank] / m) for m in (1, n, n - 1))]
    if missing:
        return f"{ranks_text(missing)} {'is' if len(missing) == 1 else 'are'} missing in the mean."
    index = int((got - exact).abs().argmax())
    shown = apart(float(got[index]), float(exact[index]))
    return f"the shard's gradient is {shown[0]} at place {index}, where {shown[1]} is right: part {rank} of grad.T @ x."


def _memory_fault(attempt: Any) -> str | None:
    """What is held after the forward pass, after the step, and at the most.

    Python's own objects count from the second step on: in the first, modules are imported.
    """
    n, average = attempt.world_size, sum(WHOLE) / LAYERS
    for rank, output in enumerate(attempt.outputs):
        steps = output["steps"]
        objects = max((step["objects"] for step in steps[1:]), default=0)
        held = max(step["held"] for step in steps) + (objects if objects > KEPT else 0)
        left, most = (max(step[name] for step in steps) for name in ("left", "most"))
        if held > KEPT:
            wholes = number_of(min(max(1, round(held / average)), LAYERS), "whole weight")
            odd = " (Bytes, numbers and arrays need memory as tensors do.)" if objects > KEPT else ""
            return (
                f"The gradients are right, but after the forward pass rank {rank} still holds {wholes} of {LAYERS}, "
                f"for the backward pass; 0 are right. Save the shard, and gather again in backward.{odd}"
            )
        if left > most_left(n):
            wholes = number_of(max(1, round((left - sum(WHOLE) / n) / average)), "whole tensor")
            return (
                f"The gradients are right, but when the step is over rank {rank} still holds {wholes}: your function "
                "keeps them where nobody lets go of them."
            )
        if most > most_alive(n):
            return (
                f"The gradients are right, but rank {rank} holds {most / max(WHOLE):.1f} times a whole weight at once. "
                f"{ENOUGH}"
            )
    return None


def _bytes_fault(attempt: Any) -> str | None:
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        steps, names = len(record.output["steps"]), [call[0] for call in record.collectives]
        passes = steps * LAYERS
        share = sum(SHARES.get(name, 0) for name in names) / passes
        if share == 3 and sum(name in GATHERS for name in names) == 2 * passes:
            continue
        head = f"The gradients are right, but rank {rank} sent {times(share / 3)} the bytes"
        if "all_reduce" in names:
            return (
                f"{head}, {share:g}(N-1)/N·Ψ where 3(N-1)/N·Ψ are right. An all-reduce brings every rank all "
                "of the mean gradient, of which it keeps 1/N: reduce-scatter brings it that alone."
            )
        if share == 3:
            made = ", ".join(dict.fromkeys(names))
            return (
                f"The gradients are right, but rank {rank} called {made}: two gathers and one reduce-scatter are right."
            )
        return f"{head}: a layer needs two all-gathers and one reduce-scatter, 3(N-1)/N·Ψ on {n} ranks."
    return None


def _given_fault(attempt: Any) -> str | None:
    """What torch's all-gathers were given is this rank's part, of each layer. (Of picolib's it is not known.)"""
    order = [*range(LAYERS), *reversed(range(LAYERS))]
    for rank, (output, (parts, _)) in enumerate(zip(attempt.outputs, attempt.case.inputs, strict=True)):
        for step in output["steps"]:
            if len(step["given"]) != len(order):
                continue
            pairs = zip(order, step["given"], strict=True)
            other = next((i for i, given in pairs if not torch.equal(given.flatten(), parts[i])), None)
            if other is not None:
                return (
                    f"The values are right, but rank {rank} gave an all-gather other numbers than its part of layer "
                    f"{other}: the weight came by another way."
                )
    return None


EXERCISE = Exercise(
    id="4.4",
    function="sharded_linear",
    title="the backward pass of a sharded layer",
    lesson="04B_fsdp",
    sitting="04B",
    difficulty=3,
    minutes=12,
    task="A linear layer on a sharded weight: gather again in backward, and reduce-scatter the weight's gradient.",
    cases=backward_cases,
    call=run_steps,
    judge=judge_backward,
    sizes=(4, 3, 2),
    allows=COLLECTIVES | {"barrier", "poll", "parallel.fsdp"},
    rules=(
        only(
            GATHERS,
            SCATTERS,
            frozenset({"all_reduce"}),
            enough="dist.all_gather_into_tensor and dist.reduce_scatter_tensor are enough",
        ),
    ),
    tags=("gradients",),
    raised=RAISED,
    verified="3(N-1)/N·Ψ sent a step, no whole weight kept between forward and backward",
    hints=(
        "ctx.save_for_backward(shard, x) costs nothing: both are there anyway. The whole weight is gathered again.",
        "grad is [batch, out]. The gradient of x is grad @ weight; that of the weight is grad.T @ x, [out, in].",
        "Flatten it, dist.reduce_scatter_tensor(own, flat) into own = torch.empty_like(shard), then own / world size.",
    ),
)
