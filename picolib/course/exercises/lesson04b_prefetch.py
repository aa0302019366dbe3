"""Exercise 4.5: the next layer's all-gather is under way while a layer computes, in whatever order they come.

What is judged is the order of events on a rank, not a time: an all-gather starts, has been waited for, a layer begins
to compute, and ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.course.exercise import COLLECTIVES, Case, Exercise
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

NEXT = (
    "Is it i + 1? The layer after order[k] is order[k + 1], where there is one: in the backward pass that is not "
    "the one with the next number."
)
RAISED = (
    (
        r"'NoneType' object has no attribute 'wait'",
        "Without async_op=True a collective is over when it returns, and it returns None: there is no handle.",
    ),
    (
        r"cannot unpack non-iterable NoneType",
        f"Nothing is on its way for this layer. Does the loop go through `order` as it is, and does what starts a "
        f"gather return the weight and the handle? {NEXT}",
    ),
    (
        r"IndexError: (list|tuple) index out of range|KeyError: \d+",
        NEXT,
    ),
)
UNWAITED = (
    "Was it a gather that nobody needs? The next layer is the next one of `order`, which in the backward pass is not "
    "the one with the next number; and after the last one there is none."
)


def prefetch_cases(world_size: int, seed: int) -> list[Case]:
    """Equal layers forward, different ones backward, then in some other order."""
    made = []
    for kind, same in (("forward", True), ("backward", False), ("other", False)):
        own = shards_of(world_size, seed + len(made), same)
        order = list(range(len(own[0])))
        if kind == "backward":
            order.reverse()
        if kind == "other":
            random.Random(seed).shuffle(order)
        made.append(Case(kind, tuple((shards, order) for shards in own), None))
    return made


def run_prefetched(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: the learner's function, with a `compute` that takes notes."""
    shards, order = arguments
    alive = Alive(allowed(whole_sizes(shards, dist.get_world_size()), list(zip(order, order[1:], strict=False))))
    layers = Layers(len(shards), alive)
    before, x = [shard.clone() for shard in shards], torch.zeros(WIDTH, dtype=shards[0].dtype)

    def compute(number: Any, weight: Any) -> None:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(
                f"compute wants the number of a layer, then its weight; it was given {type(number).__name__}"
            )
        layers.compute(number, weight, x)

    with no_ready_made_fsdp(), alive:
        fn(shards, list(order), compute)
    kept = all(torch.equal(a, b) for a, b in zip(before, shards, strict=True))
    return {"calls": layers.calls, "most": alive.most, "kept": kept, "given": alive.given,
            "ranks": dist.get_world_size()}  # fmt: skip


def judge_prefetched(attempt: Any) -> str | None:
    """Right weights in the given order; the next gather starts before a layer computes, and is waited for after it."""
    wholes, order = wholes_of(attempt.inputs()), attempt.inputs(1)[0]
    for rank, record in enumerate(attempt.ranks):
        text = _direction_fault(rank, record, order, wholes) or calls_fault(attempt, rank, order, wholes)
        text = text or gathers_fault(rank, record, order, wholes) or _hidden_fault(rank, record, order, wholes)
        text = text or objects_fault(attempt, rank, wholes, 2)
        if text:
            return text
    return None


def _direction_fault(rank: int, record: Any, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """More gathers than layers, in an order that is not the one of the numbers: the wrong neighbour was fetched."""
    gathered = gathers_of(record)
    if len(gathered) <= len(wholes) or list(order) == sorted(order):
        return None
    return (
        f"The order is {', '.join(map(str, order))} here, and rank {rank} made {len(gathered)} all-gathers for "
        f"{len(wholes)} layers: some were fetched and not used. In the backward pass the next layer is not the one "
        "with the next number: look the next one up in `order`."
    )


class Moments:
    """The events of a rank in their order: positions of a layer's gather, wait, begin and end."""

    def __init__(self, record: Any, order: Sequence[int]) -> None:
        entries = record.entries
        gathers = [(at, entries[at]) for at, _ in gathers_of(record)]
        waits = {e[1]: at for at, e in reversed(list(enumerate(entries))) if e[0] == "wait"}
        notes = {e[1]: at for at, e in enumerate(entries) if e[0] == "note"}
        self.started = dict(zip(order, (at for at, _ in gathers), strict=True))
        self.waited = {i: waits.get(e[4], at) for i, (at, e) in zip(order, gathers, strict=True)}
        self.begin, self.end = ({i: notes[f"{what} {i}"] for i in order} for what in ("begin", "end"))


def _hidden_fault(rank: int, record: Any, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    moments = Moments(record, order)
    unwaited = next((i for i in order if moments.waited[i] > moments.begin[i]), None)
    if unwaited is not None:
        return (
            f"rank {rank} computed layer {unwaited} before it had waited for its all-gather: whether the weight was "
            "there by then is luck."
        )
    pairs = list(zip(order, order[1:], strict=False))
    early = [j for i, j in pairs if moments.started[j] < moments.begin[i]]
    hidden = [j for i, j in pairs if moments.started[j] < moments.begin[i] and moments.waited[j] > moments.end[i]]
    most = max(_under_way(moments, order, moments.begin[i]) for i in order)
    if most > 2:
        return (
            f"The values are right, but when a layer computes on rank {rank}, {most} layers are gathered or under way; "
            "2 are right: the one that computes, and the next. All at once is what sharding should save."
        )
    if len(hidden) < len(pairs):
        head = f"The values are right, but {100 * len(hidden) / len(pairs):.0f}% hidden: rank {rank} "
        if not early:
            return f"{head}starts each all-gather when its layer is to compute: start the next one's before that."
        if len(early) > len(hidden):
            return f"{head}waits for a layer's all-gather before the layer in front has computed. Wait later."
        return f"{head}starts some of the all-gathers ahead, and some too late."
    sizes = [whole.nbytes for whole in wholes]
    if record.output["most"] > allowed(sizes, pairs):
        at_once = whole_at_once(record.output["most"], sizes, 3)
        return (
            f"The values are right, but rank {rank} holds {at_once} layers whole at once; 2 are right: the one "
            "that computes, and the next. Free a weight when its layer has computed, before there is room for another."
        )
    return None


def _under_way(moments: Moments, order: Sequence[int], at: int) -> int:
    """Layers whose gather has started, and that have not computed yet."""
    return sum(moments.started[i] < at and moments.end[i] > at for i in order)


EXERCISE = Exercise(
    id="4.5",
    function="prefetched",
    title="fetch the next layer in time",
    lesson="04B_fsdp",
    sitting="04B",
    difficulty=3,
    minutes=10,
    task="Start the next layer's all-gather before a layer computes, and wait for it afterwards; in any order.",
    cases=prefetch_cases,
    call=run_prefetched,
    judge=judge_prefetched,
    sizes=(4, 3, 2),
    allows=COLLECTIVES | {"barrier", "poll", "parallel.fsdp"},
    rules=(only(GATHERS, enough=ENOUGH),),
    raised=(*RAISED, *WRONG_ROOM),
    unwaited=UNWAITED,
    verified="while a layer computes the next one is on its way, forward and backward, and never a third",
    hints=(
        "Two parts: start(i) makes room and calls comm.all_gather_into_tensor(..., async_op=True); later wait().",
        "Before the loop start the first of `order`. In it: wait for this one, start the next, compute, free.",
        "for k, i in enumerate(order): the next is order[k + 1], if there is one. Never i + 1.",
    ),
)
