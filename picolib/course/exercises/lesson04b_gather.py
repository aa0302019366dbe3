"""Exercise 4.3: a forward pass over sharded layers; each is whole while it computes, and only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.course.exercise import COLLECTIVES, Case, Exercise
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04b_calls import (
    ENOUGH,
    WRONG_ROOM,
    calls_fault,
    gathers_fault,
    gathers_of,
    objects_fault,
    whole_at_once,
)
from picolib.course.exercises.lesson04b_layers import WIDTH, Layers, allowed, shards_of, whole_sizes, wholes_of
from picolib.course.exercises.lesson04b_refuse import GATHERS, no_ready_made_fsdp, only
from picolib.course.exercises.lesson04b_watch import Alive


def forward_cases(world_size: int, seed: int) -> list[Case]:
    """Four equal layers, then layers that differ."""
    random, made = generator(seed, world_size), []
    for kind, same in (("equal", True), ("different", False)):
        own = shards_of(world_size, seed, same)
        inputs = [torch.randn(WIDTH, generator=random).to(own[0][0].dtype) for _ in own]
        made.append(Case(kind, tuple(zip(own, inputs, strict=True)), None))
    return made


def run_forward(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: the learner's forward pass over layers that take notes."""
    shards, x = arguments
    sizes = whole_sizes(shards, dist.get_world_size())
    alive = Alive(allowed(sizes, [[i] for i in range(len(sizes))]))
    layers = Layers(len(shards), alive)
    functions = [lambda weight, x, i=i: layers.compute(i, weight, x) for i in range(len(shards))]
    before = [shard.clone() for shard in shards]
    with no_ready_made_fsdp(), alive:
        output = fn(shards, functions, x)
    kept = all(torch.equal(a, b) for a, b in zip(before, shards, strict=True))
    return {"output": output, "calls": layers.calls, "most": alive.most, "kept": kept, "given": alive.given,
            "ranks": dist.get_world_size()}  # fmt: skip


def judge_forward(attempt: Any) -> str | None:
    """Right weights in the order of the layers, one gather each, and one whole layer at a time."""
    wholes = wholes_of(attempt.inputs())
    for rank, record in enumerate(attempt.ranks):
        order = list(range(len(wholes)))
        text = calls_fault(attempt, rank, order, wholes) or _chain_fault(rank, record.output, attempt.inputs(1)[rank])
        text = text or gathers_fault(rank, record, order, wholes) or _peak_fault(rank, record.output, wholes)
        text = text or _ahead_fault(rank, record) or objects_fault(attempt, rank, wholes, 1)
        if text:
            return text
    return None


def _chain_fault(rank: int, output: dict, x: torch.Tensor) -> str | None:
    """Each layer's input is the output of the one before, and the last output is returned."""
    came = x
    for call in output["calls"]:
        if not torch.equal(call["x"], came):
            before = f"what layer {call['layer'] - 1} returned" if call["layer"] else "x"
            return f"rank {rank}: layer {call['layer']} was given something else than {before}."
        came = torch.tanh(came + call["weight"].reshape(-1, WIDTH).sum(0))
    returned = output["output"]
    if not isinstance(returned, torch.Tensor) or not torch.equal(returned, came):
        return f"rank {rank}: the layers computed right, but what you return is not the output of the last one."
    return None


def _peak_fault(rank: int, output: dict, wholes: Sequence[torch.Tensor]) -> str | None:
    """At no time more than the largest layer, and half a smallest for small change."""
    sizes = [whole.nbytes for whole in wholes]
    limit = allowed(sizes, [[i] for i in range(len(sizes))])
    if output["most"] <= limit:
        return None
    at_once = whole_at_once(output["most"], sizes)
    head = f"The values are right, but rank {rank} holds {at_once} layers whole at once, 1 is right. "
    first, last = output["calls"][0]["alive"], output["calls"][-1]["alive"]
    if first > limit and first >= last:
        if first <= 2 * max(sizes) + min(sizes) / 2:
            return head + (
                "When the first layer computes, its weight is there twice, or the next layer's is there: gather "
                "into one tensor, without cat, and when its turn comes."
            )
        return head + "All of them are gathered before the first one computes: gather a layer when its turn comes."
    if last > limit:
        return head + "What the layers before have used is never freed: keep no reference to it (a list, a dict)."
    return (
        head + "While a layer is gathered, the weight of the one before is still there: a name holds it, or the handle "
        "of an asynchronous gather does, until the name gets something else. del it first, and the handle too (or let "
        "a function's end do it)."
    )


def _ahead_fault(rank: int, record: Any) -> str | None:
    """A layer that was gathered before the one in front had computed, wherever its numbers were kept meanwhile."""
    ends = [at for at, e in enumerate(record.entries) if e[0] == "note" and e[1].startswith("end")]
    early = [k for k, (at, _) in enumerate(gathers_of(record)) if k and at < ends[k - 1]]
    if not early:
        return None
    return (
        f"The values are right, but rank {rank} gathers layer {early[0]} before layer {early[0] - 1} has computed: "
        "then both are there, in whatever form. Gather a layer when its turn comes."
    )


EXERCISE = Exercise(
    id="4.3",
    function="forward",
    title="gather one layer",
    lesson="04B_fsdp",
    sitting="04B",
    difficulty=2,
    minutes=8,
    task="A forward pass over sharded layers: each is whole while it computes, and only then.",
    cases=forward_cases,
    call=run_forward,
    judge=judge_forward,
    sizes=(4, 3, 2),
    allows=COLLECTIVES | {"barrier", "poll", "parallel.fsdp"},
    rules=(only(GATHERS, enough=ENOUGH),),
    raised=WRONG_ROOM,
    verified="each layer gathered once, at no time more than one whole layer in memory",
    hints=(
        "For each shard, layer: room for the whole weight, shard.new_empty(ranks * len(shard)); then gather into it.",
        "dist.all_gather_into_tensor(whole, shard), x = layer(whole, x). Which name still holds the weight afterwards?",
        "The next new_empty runs while `whole` is still the old weight: `del whole` at the end of the loop's body.",
    ),
)
