"""Exercise 3.4: each bucket's all-reduce starts from a hook while the backward pass goes on.

What is judged is the order of three kinds of events on a rank, not a time: a gradient is there, an all-reduce starts,
an all-reduce has been waited for. (The backward passes themselves stand in `lesson03b_passes`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from picolib.course.exercise import COLLECTIVES, Case, Exercise
from picolib.course.exercises import gradients
from picolib.course.exercises.lesson03b_passes import BUCKETS, SHAPES, TIED, overlap_cases, steps_of
from picolib.course.exercises.rebuilt import rebuilt
from picolib.course.words import number_of

SIZES = [sum(torch.Size(SHAPES[name]).numel() for name in set(bucket)) for bucket in BUCKETS]
TIED_SIZE = torch.Size(SHAPES[TIED]).numel()
TOO_EARLY = (
    "A gradient of that bucket is not there yet. Four usual reasons: the hook is not registered with "
    "register_post_accumulate_grad_hook; the bucket counts fewer gradients than it has; it counts none, and takes the "
    "last of its list for the last to come (within a bucket they come in any order, and a tied weight comes last); or "
    "all hooks mean the last bucket: a function made in a loop looks the loop's variable up when it runs. Give it its "
    "own: def hook(p, number=number)."
)
COMPARED = "`p in once` compares tensors number by number. list(dict.fromkeys(bucket)) holds each parameter once."


class Moments(NamedTuple):
    """One step of one rank, as positions in its list of events."""

    gradient: dict[str, int]
    started: list[tuple[int, int]]  # position, elements
    waited: list[int]  # position of the wait for each of those; after everything where there was none
    again: int  # waits for all-reduces of earlier steps
    entries: list[list]  # of the all-reduces


def moments(entries: Sequence[list]) -> list[Moments]:
    """The steps of a rank, from its entries (see `notebook.Notebook`)."""
    begins = [i for i, e in enumerate(entries) if e[0] == "note" and e[1] == "step"] + [len(entries)]
    found = []
    for begin, end in zip(begins, begins[1:], strict=False):
        inside = list(enumerate(entries))[begin + 1 : end]
        started = [(i, e) for i, e in inside if e[0] == "collective" and e[1] == "all_reduce"]
        waits = {e[1]: i for i, e in reversed(inside) if e[0] == "wait"}  # the first wait for each is what holds it up
        before = {e[4] for e in entries[:begin] if e[0] == "collective"}
        found.append(
            Moments(
                {e[1]: i for i, e in inside if e[0] == "note"},
                [(i, e[2]) for i, e in started],
                [waits.get(e[4], end) if e[4] is not None else i for i, e in started],
                len(before & set(waits)),
                [e for _, e in started],
            )
        )
    return found


def judge_overlap(attempt: Any) -> str | None:
    """All steps right; each bucket's all-reduce starts with its last gradient and is not waited for before the end."""
    for rank, output in enumerate(attempt.outputs):
        if not isinstance(output, list):
            what = "None" if output == "NoneType" else f"{'an' if output[0] in 'aeiou' else 'a'} {output}"
            return f"rank {rank}: overlap returned {what}; it must return the function finish()."
    steps = [moments(record.entries) for record in attempt.ranks]
    for number in range(len(attempt.inputs()[0])):
        text = _step_fault(attempt, number, [rank[number] for rank in steps])
        if text:
            return _which_step(number) + text
    return None


def _which_step(number: int) -> str:
    if number == 0:
        return ""
    if number == 1:
        return "The first step is right; in the second, "
    return f"The first {number} steps are right; in the next, "


def ignores_all_reduce(attempt: Any) -> list[int]:
    """The ranks that hold the mean of a gradient, though the result of every all-reduce was changed."""
    first = replace(attempt.case, expected=tuple(right[0] for right in attempt.case.expected))
    return [
        rank for rank, steps in enumerate(attempt.outputs)
        if isinstance(steps, list) and gradients.some_right(first, rank, steps[0])
    ]  # fmt: skip


def _step_fault(attempt: Any, number: int, ranks: Sequence[Moments]) -> str | None:
    own = [arguments[0][number] for arguments in attempt.case.inputs]
    got = [output[number] for output in attempt.outputs]
    case = attempt.case if number == 0 else Case("float64", attempt.case.inputs, None)
    each = list(enumerate(zip(ranks, own, strict=True)))
    return (
        _never_started(ranks[0])
        or _again(ranks[0])
        or _at_every_hook(ranks[0], number)
        or gradients.fault(case, got, attempt.case.expected[0][number], own)
        or _sizes_fault(ranks[0])
        or next((text for rank, (one, _) in each if (text := _not_hidden(rank, one))), None)
        or next((text for rank, (one, g) in each if (text := gradients.not_its_own(rank, one.entries, g))), None)
    )


