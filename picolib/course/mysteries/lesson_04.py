"""Before 04A and 04B: the buckets of 03B, the step of 04A."""

from __future__ import annotations

import torch

from picolib.course.mysteries.pretended import model, step, two_steps
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question


def overlapped() -> None:
    """03B: buckets of two layers, behind the backward pass."""
    import picolib

    two_steps(picolib.DistributedDataParallel(model(), bucket_cap_mb=1.9))


def zero_1() -> None:
    """04A: reduce-scatter after backward, a step on the own share, all-gather."""
    import picolib

    module = model()
    optimizer = picolib.ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    two_steps(module, optimizer=optimizer)


MYSTERIES = (
    Mystery(
        "04A",
        4,
        overlapped,
        step,
        Question(
            "04A.mystery",
            "The same six layers. What has been done about the waiting?",
            (
                Answer("nothing: one all-reduce for each parameter", "there are three messages' worth, not six."),
                Answer("one bucket for everything", "then nothing could start before the last gradient."),
                Answer(
                    "buckets of two layers, started from hooks",
                    "three all-reduces, two of them behind the backward pass; only the last one is exposed.",
                    right=True,
                ),
            ),
        ),
    ),
    Mystery(
        "04B",
        4,
        zero_1,
        step,
        Question(
            "04B.mystery",
            "Nothing travels during forward and backward; afterwards two things do, of equal size. Which strategy?",
            (
                Answer(
                    "ZeRO-1",
                    "gradients are reduce-scattered, each rank steps its share, parameters are gathered: an all-reduce "
                    "in two halves, with the optimizer in between.",
                    right=True,
                ),
                Answer("data parallel, by hand", "one all-reduce, before the optimizer; nothing after it."),
                Answer("data parallel with accumulation", "that changes how often, not what travels."),
            ),
        ),
    ),
)
