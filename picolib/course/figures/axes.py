"""A small chart: axes with ticks, lines with their names beside them, points, bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from picolib.course.figures.canvas import Figure, Point
from picolib.course.style import GRID, INK, MUTED, PAPER, SMALL

Format = Callable[[float], str]


@dataclass
class Scale:
    """Where a value lies between two pixels, on a linear or a logarithmic axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    base: int = 10  # of a logarithmic axis's ticks; 2 for bytes

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values to write at the axis: powers of two (bytes) or ten, or steps of 1, 2 or 5."""
        return self._powers(count) if self.log else self._steps(count)

    def _steps(self, count: int) -> list[float]:
        rough = (self.high - self.low) / count
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _powers(self, count: int) -> list[float]:
        base = self.base
        low, high = (round(math.log(v, base), 9) for v in (self.low, self.high))
        exponents = range(math.ceil(low), math.floor(high) + 1)
        every = max(1, math.ceil(len(exponents) / count))
        return [float(base**e) for e in exponents if (e - exponents[0]) % every == 0]


@dataclass
class Axes:
    """A chart of `figure` between pixels x and y (its upper left corner) of the given width and height."""

    figure: Figure
    x: Scale
    y: Scale
    x_format: Format = "{:g}".format
    y_format: Format = "{:g}".format

    def frame(self, x_title: str, y_title: str, x_names: Mapping[float, str] | None = None) -> None:
        """Grid, ticks and titles: y's title stands above the axis, where it can be read without turning the head.

        x_names: what to write at places of the x axis, instead of numbers.
        """
        figure, x, y = self.figure, self.x, self.y
        for value in y.ticks():
            figure.line([(x.start, y(value)), (x.end, y(value))], GRID)
            figure.text(x.start - 8, y(value), self.y_format(value), size=SMALL, color=MUTED, anchor="end")
        for value, name in (x_names or {value: self.x_format(value) for value in x.ticks()}).items():
            figure.line([(x(value), y.start), (x(value), y.start + 5)], MUTED)
            figure.text(x(value), y.start + 16, name, size=SMALL, color=MUTED, anchor="middle")
        figure.line([(x.start, y.start), (x.end, y.start)], MUTED)
        figure.text((x.start + x.end) / 2, y.start + 36, x_title, size=SMALL, color=INK, anchor="middle")
        figure.text(x.start - 8, y.end - 18, y_title, size=SMALL, color=INK)

    def at(self, x: float, y: float) -> Point:
        """Pixels of a value, kept inside the chart."""
        top, bottom = sorted((self.y.start, self.y.end))
        return self.x(x), min(max(self.y(y), top), bottom)

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str, width: float = 2, dash: bool = False) -> None:
        """A line through the values."""
        self.figure.line([self.at(x, y) for x, y in zip(xs, ys, strict=True)], color, width, dash)

    def points(self, xs: Sequence[float], ys: Sequence[float], color: str, radius: float = 4) -> None:
        """A dot at each value."""
        for x, y in zip(xs, ys, strict=True):
            self.figure.disc(*self.at(x, y), radius, color, stroke=PAPER)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near as possible to the wanted ones, at least `gap` apart, between low and high.

    >>> spread([10, 12, 50], gap=10, low=0, high=60)
    [10, 20, 50]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    floor = low
    for i in order:
        placed[i] = floor = max(placed[i], floor)
        floor += gap
    ceiling = high
    for i in reversed(order):
        placed[i] = ceiling = min(placed[i], ceiling)
        ceiling -= gap
    return placed


def name_lines(figure: Figure, x: float, names: Sequence[tuple[float, str, str]], low: float, high: float) -> None:
    """Write each (y, name, colour) at the end of its line, moved apart where lines end close together."""
    places = spread([y for y, _, _ in names], 16, low, high)
    for place, (y, name, color) in zip(places, names, strict=True):
        figure.line([(x + 2, y), (x + 10, place)], color, 1)
        figure.text(x + 13, place, name, size=SMALL, bold=True, color=INK)
