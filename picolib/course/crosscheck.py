"""Whether what ranks say of their messages fits together, and whether what arrives is used.

The observer shares a process with the learner's code, so a count may be falsified, and a message with the right digits
may be a dummy while the numbers travel by another way. Against both:

- what a sender notes (bytes and checksum of each message to a rank) must be what that rank notes of what came;
- in one random case each number of every message is changed on its way: an output that is right all the same, where
  it holds what only others had, was not made of the messages;
- where all-reduces are what an exercise is about, the results of all of them are changed in one case: an output that is
  right all the same was not made of them;
- the store, in which ranks find each other, may not be used at all.

What remains undetected, as a check is made for honest mistakes and casual fakes:

- code that takes the observer apart, alike on both ends of a message, or calls the backend below torch's own classes;
- a function that knows the tampered case (it counts its calls) and uses the messages in that one only;
- messages that are used in part: numbers that could have been read from them, but came by another way, beside
  others that were read;
- the same of all-reduces, and all that comes by files, sockets or shared memory and is then all-reduced.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from picolib.course import values
from picolib.course.exercise import Case, Exercise
from picolib.course.words import number_of, ranks_text


def tampered(exercise: Exercise, cases: Sequence[Case]) -> list[Case]:
    """The last case of floats once more, with its messages changed on their way; none where nothing is sent."""
    floats = [case for case in cases if case.kind in ("float32", "rounds")]
    if exercise.traffic is None or not floats or cases[0].world_size == 1:
        return []
    inputs = copy.deepcopy(floats[-1].inputs)  # a tensor changed in place must not be the other case's too
    return [replace(floats[-1], kind="tampered", tampered="messages", inputs=inputs)]


def reduced_otherwise(exercise: Exercise, cases: Sequence[Case]) -> list[Case]:
    """The first case once more, for a run of its own, with the result of each all-reduce changed; see `ignored`."""
    if exercise.ignores is None or cases[0].world_size == 1:
        return []
    return [replace(cases[0], tampered="all-reduces", inputs=copy.deepcopy(cases[0].inputs))]


def ignored(attempt: Any) -> str | None:
    """Ranks that hold the right numbers, though the results of all their all-reduces were changed."""
    ignoring = attempt.exercise.ignores(attempt)
    if not ignoring:
        return None
    called = {name for record in attempt.ranks for name, *_ in record.collectives}
    what = "reduce-scatters" if any(name.startswith("reduce_scatter") for name in called) else "all-reduces"
    what = what if "all_reduce" in called or what == "reduce-scatters" else "collectives"
    return (
        f"The values are right, but {ranks_text(ignoring)} {'does' if len(ignoring) == 1 else 'do'} not need the "
        f"{what} for them: with other numbers in every result they stay the same. What a rank ends with has to be "
        f"made of what the {what} leave."
    )


def unused(attempt: Any) -> str | None:
    """Ranks of a tampered case that hold the right numbers of others, though all that reached them was changed."""
    ignoring = [rank for rank in range(attempt.world_size) if _ignores(attempt, rank)]
    if not ignoring:
        return None
    return (
        f"The values are right, but {ranks_text(ignoring)} {'does' if len(ignoring) == 1 else 'do'} not need the "
        "messages for them: with other numbers in every message the result stays the same. What a rank ends with "
        "has to be made of what arrives."
    )


def _ignores(attempt: Any, rank: int) -> bool:
    got, expected, own = attempt.outputs[rank], attempt.case.expected[rank], attempt.inputs()[rank]
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    of_others = ~torch.isin(expected, own)
    right = (got.double() - expected.double()).abs() <= values.tolerance(attempt.case, expected)
    return bool((right & of_others).any())


def disagreement(attempt: Any) -> str | None:
    """The first pair of ranks of which one says that it sent what the other says it never got, or the other way."""
    n = attempt.world_size
    for source in range(n):
        for target in range(n):
            sent = [(s[2], s[6]) for s in attempt.ranks[source].sends if s[1] == target]
            came = [(r[2], r[6]) for r in attempt.ranks[target].receives if r[1] == source]
            if Counter(sent) != Counter(came):
                return _differ(source, target, sent, came)
    return None


def _differ(source: int, target: int, sent: list[tuple], came: list[tuple]) -> str:
    sizes = [(len(many), sum(nbytes for nbytes, _ in many)) for many in (sent, came)]
    if sizes[0] == sizes[1]:
        return (
            f"rank {source} sent other numbers to rank {target} than rank {target} received: "
            "the notes on the two ends of a message do not fit together."
        )
    said, got = (f"{number_of(count, 'message')} of {number_of(nbytes, 'byte')} in all" for count, nbytes in sizes)
    return (
        f"rank {source} sent rank {target} {said}, and rank {target} received {got} from it: every message needs "
        "one send and one receive."
    )
