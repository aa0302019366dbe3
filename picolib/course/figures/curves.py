"""Charts: what a collective costs over message size, and losses over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from picolib.course.figures import costs
from picolib.course.figures.axes import Axes, Scale, name_lines
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.style import (
    INK,
    LARGE,
    MUTED,
    PAPER,
    SMALL,
    WIDTH,
    bytes_text,
    ink_on,
    seconds_text,
    series_color,
    size_text,
    tint,
)

Points = Mapping[str, Sequence[tuple[float, float]]]
SIZES = [2.0 ** (10 + i / 8) for i in range(8 * 16 + 1)]  # 1 KB to 64 MB


def cost_curves(
    ranks: int,
    alpha: float,
    beta: float,
    algorithms: Sequence[str] = ("naive", "recursive_doubling", "ring"),
    points: Points | None = None,
    mark: float | None = None,
    overlap: bool = False,
) -> Figure:
    """Time of an all-reduce against its size (both axes logarithmic), and who wins where.

    alpha: seconds a message takes however small it is; beta: seconds per byte; both after `costs`.
    points: measured (bytes, seconds) for each algorithm, drawn as dots beside the formulas.
    mark: a size in bytes to point out. overlap: whether the messages of a round share one latency (see `costs`).
    """
    alt = f"Time of an all-reduce on {ranks} ranks against its size, 1 KB to 64 MB, by formula: "
    alt += "; ".join(f"{name} {costs.ALL_REDUCE[name].formula}" for name in algorithms) + "."
    figure = Figure(460, alt, varies=points is not None)
    lines = {name: _line(name, ranks, alpha, beta, overlap) for name in algorithms}
    seconds = [t for line in lines.values() for t in line]
    measured = [t for found in (points or {}).values() for _, t in found]
    x = Scale(SIZES[0], SIZES[-1], 78, WIDTH - 172, log=True, base=2)
    y = Scale(0.8 * min(seconds + measured), 1.25 * max(seconds + measured), 356, 80, log=True)
    axes = Axes(figure, x, y, size_text, seconds_text)
    title = f"All-reduce on {ranks} ranks: α = {seconds_text(alpha)}, 1/β = {1 / beta / 1e9:.3g} GB/s"
    figure.text(20, 26, title, size=LARGE, bold=True)
    axes.frame("size of the tensor, S", "time")
    if mark is not None:
        figure.line([(x(mark), y.start), (x(mark), y.end)], INK, 1.5, dash=True)
    _draw_lines(axes, lines, points or {})
    _draw_winners(figure, x, costs.winners(ranks, SIZES, alpha, beta, algorithms, overlap), algorithms)
    return figure


def _line(name: str, ranks: int, alpha: float, beta: float, overlap: bool) -> list[float]:
    return [costs.ALL_REDUCE[name].seconds(ranks, size, alpha, beta, overlap) for size in SIZES]


def _draw_lines(axes: Axes, lines: Mapping[str, Sequence[float]], points: Points) -> None:
    ends = []
    for number, (name, line) in enumerate(lines.items()):
        color = series_color(number)
        axes.line(SIZES, line, color, width=2.5)
        for size, seconds in points.get(name, ()):
            axes.points([size], [seconds], color)
        ends.append((axes.at(SIZES[-1], line[-1])[1], name, color))
    name_lines(axes.figure, axes.x.end, ends, axes.y.end, axes.y.start)


def _draw_winners(figure: Figure, x: Scale, ranges: Sequence[tuple[float, float, str]], names: Sequence[str]) -> None:
    """A band below the chart: each algorithm's name over the sizes at which it is the fastest."""
    figure.text(70, 424, "fastest", size=SMALL, color=INK, anchor="end", bold=True)
    for low, high, name in ranges:
        color, x0, x1 = series_color(list(names).index(name)), x(low), x(high)
        figure.box(x0, 412, max(x1 - x0, 1), 24, fill=color, stroke=PAPER)
        if text_width(name, SMALL) < x1 - x0 - 8:
            figure.text((x0 + x1) / 2, 424, name, size=SMALL, anchor="middle", bold=True, color=ink_on(color))
        if low > SIZES[0]:
            figure.text(x0, 446, bytes_text(low), size=11, anchor="middle", color=MUTED)


def loss_curves(runs: Mapping[str, Sequence[float]], title: str = "Loss", y_title: str = "loss") -> Figure:
    """One line for each run, named at its end; the first is drawn thick and pale, so that one on top of it is seen."""
    if not runs or not all(len(losses) for losses in runs.values()):
        raise ValueError("runs must hold at least one loss for each name")
    alt = f"{title}: {', '.join(runs)}, against the step."
    figure = Figure(380, alt, varies=True)
    values = [loss for losses in runs.values() for loss in losses]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.5
    x = Scale(
        0, max(max(map(len, runs.values())) - 1, 1), 66, WIDTH - 30 - max(text_width(name, SMALL) for name in runs)
    )
    axes = Axes(figure, x, Scale(low - margin, high + margin, 318, 76), "{:g}".format, "{:.4g}".format)
    figure.text(20, 26, title, size=LARGE, bold=True)
    axes.frame("step", y_title)
    ends = []
    for number, (name, losses) in enumerate(runs.items()):
        color = series_color(number)
        thick = number == 0 and len(runs) > 1
        axes.line(range(len(losses)), losses, tint(color, 0.4) if thick else color, width=8 if thick else 2)
        ends.append((axes.at(len(losses) - 1, losses[-1])[1], name, color))
    name_lines(figure, x.end, ends, axes.y.end, axes.y.start)
    return figure
