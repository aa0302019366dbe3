"""Exercises of sitting 03B: gradients in buckets, overlapped with backward, accumulated over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from picolib.course.exercise import COLLECTIVES, Case, Exercise
from picolib.course.exercises import gradients, lesson03b_accumulate, lesson03b_overlap
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson03a_refuse import no_ready_made_ddp
from picolib.course.exercises.rebuilt import note_calls_into, rebuilt

LESSON = "03B_ddp_fast"


# 3.3 ----------------------------------------------------------------------------------------------------------

SHAPES = {  # in the order of model.parameters(): the backward pass comes to the last one first
    "embedding.weight": (2, 3),
    "layers.0.weight": (6, 4),
    "layers.0.bias": (6,),
    "layers.1.weight": (5, 12),
    "layers.1.bias": (5,),
    "norm.weight": (3,),
    "norm.bias": (3,),
    "lm_head.bias": (7,),
}
COUNTS = [torch.Size(shape).numel() for shape in SHAPES.values()]
CAPS = {"digits": 80, "float32": 144, "bfloat16": 16}  # exactly full is the first bucket; the last; the second
CAP_BETWEEN = 10, 90  # elements of 4 bytes, in the last case
DTYPES = {"digits": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


EMPTY = "Where the last bucket is exactly full nothing is left, and nothing has to travel for it."
RULE = "A bucket is closed by the parameter with which it holds cap_bytes or more; the next one begins empty."


def bucket_cases(world_size: int, seed: int) -> list[Case]:
    """The gradients of a small model, and how many bytes fill a bucket; at last, as many as nobody can know."""
    random, made = generator(seed, world_size), []
    unknown = 4 * int(torch.randint(*CAP_BETWEEN, (), generator=random))
    for kind, cap in [*CAPS.items(), ("float32", unknown)]:
        own = [gradients.given(SHAPES, rank, kind, random, DTYPES[kind]) for rank in range(world_size)]
        made.append(Case(kind, tuple((g, cap) for g in own), (gradients.mean(own),) * world_size))
    return made


def with_gradients(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: parameters that have these gradients; what they are after the learner's function.

    From the second case on matrices are not contiguous: in the first, other mistakes are spoken of.
    """
    own, cap = arguments
    stored = torch.Tensor.clone if next(iter(own.values())).dtype == DTYPES["digits"] else gradients.stored_by_columns
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in own.values()]
    for parameter, gradient in zip(parameters, own.values(), strict=True):
        parameter.grad = stored(gradient)
    with no_ready_made_ddp(), note_calls_into("picolib.parallel"):
        fn(parameters, cap)
    return dict(zip(own, (p.grad for p in parameters), strict=True))


def filled(counts: Sequence[int], size: int, cap: float) -> list[int]:
    """Elements of each bucket: one is closed as soon as it holds `cap` bytes or more."""
    buckets = [0]
    for count in counts:
        if buckets[-1] * size >= cap:
            buckets.append(0)
        buckets[-1] += count
    return buckets


def _never_counted_anew(counts: Sequence[int], size: int, cap: float) -> list[int]:
    """A mistake: the bytes of one bucket still count for the next, so that each parameter fills it."""
    first, *_ = filled(counts, size, cap)
    later = list(accumulate(counts)).index(first) + 1
    return [first, *counts[later:]]


def _never_above(counts: Sequence[int], size: int, cap: float) -> list[int]:
    """Another rule, which is not asked for: closed before it would hold more than `cap`."""
    buckets = [0]
    for count in counts:
        if buckets[-1] and (buckets[-1] + count) * size > cap:
            buckets.append(0)
        buckets[-1] += count
    return buckets


def judge_buckets(attempt: Any) -> str | None:
    """The mean on every rank, by all-reduces of the right sizes in the right order."""
    own = [arguments[0] for arguments in attempt.case.inputs]
    cap = attempt.case.inputs[0][1]
    backwards, size = COUNTS[::-1], DTYPES[attempt.case.kind].itemsize
    right = filled(backwards, size, cap)
    sizes = [[c[1] for c in record.collectives if c[0] == "all_reduce"] for record in attempt.ranks]
    wrong = gradients.fault(attempt.case, attempt.outputs, attempt.case.expected[0], own)
    if wrong:
        dropped = sizes[0] == right[:-1] and "still has its own" in wrong
        lost = gradients.COPIED if sizes[0] == right and gradients.lost_in_a_copy(attempt.outputs, own) else ""
        return wrong + (" The last bucket may never be full: it has to travel all the same." if dropped else lost)
    for rank, sent in enumerate(sizes):
        if sent != right:
            return f"The gradients are right, but {_sizes_fault(rank, sent, right, size, cap)}"
    given = enumerate(zip((record.reductions for record in attempt.ranks), own, strict=True))
    return next((text for rank, one in given if (text := gradients.not_its_own(rank, *one))), None)


