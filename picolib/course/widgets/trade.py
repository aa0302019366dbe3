"""Sliders for tokens, bandwidth and ranks: when does FSDP cost time that DDP does not, and when is there no choice?"""

from __future__ import annotations

from picolib.course.figures.canvas import Figure
from picolib.course.figures.sharding_trade import MODELS, sharding_trade
from picolib.course.widgets.base import Explorer, choice, explorer, slider

QUESTION = "At 25 GB/s, how many tokens must a rank have until FSDP is as fast as DDP? Does the model's size matter?"
TOKENS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
SPEEDS = (1, 5, 12.5, 25, 50, 100, 400)  # GB/s
RANKS = (2, 4, 8, 16, 64, 256)
STATIC = (2048, 8192, 32768)


def trade_explorer(
    model: str = "Llama 3.2 1B", ranks: int = 8, gigabytes_per_second: float = 25, question: str = QUESTION
) -> Explorer:
    """A step of DDP and of FSDP by formula. Static: few tokens a rank, more, many."""
    models = {one.name: one for one in MODELS}

    def draw(name: str, tokens: int, speed: float, ranks: int) -> Figure:
        return sharding_trade(models[name], ranks, [tokens], speed * 1e9)

    controls = {
        "name": choice("model", list(models), model),
        "tokens": slider("tokens a rank", [(f"{t:,}", t) for t in TOKENS], TOKENS[1]),
        "speed": slider(
            "bandwidth", [(f"{s:g} GB/s", s) for s in sorted({*SPEEDS, gigabytes_per_second})], gigabytes_per_second
        ),
        "ranks": slider("ranks N", [(f"{n}", n) for n in sorted({*RANKS, ranks})], ranks),
    }
    picture = sharding_trade(models[model], ranks, STATIC, gigabytes_per_second * 1e9)
    return explorer(question, picture, draw, controls)
