"""The map of the course: six ways to lay one model and one batch out on four ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from picolib.course.figures.canvas import Figure
from picolib.course.style import EMPTY, INK, LARGE, MUTED, SMALL, ink_on, rank_color, tint

RANKS = 4
Keeps = Callable[[int, int, int], bool]  # (rank, row, column) -> whether the rank has that cell


@dataclass(frozen=True)
class Layout:
    """model: rows are layers, columns slices of each layer's weights; batch: rows are sequences, columns tokens."""

    title: str
    model: Keeps
    batch: Keeps
    says: str
    talks: str


def _everything(rank: int, row: int, column: int) -> bool:
    return True


def _row(rank: int, row: int, column: int) -> bool:
    return row == rank


def _column(rank: int, row: int, column: int) -> bool:
    return column == rank


def _expert(rank: int, row: int, column: int) -> bool:
    return row % 2 == 0 or column == rank  # every other row is a layer of experts


LAYOUTS = {
    "data": Layout("data parallel", _everything, _row, "whole model, own sequences", "all-reduce gradients"),
    "sharded": Layout("ZeRO / FSDP", _column, _row, "a slice of each layer, own sequences", "gather layers as needed"),
    "tensor": Layout(
        "tensor parallel", _column, _everything, "a slice of each layer, all tokens", "all-reduce activations"
    ),
    "pipeline": Layout("pipeline parallel", _row, _everything, "own layers, all tokens in turn", "hand activations on"),
    "context": Layout(
        "context parallel", _everything, _column, "whole model, own tokens", "pass keys and values round"
    ),
    "expert": Layout("expert parallel", _expert, _row, "own experts, own sequences", "all-to-all tokens"),
}


def layouts(lit: Sequence[str] | str = tuple(LAYOUTS)) -> Figure:
    """What each rank holds of the model and works on of the batch; panels not in `lit` are pale (not learned yet)."""
    lit = (lit,) if isinstance(lit, str) else tuple(lit)
    unknown = [name for name in lit if name not in LAYOUTS]
    if unknown:
        raise ValueError(f"lit has {unknown[0]!r}; there is {', '.join(LAYOUTS)}")
    told = "; ".join(f"{layout.title}: {layout.says}, {layout.talks}" for layout in LAYOUTS.values())
    figure = Figure(86 + 2 * 254, f"One model and one batch on four ranks, six ways. {told}.")
    figure.text(20, 28, "One model, one batch, four ranks: six layouts", size=LARGE + 2, bold=True)
    legend = (
        "Each rank: left its part of the model (rows are layers), right its part of the batch (rows are sequences)."
    )
    figure.text(20, 54, legend, size=SMALL, color=MUTED)
    for place, (name, layout) in enumerate(LAYOUTS.items()):
        _panel(figure, layout, 16 + 258 * (place % 3), 74 + 254 * (place // 3), name in lit)
    return figure


def _panel(figure: Figure, layout: Layout, x: float, y: float, lit: bool) -> None:
    figure.box(x, y, 250, 244, fill="#ffffff" if lit else "none", stroke=INK if lit else "#c9c9c1", radius=8)
    ink = INK if lit else "#74746c"
    figure.text(x + 14, y + 22, layout.title, size=LARGE, bold=True, color=ink)
    figure.text(x + 14, y + 206, layout.says, size=SMALL, color=ink)
    figure.text(x + 14, y + 225, layout.talks, size=SMALL, color=ink, bold=lit)
    for rank in range(RANKS):
        _rank(figure, layout, rank, x + 14 + 116 * (rank % 2), y + 42 + 78 * (rank // 2), lit)


def _rank(figure: Figure, layout: Layout, rank: int, x: float, y: float, lit: bool) -> None:
    color = rank_color(rank) if lit else tint(rank_color(rank), 0.3)
    figure.disc(x + 9, y + 31, 9, color)
    figure.text(
        x + 9, y + 31, str(rank), size=11, bold=True, anchor="middle", color=ink_on(color) if lit else "#74746c"
    )
    _grid(figure, layout.model, rank, x + 23, y, 10, 15.5, color)
    _grid(figure, layout.batch, rank, x + 68, y + 9, 9, 11, color)


def _grid(figure: Figure, keeps: Keeps, rank: int, x: float, y: float, width: float, height: float, color: str) -> None:
    for row in range(RANKS):
        for column in range(RANKS):
            fill = color if keeps(rank, row, column) else EMPTY
            figure.box(x + column * width, y + row * height, width - 1, height - 2.5, fill=fill)