def _never_started(one: Moments) -> str | None:
    if len(one.started) >= len(BUCKETS):
        return None
    sizes = [elements for _, elements in one.started]
    if sizes in ([sum(SIZES)], [sum(SIZES) + TIED_SIZE]):
        return (
            "you made one all-reduce of everything. It can start only when the last gradient is there, so 0% is "
            f"hidden: make one for each of the {len(BUCKETS)} buckets."
        )
    missing = next(b for b, size in enumerate(SIZES) if size not in sizes)
    if len(sizes) == len(BUCKETS) - 1 and TIED in BUCKETS[missing]:
        return (
            f"bucket {missing} was never started: a tied weight stands in it twice, and its gradient comes once. "
            "Count each parameter once."
        )
    return (
        f"{number_of(len(sizes), 'all-reduce')} for {len(BUCKETS)} buckets: bucket {missing} was never started. "
        "Is what it still waits for counted anew in each step?"
    )


def _again(one: Moments) -> str | None:
    if not one.again:
        return None
    return (
        f"finish() waits for {number_of(one.again, 'all-reduce')} of the step before once more. Forget handles and "
        "flat tensors at the end of finish(): else the list grows with every step, and keeps their memory."
    )


def _at_every_hook(one: Moments, number: int) -> str | None:
    if number < 2 or len(one.started) <= len(BUCKETS):
        return None
    return (
        f"{number_of(len(one.started), 'all-reduce')} for {len(BUCKETS)} buckets. Before this step the gradients were "
        "zeroed in place, as zero_grad(set_to_none=False) does: then `p.grad is not None` is true all the time, and "
        "says nothing. Count the hooks that have been called."
    )


def _sizes_fault(one: Moments) -> str | None:
    sizes = [elements for _, elements in one.started]
    if sizes == SIZES:
        return None
    twice = [*SIZES[:-1], SIZES[-1] + TIED_SIZE]
    if sizes == twice:
        what = f"the tied weight travels twice: {twice[-1]} elements, where {SIZES[-1]} are right."
    else:
        what = f"{_listed(sizes)} elements were all-reduced; one all-reduce a bucket has {_listed(SIZES)}."
    return f"The gradients are right, but {what}"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _not_hidden(rank: int, one: Moments) -> str | None:
    """How much was under way while gradients were still to come: all buckets but the last can be."""
    last = max(one.gradient.values())
    early = [start < last for start, _ in one.started]
    hidden = [elements for (start, elements), wait in zip(one.started, one.waited, strict=True) if start < last < wait]
    head = f"The gradients are right, but {100 * sum(hidden) / sum(SIZES):.0f}% hidden: rank {rank} "
    if not any(early):
        return f"{head}starts all {len(SIZES)} all-reduces after the last gradient."
    if not hidden:
        return f"{head}waits in the hook, so that the backward pass waits with it. Wait in finish()."
    for number, bucket in enumerate(BUCKETS[:-1]):
        start, wait = one.started[number][0], one.waited[number]
        there = max(one.gradient[name] for name in bucket)
        later = [at for at in one.gradient.values() if there < at < start]
        if later:
            came = number_of(len(later), "gradient")
            return f"{head}starts bucket {number} {came} later than it could."
        if wait < last:
            return f"{head}waits for bucket {number} before the last gradient is there."
    return None


EXERCISE = Exercise(
    id="3.4",
    function="overlap",
    title="overlap with the backward pass",
    lesson="03B_ddp_fast",
    sitting="03B",
    difficulty=4,
    minutes=15,
    task="Start each bucket's all-reduce from a hook, when its last gradient is there; wait after backward.",
    cases=overlap_cases,
    call=steps_of,
    judge=judge_overlap,
    ignores=ignores_all_reduce,
    sizes=(4, 3, 2),
    allows=COLLECTIVES | {"barrier", "poll", "parallel.ddp"},
    rules=(gradients.only_all_reduce, rebuilt, gradients.in_own_dtype),
    tags=("gradients",),
    raised=(
        gradients.NO_VIEW,
        gradients.NO_PARAMETER,
        (r"'NoneType' object has no attribute", TOO_EARLY),
        (r"ambiguous|size of tensor a", COMPARED),
    ),
    verified="each bucket's all-reduce starts with its last gradient; none is waited for before backward is through",
    hints=(
        "p.register_post_accumulate_grad_hook(hook) calls hook(p) when p.grad is there. Was it the last of its bucket?",
        "Count down what a bucket still misses; list(dict.fromkeys(bucket)) has each parameter once, in order. At 0 "
        "start dist.all_reduce(flat, async_op=True), and keep its handle.",
        "finish(): for each handle wait, divide, copy back. Then forget the handles, and count anew in the next step.",
    ),
)
