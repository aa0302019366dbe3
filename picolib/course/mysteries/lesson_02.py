"""Before 02B: the ring of 02A."""

from __future__ import annotations

import torch

from picolib.course.mysteries.pretended import matrix
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question


def ring() -> None:
    """02A: a ring all-reduce of 4,000 bytes."""
    from picolib import comm

    comm.all_reduce(torch.ones(1000), algorithm="ring")


MYSTERIES = (
    Mystery(
        "02B",
        4,
        ring,
        matrix,
        Question(
            "02B.mystery",
            "Each of four ranks holds 4,000 bytes, and at the end each has the sum. How was it done?",
            (
                Answer("everybody sends to rank 0, which sends the sum to all", "then row 0 and column 0 were full."),
                Answer(
                    "around the ring",
                    "each rank sends to one neighbour only, 2(N-1)/N times its 4,000 bytes, in six messages.",
                    right=True,
                ),
                Answer("everybody sends everything to everybody", "then every cell off the diagonal held 4,000 bytes."),
            ),
        ),
    ),
)
