"""Sliders for model, tokens and overlap: how fast must a link be for tensor parallelism over t ranks?"""

from __future__ import annotations

from picolib.course.figures.canvas import Figure
from picolib.course.figures.link_speed import link_speed
from picolib.course.figures.tensor_share import BLOCKS
from picolib.course.widgets.base import Explorer, choice, explorer, slider
from picolib.course.widgets.tensor import TOKENS

QUESTION = "Which of the three moves the lines far: another model, more tokens, overlap?"
RANKS = (2, 4, 8, 16)
OVERLAP = {"nothing is hidden": False, "all that can be": True}


def link_explorer(model: str = "Llama 3 8B", tokens: int = 8192, question: str = QUESTION) -> Explorer:
    """The part of its time that a layer waits, against the link's bandwidth, for 2 to 16 ranks, by formula.

    Static, and where the sliders begin: nothing is hidden. Overlap hides in each pass what that has to compute.
    """
    blocks = {block.name: block for block in BLOCKS}

    def draw(name: str, tokens: int, overlap: str) -> Figure:
        return link_speed(blocks[name], tokens, RANKS, OVERLAP[overlap])

    controls = {
        "name": choice("model", list(blocks), model),
        "tokens": slider("tokens b·s", [(f"{t:,}", t) for t in sorted({*TOKENS, tokens})], tokens),
        "overlap": choice("overlap", list(OVERLAP), "nothing is hidden"),
    }
    return explorer(question, link_speed(blocks[model], tokens, RANKS), draw, controls)
