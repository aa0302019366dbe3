"""Sliders for the tokens of two ranks: how much does one token count in the loss?"""

from __future__ import annotations

from picolib.course.figures.canvas import Figure
from picolib.course.figures.tokens import token_weights
from picolib.course.widgets.base import Explorer, explorer, slider

QUESTION = "How much more can a token of one rank count than one of the other, and what happens when a rank has none?"
MOST = 16


def token_explorer(counts: tuple[int, int] = (3, 9), question: str = QUESTION) -> Explorer:
    """Two ranks with 0 to 16 tokens each; see `token_weights`."""

    def draw(rank_0: int, rank_1: int) -> Figure:
        return token_weights([rank_0, rank_1])

    options = [(str(count), count) for count in range(MOST + 1)]
    controls = {
        f"rank_{rank}": slider(f"tokens, rank {rank}", options, count) for rank, count in enumerate(counts)
    }  # fmt: skip
    return explorer(question, token_weights(list(counts)), draw, controls)
