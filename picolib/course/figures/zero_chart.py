"""What each rank keeps under DDP and the stages of ZeRO: the chart of Rajbhandari et al. 2020 (figure 1), rank by rank.

Each small picture is one rank: three strips as high as their bytes a parameter (2 parameters, 2 gradients,
12 optimizer), as wide as the whole model. Filled is what the rank has.
"""

from __future__ import annotations

from collections.abc import Sequence

from picolib.course.figures.canvas import Figure
from picolib.course.figures.memory import gigabytes_text, part_color
from picolib.course.style import ACCENT, EMPTY, GOOD, LARGE, MUTED, PAPER, SMALL, WIDTH

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
FORMULAS = ("16Ψ", "4Ψ + 12Ψ/N", "2Ψ + 14Ψ/N", "16Ψ/N")
STRIPS = {"parameters": (2, 3), "gradients": (2, 2), "optimizer": (12, 1)}  # bytes, shared out from this stage on
LETTERS = "ABCD"
LEFT, RIGHT, ROW, UNIT = 100, 130, 86, 4  # UNIT: pixels of height for a byte
CARD = 80e9


def zero_chart(
    parameters: int, ranks: int = 8, order: Sequence[int] = (0, 1, 2, 3), riddle: bool = False, name: str = ""
) -> Figure:
    """A row for each stage in `order`, a picture for each rank.

    riddle: letters in place of names, and no bytes. name: of the model, for the title.
    """
    what = f"{name or f'{parameters / 1e9:.3g} billion parameters'} on {ranks} ranks"
    title = f"{what}: what each rank keeps" + (", four ways" if riddle else "")
    figure = Figure(84 + ROW * len(order), f"{title}. {_told(parameters, ranks, order, riddle)}")
    figure.text(20, 28, title, size=LARGE, bold=True)
    _legend(figure)
    for row, stage in enumerate(order):
        top = 82 + ROW * row
        figure.text(20, top + 32, f"{LETTERS[row]} = ?" if riddle else STAGES[stage], size=LARGE, bold=True)
        _ranks(figure, stage, ranks, top)
        if not riddle:
            _bytes(figure, stage, parameters, ranks, top)
    return figure


def shares(stage: int) -> dict[str, bool]:
    """Whether a stage shares out a part.

    >>> shares(1)
    {'parameters': False, 'gradients': False, 'optimizer': True}
    """
    return {part: stage >= first for part, (_, first) in STRIPS.items()}


def bytes_on_a_rank(stage: int, parameters: int, ranks: int) -> float:
    """The bytes that are filled (a test holds them against `picolib.memory`)."""
    sizes = {part: parameters * size for part, (size, _) in STRIPS.items()}
    return sum(size / ranks if shares(stage)[part] else size for part, size in sizes.items())


def _ranks(figure: Figure, stage: int, ranks: int, top: float) -> None:
    pitch = (WIDTH - LEFT - RIGHT) / ranks
    width = pitch - 8
    for rank in range(ranks):
        x, y = LEFT + rank * pitch, top
        for part, (size, _) in STRIPS.items():
            figure.box(x, y, width, UNIT * size, fill=EMPTY)
            start, share = (rank * width / ranks, width / ranks) if shares(stage)[part] else (0, width)
            figure.box(x + start, y, share, UNIT * size, fill=part_color(part))
            figure.line([(x, y), (x + width, y)], PAPER, 1.5)
            y += UNIT * size


def _bytes(figure: Figure, stage: int, parameters: int, ranks: int, top: float) -> None:
    count = bytes_on_a_rank(stage, parameters, ranks)
    x, color = WIDTH - RIGHT + 4, ACCENT if count > CARD else GOOD
    figure.text(x, top + 18, gigabytes_text(count), size=LARGE, bold=True, color=color)
    figure.text(x, top + 36, FORMULAS[stage], size=SMALL, color=MUTED)
    whole = bytes_on_a_rank(0, parameters, ranks)
    if stage:
        figure.text(x, top + 53, f"{whole / count:.3g}x less", size=SMALL, color=MUTED)
    else:
        figure.text(x, top + 53, f"{'above' if count > CARD else 'below'} 80 GB", size=SMALL, bold=True, color=color)


def _legend(figure: Figure) -> None:
    x = 20.0
    for part, (size, _) in STRIPS.items():
        text = f"{part}, {size} bytes"
        figure.box(x, 50, 14, 12, fill=part_color(part))
        figure.text(x + 20, 56, text, size=SMALL, color=MUTED)
        x += 46 + 7.2 * len(text)
    figure.box(x, 50, 14, 12, fill=EMPTY)
    figure.text(x + 20, 56, "what other ranks have", size=SMALL, color=MUTED)


def _told(parameters: int, ranks: int, order: Sequence[int], riddle: bool) -> str:
    rows = []
    for row, stage in enumerate(order):
        shared = [part for part, is_shared in shares(stage).items() if is_shared]
        words = f"shares out {' and '.join(shared)}" if shared else "keeps all of it on every rank"
        more = "" if riddle else f", {gigabytes_text(bytes_on_a_rank(stage, parameters, ranks))} a rank"
        rows.append(f"{LETTERS[row] if riddle else STAGES[stage]} {words}{more}")
    return "; ".join(rows) + "."
