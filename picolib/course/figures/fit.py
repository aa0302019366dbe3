"""What a message costs: measured times of messages of several sizes, and the line α + β·bytes through them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from picolib.course.figures.axes import Axes, Scale
from picolib.course.figures.canvas import Figure
from picolib.course.style import INK, LARGE, MUTED, SMALL, WIDTH, seconds_text, series_color, size_text


def message_cost(points: Sequence[tuple[float, float]], alpha: float, beta: float) -> Figure:
    """Measured (bytes, seconds) as dots, α + β·bytes as a line, and α/β, where start-up and bytes cost the same.

    alpha: seconds a message takes however small it is; beta: seconds per byte. Both axes are logarithmic.
    Raises ValueError for a fit that is no cost (alpha or beta not positive).
    """
    if not (alpha > 0 and beta > 0):
        raise ValueError(f"alpha and beta must be positive, got {alpha:g} and {beta:g}")
    alt = "Time of one message against its size: measured, and the line alpha + beta · bytes; both axes logarithmic."
    figure = Figure(430, alt, varies=True)
    sizes = [size for size, _ in points]
    x = Scale(min(sizes), max(sizes), 78, WIDTH - 60, log=True, base=2)
    low = min(0.5 * alpha, *(t for _, t in points))
    y = Scale(0.8 * low, 1.5 * max(t for _, t in points), 356, 96, log=True)
    axes = Axes(figure, x, y, size_text, seconds_text)
    title = f"One message on this machine: α = {seconds_text(alpha)}, 1/β = {1 / beta / 1e9:.2g} GB/s"
    figure.text(20, 26, title, size=LARGE, bold=True)
    figure.text(20, 50, "dots: measured. line: α + β·bytes.", size=SMALL, color=MUTED)
    axes.frame("bytes in the message", "time")
    even = [x.low * (x.high / x.low) ** (i / 100) for i in range(101)]
    axes.line(even, [alpha + beta * size for size in even], series_color(0), width=2.5)
    if x.low < alpha / beta < x.high:
        at = x(alpha / beta)
        figure.line([(at, y.start), (at, y.end)], INK, 1.5, dash=True)
        figure.text(
            at, y.end - 10, f"α/β = {size_text(2.0 ** round(math.log2(alpha / beta)))}", size=SMALL, anchor="middle"
        )
    axes.points(sizes, [t for _, t in points], series_color(0))
    return figure
