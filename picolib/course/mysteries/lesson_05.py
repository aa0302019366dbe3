"""Before 05A: the gathered layers of 04B."""

from __future__ import annotations

from picolib.course.mysteries.pretended import model, step, two_steps
from picolib.course.mystery import Mystery
from picolib.course.quiz import Answer, Question


def sharded() -> None:
    """04B: each layer gathered before its forward and its backward, its gradients reduce-scattered."""
    import picolib

    module = model()
    for layer in module:
        picolib.fully_shard(layer)
    two_steps(picolib.fully_shard(module))


MYSTERIES = (
    Mystery(
        "05A",
        4,
        sharded,
        step,
        Question(
            "05A.mystery",
            "Now something travels in forward, too. Which strategy is it?",
            (
                Answer("ZeRO-2", "that has whole parameters on every rank: its forward pass needs nobody."),
                Answer(
                    "FSDP",
                    "each layer is gathered before its forward and again before its backward, and its gradients are "
                    "reduce-scattered behind the next one's.",
                    right=True,
                ),
                Answer("data parallel with buffers", "buffers are small, and travel once before forward."),
            ),
        ),
    ),
)
