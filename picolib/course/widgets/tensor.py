"""Sliders for model, tokens and ranks: on which link can a layer be split over several ranks?"""

from __future__ import annotations

from picolib.course.figures.canvas import Figure
from picolib.course.figures.tensor_share import BLOCKS, tensor_share
from picolib.course.widgets.base import Explorer, choice, explorer, slider

QUESTION = "A larger model, more tokens, fewer ranks: which of the three makes the waiting a smaller part of the time?"
TOKENS = (1, 64, 1024, 4096, 8192, 32768)
RANKS = (2, 4, 8, 16)
STATIC = (2, 8)


def tensor_explorer(model: str = "Llama 3 8B", tokens: int = 8192, question: str = QUESTION) -> Explorer:
    """A layer under tensor parallelism on NVLink, PCIe and a network, by formula. Static: 2 and 8 ranks."""
    blocks = {block.name: block for block in BLOCKS}

    def draw(name: str, tokens: int, ranks: int) -> Figure:
        return tensor_share(blocks[name], tokens, [ranks])

    controls = {
        "name": choice("model", list(blocks), model),
        "tokens": slider("tokens b·s", [(f"{t:,}", t) for t in sorted({*TOKENS, tokens})], tokens),
        "ranks": slider("ranks t", [(f"{n}", n) for n in RANKS], 8),
    }
    return explorer(question, tensor_share(blocks[model], tokens, STATIC), draw, controls)
