"""Before 01A and 01B: the averaging of 00, the state that 01A counted."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from picolib.course.figures.canvas import Figure
from picolib.course.figures.memory import memory_bars
from picolib.course.mysteries.pretended import model, step, two_steps
from picolib.course.mystery import Kept, Mystery
from picolib.course.quiz import Answer, Question


def one_by_one() -> None:
    """00, exercise 0.3: after the backward pass, one gradient after the other."""
    from picolib import comm

    module = model()

    def average() -> None:
        for parameter in module.parameters():
            comm.all_reduce(parameter.grad, algorithm="direct")
            parameter.grad /= dist.get_world_size()

    two_steps(module, average)


def stage_2() -> dict[str, int]:
    """01A: ZeRO-2, a small Llama in float32 with AdamW; returns what this rank keeps."""
    from picolib.course.kept import state_kept
    from picolib.model import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    tokens = torch.arange(16).view(2, 8)
    return state_kept("ZeRO-2", LlamaForCausalLM(config), tokens, tokens)


def kept_by_each(ranks: list[dict[str, Any]], title: str) -> Figure:
    """A bar for each rank."""
    bars = {f"rank {rank}": parts for rank, parts in enumerate(ranks)}
    return memory_bars(bars, f"{title}: what each rank keeps for a model in float32", line=None)


MYSTERIES = (
    Mystery(
        "01A",
        4,
        one_by_one,
        step,
        Question(
            "01A.mystery",
            "Four ranks, a model of six layers with a weight each. What do they do after the backward pass?",
            (
                Answer("they average the loss", "one number: hardly to be seen. And the models would drift apart."),
                Answer("they average all gradients in one long vector", "then there was one piece of red, not six."),
                Answer(
                    "they average one gradient after the other",
                    "exercise 0.3: six parameters, six all-reduces, and all the while nobody computes.",
                    right=True,
                ),
            ),
        ),
    ),
    Kept(
        "01B",
        4,
        stage_2,
        kept_by_each,
        Question(
            "01B.mystery",
            "Parameters, gradients and AdamW's moments on four ranks, all in float32. Which of the four ways is it?",
            (
                Answer("DDP", "then gradients were as large as the parameters, and the moments twice as large."),
                Answer("ZeRO-1", "that shares out the moments alone: gradients were as large as the parameters."),
                Answer(
                    "ZeRO-2",
                    "gradients are a quarter of the parameters, and the moments a quarter of twice the parameters: "
                    "both are shared out, the parameters are whole.",
                    right=True,
                ),
                Answer("ZeRO-3", "then all three were shared out: parameters as small as gradients."),
            ),
        ),
    ),
)
