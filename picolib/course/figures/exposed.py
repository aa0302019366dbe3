"""Bars of seconds in groups, on one scale: what a rank computes, and behind it the communication that is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.figures.timeline import WORK
from picolib.course.style import ACCENT, GRID, INK, LARGE, MUTED, SMALL, WIDTH, seconds_text

ROW, HEAD, TOP, BAR = 29, 34, 96, 22  # of a bar with its gap; of a group's title; where the first begins; of a bar


class Note(NamedTuple):
    """A text to the right of the scale, `x` behind its end."""

    text: str
    x: float = 0
    bold: bool = False
    color: str = INK
    anchor: str = "start"


class Bar(NamedTuple):
    """Seconds in which a rank computes, seconds in which it only waits, and what is told about it."""

    name: str
    compute: float
    exposed: float
    notes: tuple[Note, ...] = ()

    @property
    def share(self) -> float:
        """The part of the time, from 0 to 1, in which it waits."""
        return self.exposed / (self.compute + self.exposed)


Groups = Sequence[tuple[str, Sequence[Bar]]]  # (title, bars)


def exposed_bars(
    title: str, groups: Groups, told: str, *, exposed_name: str, heading: Note, left: float, right: float
) -> Figure:
    """A bar a line, group below group. heading: stands over the notes. left, right: room for names, and for notes."""
    height = TOP + sum(ROW * len(bars) + HEAD for _, bars in groups)
    figure = Figure(height + 30, f"{title}. {told}")
    figure.text(20, 28, title, size=LARGE, bold=True)
    scale = Scale(0, max(bar.compute + bar.exposed for _, bars in groups for bar in bars), left, WIDTH - right)
    _legend(figure, exposed_name)
    _note(figure, scale, heading, 57)
    for value in scale.ticks(5):
        figure.line([(scale(value), TOP - 12), (scale(value), height)], GRID)
        text = seconds_text(value) if value else "0"
        figure.text(scale(value), height + 14, text, size=SMALL, color=MUTED, anchor="middle")
    top = TOP
    for name, bars in groups:
        figure.text(20, top, name, size=SMALL, bold=True)
        for number, bar in enumerate(bars):
            _draw(figure, scale, bar, top + 14 + ROW * number)
        top += ROW * len(bars) + HEAD
    return figure


def _draw(figure: Figure, scale: Scale, bar: Bar, top: float) -> None:
    start, middle, end = scale.start, scale(bar.compute), scale(bar.compute + bar.exposed)
    figure.text(start - 8, top + BAR / 2, bar.name, size=SMALL, anchor="end")
    figure.box(start, top, middle - start, BAR, fill=WORK)
    if end > middle:
        figure.box(middle, top, end - middle, BAR, fill=ACCENT)
    for note in bar.notes:
        _note(figure, scale, note, top + BAR / 2)


def _note(figure: Figure, scale: Scale, note: Note, y: float) -> None:
    style = {"bold": note.bold, "color": note.color, "anchor": note.anchor}
    figure.text(scale.end + 14 + note.x, y, note.text, size=SMALL, **style)


def _legend(figure: Figure, exposed_name: str) -> None:
    x = 20.0
    for color, text in ((WORK, "compute"), (ACCENT, exposed_name)):
        figure.box(x, 51, 14, 12, fill=color)
        figure.text(x + 20, 57, text, size=SMALL, color=MUTED)
        x += 40 + text_width(text, SMALL)
