"""Exercise 2.2: four pictures of collectives, before and after, and which collective each of them is."""

from __future__ import annotations

import re
from typing import Any

from picolib.course import values
from picolib.course.exercise import Case

# Four ranks before and after, a row a rank: what each holds, chunk by chunk. Letters are ranks, numbers are chunks;
# "1111" is a sum over all four ranks.
PICTURES: dict[str, dict[str, Any]] = {
    "A": {
        "collective": "reduce_scatter",
        "before": [[f"{r}{c}" for c in range(4)] for r in "abcd"],
        "after": [[f"sum {c}"] for c in range(4)],
    },
    "B": {
        "collective": "all_gather",
        "before": [[r] for r in "abcd"],
        "after": [list("abcd")] * 4,
    },
    "C": {
        "collective": "all_to_all",
        "before": [[f"{r}{c}" for c in range(4)] for r in "abcd"],
        "after": [[f"{r}{c}" for r in "abcd"] for c in range(4)],
    },
    "D": {
        "collective": "all_reduce",
        "before": [[f"{r}{c}" for c in range(4)] for r in "abcd"],
        "after": [[f"sum {c}" for c in range(4)]] * 4,
    },
}
LEAVES = {
    "broadcast": "what one rank had, on all ranks",
    "scatter": "a different chunk of one rank's on each rank",
    "gather": "everybody's on one rank, nothing on the others",
    "reduce": "the sum on one rank only",
    "all_reduce": "the whole sum on every rank",
    "all_gather": "everybody's own, side by side, on every rank",
    "reduce_scatter": "one chunk of the sum on each rank",
    "all_to_all": "chunk r of everybody on rank r, nothing added",
}


def name_cases(world_size: int, seed: int) -> list[Case]:
    """No input: the pictures are the question."""
    return [Case("names", ((),), None)]


def judge_names(attempt: Any) -> str | None:
    """Each picture has its collective's name; a wrong one is told what it would leave instead."""
    named = attempt.outputs[0]
    if not isinstance(named, dict) or not set(PICTURES) & set(named):
        return 'return a dictionary with a name for each picture, such as {"A": "broadcast", ...}.'
    for letter, picture in PICTURES.items():
        said = named.get(letter)
        if said is None or said == "" or values.shown(said) == "an ellipsis":
            return f"picture {letter} has no name yet."
        plain = re.sub("_(into_tensor|tensor|single)$", "", str(said).replace("-", "_").replace(" ", "_").lower())
        if plain not in LEAVES:
            return f"picture {letter}: {values.shown(said)} is none of {', '.join(LEAVES)}."
        if plain != picture["collective"]:
            return f"picture {letter} is not {said}: that would leave {LEAVES[plain]}."
    return None
