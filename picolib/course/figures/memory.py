"""What fills a device: named parts as stacked bars, against the memory that there is.

Parts are bytes by name, as `picolib.memory` gives them; the same part has the same colour in every picture.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from picolib.course.figures.axes import Axes, Scale, name_lines
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.style import (
    ACCENT,
    EMPTY,
    GOOD,
    INK,
    LARGE,
    MUTED,
    PAPER,
    SERIES_COLORS,
    SMALL,
    WIDTH,
    ink_on,
    series_color,
)

PARTS = {
    "parameters": SERIES_COLORS[0],
    "weights": SERIES_COLORS[0],
    "gradients": SERIES_COLORS[1],
    "optimizer": SERIES_COLORS[2],
    "activations": SERIES_COLORS[3],
    "kv cache": SERIES_COLORS[5],
    "logits": SERIES_COLORS[4],
    "gathered layer": SERIES_COLORS[6],
    "cut over the ranks": SERIES_COLORS[3],
    "the same on every rank": ACCENT,
}
HALVES = {0.25: "forward pass", 0.5: "backward begins", 0.75: "backward pass"}
LEFT, RIGHT, BAR, STEP = 132, 118, 26, 40
CARD = 80e9  # bytes of an A100 or H100 as sold: GB of 10^9, as everywhere where memory is meant

Bars = Mapping[str, Mapping[str, float]]


def gigabytes_text(count: float) -> str:
    """Bytes in units of 1000, as on data sheets, three digits: "128 GB", "1,120 GB", "8.05 MB".

    >>> gigabytes_text(17.5e9)
    '17.5 GB'
    """
    unit, size = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if count >= s), ("B", 1))
    value = count / size
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def memory_bars(bars: Bars, title: str, line: float | None = CARD, line_name: str = "") -> Figure:
    """One stacked bar for each name in `bars`, a dashed line at `line` bytes (None: no line), the parts named.

    line_name: what has that much ("one GPU"); without it only the bytes are written.
    """
    totals = {name: sum(parts.values()) for name, parts in bars.items()}
    told = "; ".join(f"{name} {gigabytes_text(totals[name])} ({_told(parts)})" for name, parts in bars.items())
    limit = f" The line: {gigabytes_text(line)}." if line else ""
    figure = Figure(106 + STEP * len(bars), f"{title}. {told}.{limit}")
    figure.text(20, 28, title, size=LARGE, bold=True)
    _legend(figure, list(dict.fromkeys(part for parts in bars.values() for part in parts)))
    most = max([*totals.values(), 1.08 * (line or 0)]) or 1
    scale = Scale(0, most, LEFT, WIDTH - RIGHT)
    tops = dict(zip(bars, itertools.count(88, STEP)))
    for name, parts in bars.items():
        figure.text(LEFT - 10, tops[name] + BAR / 2, name, size=SMALL, bold=True, anchor="end")
        figure.box(LEFT, tops[name], scale.end - LEFT, BAR, fill=EMPTY)
        _stack(figure, scale, parts, tops[name])
        color = INK if line is None else ACCENT if totals[name] > line else GOOD
        text = gigabytes_text(totals[name])
        figure.text(scale.end + 8, tops[name] + BAR / 2, text, size=SMALL, bold=True, color=color)
    if line:
        _limit(figure, scale(line), line, line_name, 88 + STEP * len(bars))
    for name, parts in bars.items():
        _numbers(figure, scale, parts, tops[name])
    return figure


def _limit(figure: Figure, x: float, line: float, name: str, bottom: float) -> None:
    figure.line([(x, 78), (x, bottom - 8)], ACCENT, 2, dash=True)
    words = f"{gigabytes_text(line)}{f': {name}' if name else ''}"
    x = min(max(x, LEFT), WIDTH - 20 - text_width(words, SMALL) / 2)
    figure.text(x, bottom + 2, words, size=SMALL, bold=True, color=ACCENT, anchor="middle")


def held_curves(
    runs: Mapping[str, Sequence[float]], title: str, marks: Mapping[str, float] | None = None, halves: bool = False
) -> Figure:
    """Bytes held during a step, a line for each run: `Measured.held`, drawn from its first change to its last.

    marks: levels to point out, by name. halves: each run's forward pass fills the left half and its backward pass,
    which begins where the first tensor is let go, the right one (of a step with one backward pass).
    """
    told = "; ".join(f"{name} at most {gigabytes_text(max(held))}" for name, held in runs.items())
    figure = Figure(380, f"{title}: {told}.")
    end = WIDTH - 40 - max(text_width(name, SMALL) for name in [*runs, *(marks or {})])
    axes = Axes(
        figure,
        Scale(0, 1, 84, end),
        Scale(0, 1.05 * max(map(max, runs.values())), 318, 76),
        "{:.0%}".format,
        gigabytes_text,
    )
    figure.text(20, 26, title, size=LARGE, bold=True)
    axes.frame(
        "from the first tensor saved to the last let go", "held for the backward pass", HALVES if halves else None
    )
    if halves:
        figure.line([(axes.x(0.5), axes.y.start), (axes.x(0.5), axes.y.end)], MUTED)
    names = []
    for number, (name, held) in enumerate(runs.items()):
        color, places = series_color(number), _places(held, halves)
        axes.line(places, held, color, width=2.5)
        peak = held.index(max(held))
        axes.points([places[peak]], [held[peak]], color)
        names.append((axes.at(0, max(held))[1], name, color))
    for name, level in (marks or {}).items():
        axes.line([0, 1], [level, level], MUTED, dash=True)
        names.append((axes.at(0, level)[1], name, MUTED))
    name_lines(figure, end, names, axes.y.end, axes.y.start)
    return figure


def _places(held: Sequence[float], halves: bool) -> list[float]:
    """Where on the x axis, from 0 to 1, each change of what is held stands."""
    last = max(len(held) - 1, 1)
    if not halves:
        return [i / last for i in range(len(held))]
    turn = next(i for i in range(1, last) if held[i + 1] < held[i])  # the last that the forward pass saves
    return [i / turn / 2 if i <= turn else 0.5 + (i - turn) / (last - turn) / 2 for i in range(len(held))]


def _stack(figure: Figure, scale: Scale, parts: Mapping[str, float], top: float) -> None:
    start = 0.0
    for name, size in parts.items():
        x0, x1 = scale(start), scale(start + size)
        color = part_color(name)
        figure.box(x0, top, x1 - x0, BAR, fill=color, stroke=PAPER if x1 - x0 > 2 else "none")
        start += size


def _numbers(figure: Figure, scale: Scale, parts: Mapping[str, float], top: float) -> None:
    """Written last, each on a piece of its bar's own colour: the line goes behind the numbers."""
    start = 0.0
    for name, size in parts.items():
        middle, color, label = scale(start + size / 2), part_color(name), gigabytes_text(size)
        width = text_width(label, SMALL) + 6
        if width < scale(start + size) - scale(start):
            figure.box(middle - width / 2, top + 4, width, BAR - 8, fill=color)
            figure.text(middle, top + BAR / 2, label, size=SMALL, color=ink_on(color), anchor="middle")
        start += size


def part_color(name: str) -> str:
    """The colour of a part; of one that has no name of its own here, that of "other" parts."""
    return PARTS.get(name, series_color(7))


def _legend(figure: Figure, names: Sequence[str]) -> None:
    x = 20.0
    for color in dict.fromkeys(map(part_color, names)):
        text = " / ".join(name for name in names if part_color(name) == color)
        figure.box(x, 52, 14, 12, fill=color)
        figure.text(x + 20, 58, text, size=SMALL, color=MUTED)
        x += 40 + text_width(text, SMALL)


def _told(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {gigabytes_text(size)}" for name, size in parts.items() if size)
