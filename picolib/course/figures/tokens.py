"""How much each token counts in the loss of a batch: by the mean of the ranks' means, and by the one loss rule."""

from __future__ import annotations

from collections.abc import Sequence

from picolib.course.figures.canvas import Figure
from picolib.course.style import ACCENT, EMPTY, GOOD, INK, LARGE, PAPER, SMALL, TITLE, WIDTH, rank_color

LEFT, HEIGHT = 20, 34
LENGTH = WIDTH - 2 * LEFT


def weights(counts: Sequence[int]) -> tuple[list[str], list[str]]:
    """What one token of each rank weighs, by the mean of means and by the one rule ("1/6", "-" where there is none).

    >>> weights([3, 9])
    (['1/6', '1/18'], ['1/12', '1/12'])
    """
    means = [f"1/{len(counts) * count}" if count else "-" for count in counts]
    return means, [f"1/{sum(counts)}" if count else "-" for count in counts]


def token_weights(counts: Sequence[int]) -> Figure:
    """A box for each token, as wide as its share of the loss; counts: tokens of each rank."""
    means, rule = weights(counts)
    listed = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
    told = "nan" if 0 in counts else ", ".join(f"{w} on rank {r}" for r, w in enumerate(means))
    same = rule[counts.index(max(counts))] if any(counts) else "nothing"
    figure = Figure(252, f"Tokens: {listed}. By the mean of means a token counts {told}; by the one rule {same}.")
    figure.text(LEFT, 28, f"What a token counts, with {' and '.join(map(str, counts))} tokens", size=TITLE, bold=True)
    figure.text(LEFT, 64, "mean of the ranks' means", size=LARGE, color=ACCENT)
    if 0 in counts:
        _nothing(figure, 82, f"nan: rank {counts.index(0)} takes the mean of no tokens, and averaging spreads it")
    else:
        _row(figure, 82, counts, [1 / len(counts)] * len(counts), means)
    figure.text(LEFT, 160, "one rule: the sum over all tokens, divided by their number", size=LARGE, color=GOOD)
    if any(counts):
        _row(figure, 178, counts, [count / sum(counts) for count in counts], rule)
    else:
        _nothing(figure, 178, "no tokens at all: every rank skips the step")
    return figure


def _row(figure: Figure, y: float, counts: Sequence[int], shares: Sequence[float], each: Sequence[str]) -> None:
    x = float(LEFT)
    for rank, (count, share) in enumerate(zip(counts, shares, strict=True)):
        width = share * LENGTH
        boxes = [(x + i * width / count, y, width / count, HEIGHT) for i in range(count)]
        figure.blocks(boxes, fill=rank_color(rank), stroke=PAPER, stroke_width=2)
        if count:
            text = f"rank {rank}: each {each[rank]}"
            room = width >= 7 * len(text)
            figure.text(x + width / 2, y + HEIGHT + 14, text if room else each[rank], size=SMALL, anchor="middle")
        x += width


def _nothing(figure: Figure, y: float, why: str) -> None:
    figure.box(LEFT, y, LENGTH, HEIGHT, fill=EMPTY)
    figure.text(WIDTH / 2, y + HEIGHT / 2, why, anchor="middle", color=INK)
