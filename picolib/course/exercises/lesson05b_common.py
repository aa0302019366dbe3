"""What the exercises of 05B share: groups that need not start at rank 0, and which pass called which collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from picolib.course.exercises.lesson05a_common import of_the_learner

LESSON = "05B_sequence"
GROUPS = {  # world size -> ways to divide it into groups; the first of the first is the one that a table shows
    4: [[[0, 1, 2, 3]], [[0, 2], [1, 3]]],
    3: [[[0, 1, 2]], [[0], [1, 2]]],
    5: [[[0, 3], [1, 2, 4]]],
}


def own_group(groups: Sequence[Sequence[int]]) -> Any:
    """In a rank: the process group that it is in. All ranks make all groups."""
    made = [dist.new_group(list(ranks)) for ranks in groups]
    return next(one for one, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)


def members(groups: Sequence[Sequence[int]], rank: int) -> list[int]:
    """The ranks of this rank's group."""
    return next(list(ranks) for ranks in groups if rank in ranks)


def who(groups: Sequence[Sequence[int]], rank: int) -> str:
    """ "rank 4", and where there are several groups: "rank 4 (number 2 of the group of ranks 1, 2, 4)"."""
    if len(groups) == 1:
        return f"rank {rank}"
    ranks = members(groups, rank)
    return f"rank {rank} (number {ranks.index(rank)} of the group of ranks {', '.join(map(str, ranks))})"


class Called(NamedTuple):
    """A collective of the learner's.

    numbers: elements of the output, of picolib's own (`picolibs`) elements of the input; of an all-reduce both are one.
    given: what this rank gave to an all-reduce.
    """

    name: str
    numbers: int
    given: list[float] | None
    picolibs: bool


def called(record: Any, label: str) -> list[list[Called]]:
    """For each note of this label the collectives between it and the next note."""
    found: list[list[Called]] = []
    inside = False
    for entry in of_the_learner(record).entries:
        if entry[0] == "note":
            inside = entry[1] == label
            found += [[]] if inside else []
        elif inside and entry[0] == "collective" and entry[1] != "barrier":
            found[-1].append(Called(entry[1], entry[2], entry[5], entry[3] is not None))
    return found
