"""Before 02A and 02B: the accumulation of 01B with the average of 00, the ring of 02A."""

from __future__ import annotations

import torch

from picolib.course.mysteries.pretended import matrix, model, step, two_steps
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question


def accumulated() -> None:
    """01B and 00: four micro-batches, then all gradients averaged at once."""
    from picolib import comm

    module = model()
    two_steps(module, lambda: comm.all_reduce(all_gradients(module), algorithm="direct"), micro_batches=4)


def all_gradients(module: torch.nn.Module) -> torch.Tensor:
    """In one long vector."""
    return torch.cat([parameter.grad for parameter in module.parameters()])


def ring() -> None:
    """02A: a ring all-reduce of 4,000 bytes."""
    from picolib import comm

    comm.all_reduce(torch.ones(1000), algorithm="ring")


MYSTERIES = (
    Mystery(
        "02A",
        4,
        accumulated,
        step,
        Question(
            "02A.mystery",
            "Four times forward and backward, and then something travels. What is it?",
            (
                Answer(
                    "four training steps: one average is enough for all",
                    "each step would end with its optimizer; after the first the models would differ for good.",
                ),
                Answer(
                    "accumulation: four micro-batches, one average",
                    "each backward pass adds to `.grad` (01B), and only the sum travels (00): one exchange in place of "
                    "four.",
                    right=True,
                ),
                Answer("recomputation", "a layer that runs again does so inside the backward pass; this runs four."),
            ),
        ),
    ),
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