def ignores_buckets(attempt: Any) -> list[int]:
    """The ranks that hold the mean of a gradient, though the result of every all-reduce was changed."""
    return [rank for rank, got in enumerate(attempt.outputs) if gradients.some_right(attempt.case, rank, got)]


def _sizes_fault(rank: int, sent: list[int], right: list[int], size: int, cap: float) -> str:
    all_reduced = ", ".join(map(str, sent)) or "nothing"
    head = f"rank {rank} all-reduced {all_reduced} elements, where {', '.join(map(str, right))} are right. "
    if sent == [*right, 0]:
        return head + EMPTY
    if 0 in sent:
        return head + "One of the buckets is empty: nothing has to travel for it."
    if sum(sent) > sum(COUNTS):
        return (
            f"{head}All gradients together are {sum(COUNTS)} elements: some travel twice. After a closed bucket "
            "begin an empty one."
        )
    guesses = (
        (COUNTS[::-1], "That is one all-reduce a parameter: nothing is put together."),
        (COUNTS, "That is one all-reduce a parameter: nothing is put together."),
        (
            filled(COUNTS, size, cap),
            "They were filled in forward order: the backward pass comes to the last parameter first.",
        ),
        (
            right[::-1],
            "That is the order of forward: the bucket with the last parameters is complete first, so it goes first.",
        ),
        (
            filled(COUNTS[::-1], 1, cap),
            f"You count elements; the cap is in bytes, {size} an element: p.grad.element_size().",
        ),
        (
            filled(COUNTS[::-1], size, cap + 1),
            f"With exactly cap_bytes ({cap}) a bucket is closed, too: close it at cap_bytes or more.",
        ),
        (
            _never_counted_anew(COUNTS[::-1], size, cap),
            "After the first bucket each parameter has one of its own: a new bucket begins with 0 bytes.",
        ),
        (
            _never_above(COUNTS[::-1], size, cap),
            "A bucket is closed when it holds cap_bytes or more, not before it would.",
        ),
        ([sum(COUNTS)], f"That is one all-reduce of everything; a bucket is closed when it holds {cap} bytes or more."),
    )
    return head + next((text for wrong, text in guesses if sent == list(wrong)), RULE)


EXERCISES = (
    Exercise(
        id="3.3",
        function="average_in_buckets",
        title="gradients in buckets",
        lesson=LESSON,
        sitting="03B",
        difficulty=2,
        minutes=10,
        task="Average gradients with one all-reduce a bucket: filled from the last parameter on, closed at cap_bytes.",
        cases=bucket_cases,
        call=with_gradients,
        judge=judge_buckets,
        sizes=(4, 3, 2),
        allows=COLLECTIVES | {"barrier", "parallel.ddp"},
        ignores=ignores_buckets,
        rules=(gradients.only_all_reduce, rebuilt, gradients.in_own_dtype),
        tags=("gradients",),
        raised=(
            (r"non-empty list of Tensors", f"A bucket has no parameter in it. {EMPTY} Leave it out."),
            gradients.NO_VIEW,
            gradients.NO_PARAMETER,
        ),
        verified="4 all-reduces of 10, 68, 30 and 6 elements for 8 parameters and a cap of 80 bytes",
        hints=(
            "Go through reversed(parameters); collect them until they hold cap_bytes. And what is left at the end?",
            "torch.cat([p.grad.flatten() for p in bucket]) is one tensor; a tensor has numel() * element_size() bytes.",
            "Then flat.split([p.numel() for p in bucket]) gives the parts; p.grad.copy_(part.view_as(p)).",
        ),
    ),
    lesson03b_overlap.EXERCISE,
    lesson03b_accumulate.EXERCISE,
)
