"""Does it pay to add ranks? Measured throughput against the ideal line, and the number of cores that there are."""

from __future__ import annotations

from collections.abc import Mapping

from picolib.course.figures.axes import Axes, Scale, name_lines
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.style import INK, LARGE, MUTED, SMALL, WIDTH, series_color

Points = Mapping[str, Mapping[int, float]]  # name of the experiment -> ranks -> samples per second


def efficiency(samples_per_second: Mapping[int, float]) -> dict[int, float]:
    """Throughput on N ranks divided by N times that of the smallest run, taken per rank: 1 is ideal.

    >>> efficiency({1: 100.0, 4: 300.0})
    {1: 1.0, 4: 0.75}
    """
    first = min(samples_per_second)
    alone = samples_per_second[first] / first
    return {ranks: speed / (ranks * alone) for ranks, speed in samples_per_second.items()}


def scaling(points: Points, cores: int | None = None, title: str = "Throughput against ranks") -> Figure:
    """Samples per second in units of one rank's, for each experiment; dashed: ideal, and where the cores end."""
    if not points or not all(len(found) > 1 for found in points.values()):
        raise ValueError("points must hold at least two numbers of ranks for each experiment")
    alt = f"{title}: {', '.join(points)}, and the ideal line."  # without the cores: the same text on every machine
    figure = Figure(380, alt, varies=True)
    most = max(max(found) for found in points.values())
    gains = {name: {n: n * e for n, e in efficiency(found).items()} for name, found in points.items()}
    names = [*gains, "ideal", _cores(cores or 1)]
    x = Scale(0, most, 66, WIDTH - 40 - max(text_width(name, SMALL) for name in names))
    axes = Axes(figure, x, Scale(0, 1.05 * max(most, *(max(g.values()) for g in gains.values())), 318, 76))
    figure.text(20, 26, title, size=LARGE, bold=True)
    axes.frame("ranks N", "times one rank")
    axes.line([0, most], [0, most], MUTED, dash=True)
    ends = [(axes.at(most, most)[1], "ideal", MUTED)]
    if cores and cores < most:
        axes.line([cores, most], [cores, cores], INK, dash=True)
        ends.append((axes.at(most, cores)[1], _cores(cores), INK))
    for number, (name, found) in enumerate(gains.items()):
        ranks, color = sorted(found), series_color(number)
        axes.line(ranks, [found[n] for n in ranks], color, width=2.5)
        axes.points(ranks, [found[n] for n in ranks], color)
        ends.append((axes.at(most, found[ranks[-1]])[1], name, color))
    name_lines(figure, x.end, ends, axes.y.end, axes.y.start)
    return figure


def _cores(count: int) -> str:
    return f"as many as cores: {count}"
