"""Exercises of sitting 02A: messages, the pictures of the collectives, the ring in two halves.

How the pictures and the ring are tried and judged stands in files of their own: `lesson02a_names` and `_ring`.
"""

from __future__ import annotations

from typing import Any

import torch

from picolib.course.ended import is_to_itself
from picolib.course.exercise import Case, Exercise, Traffic
from picolib.course.exercises.data import all_reduced, nbytes, reduce_scattered, vectors
from picolib.course.exercises.lesson02a_names import judge_names, name_cases
from picolib.course.exercises.lesson02a_ring import (
    added_while_gathering,
    gathered_a_partial_chunk,
    gathers_leftward,
    half_ring_traffic,
    leftward_script,
    reduce_scatter_script,
    right_of,
    rightward_script,
    ring_traffic,
    sent_own_again,
)

LESSON = "02A_messages_and_ring"
WRAPS = "In a ring the number wraps around: (rank + 1) % N, (rank - 1) % N."
RING_HINTS = (
    "Which chunk does rank r hold completely after N-1 steps of the first half? That one it may pass on.",
    "In the second half nothing is added any more: what arrives takes the place of what was there.",
    "To the left: send chunk (r + step) % N to rank r-1, receive chunk (r + 1 + step) % N from rank r+1.",
)


def from_the_left(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds when everybody has passed its tensor to the right."""
    return [tensors[rank - 1] for rank in range(len(tensors))]


def alone(attempt: Any, text: str) -> str | None:
    """On one rank the modulo leads back to oneself."""
    if attempt.world_size > 1 or not is_to_itself(text):
        return None
    return "On one rank there is no neighbour: return a copy of x there, and send nothing."


def pass_traffic(case_: Case, rank: int) -> Traffic:
    """One message to the right; alone, none."""
    n = case_.world_size
    return Traffic(0, 0, frozenset()) if n == 1 else Traffic(1, nbytes(case_.inputs[rank][0]), right_of(rank, n))


EXERCISES = (
    Exercise(
        id="2.1",
        function="pass_right",
        title="pass it to the right",
        lesson=LESSON,
        sitting="02A",
        difficulty=1,
        minutes=5,
        task="Send your tensor to the right neighbour, return what comes from the left; alone, return a copy.",
        cases=vectors(from_the_left, 0, pieces=False, many=100, exact=True),
        keeps="x",
        traffic=pass_traffic,
        circle="If every rank receives first (or sends first, and waits), nobody gets to its second call.",
        ended=alone,
        beyond=WRAPS,
        formula="S",
        verified="one message a rank, to the right neighbour; none on 1 rank",
        hints=(
            "The ring closes: the right neighbour of the last rank is rank 0. Which operator does that?",
            "If all ranks receive first, nobody ever sends. Start the send without waiting (isend), then receive.",
            "request = dist.isend(x, right); dist.recv(y, left); request.wait(). And N = 1 has no neighbour.",
        ),
    ),
    Exercise(
        id="2.2",
        function="name_the_collectives",
        title="name it",
        lesson=LESSON,
        sitting="02A",
        difficulty=1,
        minutes=3,
        task="Four pictures, before and after, on four ranks: return the collective's name for A, B, C and D.",
        cases=name_cases,
        judge=judge_names,
        sizes=(1,),
        verified="A, B, C and D have their names",
        hints=(
            "Ask two questions of a picture: was something added? Does every rank end with the same?",
            "The same everywhere: all_reduce if added, all_gather if not. Different on each: the other two.",
            "Reduce-scatter adds and leaves each rank one chunk; all-to-all transposes and adds nothing.",
        ),
    ),
    Exercise(
        id="2.3",
        function="ring_reduce_scatter",
        title="ring reduce-scatter",
        lesson=LESSON,
        sitting="02A",
        difficulty=3,
        minutes=12,
        task="x has N chunks; pass partial sums around the ring to the right; return chunk r of the sum on rank r.",
        cases=vectors(reduce_scattered, 1),
        keeps="x",
        traffic=half_ring_traffic,
        beyond=WRAPS,
        formula="(N-1)/N·S",
        script=reduce_scatter_script,
        rules=(sent_own_again,),
        verified="{bytes} bytes per rank = (N-1)/N·S; N-1 = {messages} messages, all to the right neighbour",
        hints=(
            "A chunk must visit every rank once. If chunk r is to end on rank r, on which rank does its journey start?",
            "Rank r sends chunk r-1 first. It adds its share to each chunk that arrives; that one it sends next.",
            "Step s of N-1: send chunk (r - 1 - s) % N to the right, receive chunk (r - 2 - s) % N, add it.",
        ),
    ),
    Exercise(
        id="2.4",
        function="ring_all_reduce",
        title="gather to the left, and all-reduce",
        lesson=LESSON,
        sitting="02A",
        difficulty=3,
        minutes=10,
        task="Sum x over all ranks, in place: your reduce-scatter to the right, then an all-gather to the left.",
        cases=vectors(all_reduced, 1),
        output="argument",
        traffic=ring_traffic,
        formula="2(N-1)/N·S",
        script=leftward_script,
        beyond=WRAPS,
        rules=(added_while_gathering, gathered_a_partial_chunk, gathers_leftward),
        same_bits=True,
        verified="{bytes} bytes per rank = 2(N-1)/N·S; {messages} steps; the same bits on every rank",
        hints=RING_HINTS,
    ),
    Exercise(
        id="2.5",
        function="mended_all_reduce",
        title="find the bug: the missing rank",
        lesson=LESSON,
        sitting="02A",
        difficulty=2,
        minutes=10,
        task="This ring all-reduce runs and is wrong: one rank is missing from the sum. Find the line, mend it.",
        cases=vectors(all_reduced, 1),
        output="argument",
        traffic=ring_traffic,
        formula="2(N-1)/N·S",
        script=rightward_script,
        beyond=WRAPS,
        rules=(added_while_gathering,),
        same_bits=True,
        stretch=True,
        verified="{bytes} bytes per rank = 2(N-1)/N·S; nobody is missing",
        hints=(
            "Run it with digits: rank r contributes 10^r. Which digit of the result is 0?",
            "Follow one chunk: it leaves one rank, and every rank it comes to has to add its own share.",
            "In the first half, look at what happens to what arrives, step by step. Is the first step like the others?",
        ),
    ),
)
