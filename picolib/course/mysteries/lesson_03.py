"""Before 03A and 03B: the algorithm of 02B, the hooks of 03A."""

from __future__ import annotations

import torch

from picolib.course.mysteries.pretended import matrix, model, step, two_steps
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question


def doubling() -> None:
    """02B: recursive doubling of 3,200 bytes."""
    from picolib import comm

    comm.all_reduce(torch.ones(800), algorithm="recursive_doubling")


def hook_for_each() -> None:
    """03A: each gradient is averaged as soon as it is there, and backward waits for it."""
    from picolib import comm

    module = model()
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: comm.all_reduce(p.grad, algorithm="direct"))
    two_steps(module)


MYSTERIES = (
    Mystery(
        "03A",
        8,
        doubling,
        matrix,
        Question(
            "03A.mystery",
            "Eight ranks, 3,200 bytes each, all end with the sum. Which algorithm leaves such a pattern?",
            (
                Answer("a ring", "there each rank sends to its neighbour alone."),
                Answer(
                    "a binary tree", "there most ranks send up once and down to two; nobody sends to three as equals."
                ),
                Answer(
                    "recursive doubling",
                    "partners differ by one bit: 1, 2 and 4 away. Three messages of everything, log2(N) steps.",
                    right=True,
                ),
            ),
        ),
    ),
    Mystery(
        "03B",
        4,
        hook_for_each,
        step,
        Question(
            "03B.mystery",
            "Six layers, one step, four ranks. When did the gradients travel?",
            (
                Answer("all together, after the backward pass", "then the red would stand behind it, in one piece."),
                Answer(
                    "each when it was there, and the backward pass waited for it",
                    "six pieces of red inside backward: the hook of `wrap`, one for each parameter. Nothing is hidden.",
                    right=True,
                ),
                Answer("each when it was there, while the next layer computed", "then there were little red."),
            ),
        ),
    ),
)
