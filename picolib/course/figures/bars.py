"""The bill of an all-reduce: latency and bytes of each algorithm as one bar, the cheapest named."""

from __future__ import annotations

from collections.abc import Sequence

from picolib.course.figures import costs
from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure
from picolib.course.style import EMPTY, GOOD, INK, LARGE, MUTED, SMALL, WIDTH, seconds_text, size_text

LATENCY, BYTES = "#332288", "#b8860b"


def cost_bars(
    ranks: int,
    nbytes: float,
    alpha: float,
    beta: float,
    algorithms: Sequence[str] = tuple(costs.ALL_REDUCE),
    overlap: bool = False,
) -> Figure:
    """One bar for each algorithm: α for its messages and β for its bytes, after `costs` (seconds, seconds per byte)."""
    taken = costs.times(ranks, nbytes, alpha, beta, algorithms, overlap)
    least = min(taken.values())
    cheapest = [name for name in taken if taken[name] <= least * (1 + 1e-9)]
    verdict = "cheapest: " + " and ".join(cheapest)
    title = f"All-reduce of {size_text(nbytes)} on {ranks} ranks"
    told = ", ".join(f"{name} {seconds_text(t)}" for name, t in taken.items())
    figure = Figure(112 + 34 * len(taken), f"{title}: {told}. {verdict}.")
    figure.text(20, 28, title, size=LARGE, bold=True)
    figure.text(WIDTH - 20, 28, verdict, size=LARGE, bold=True, color=GOOD, anchor="end")
    _legend(figure, alpha, beta)
    scale = Scale(0, max(taken.values()) or 1, 172, 480)
    for line, name in enumerate(taken):
        latency = costs.ALL_REDUCE[name].seconds(ranks, 0, alpha, beta, overlap)
        _bar(figure, scale, name, latency, taken[name], 88 + 34 * line, name in cheapest)
    return figure


def _bar(figure: Figure, scale: Scale, name: str, latency: float, total: float, y: float, best: bool) -> None:
    figure.text(scale.start - 10, y + 11, name, size=SMALL, bold=best, anchor="end", color=GOOD if best else INK)
    figure.box(scale.start, y, scale.end - scale.start, 22, fill=EMPTY)
    split, end = scale(latency), scale(total)
    figure.box(scale.start, y, split - scale.start, 22, fill=LATENCY)
    figure.box(split, y, end - split, 22, fill=BYTES)
    figure.text(scale.end + 10, y + 11, seconds_text(total), size=SMALL, bold=best, color=GOOD if best else INK)
    figure.text(scale.end + 90, y + 11, costs.ALL_REDUCE[name].formula, size=SMALL, mono=True, color=MUTED)


def _legend(figure: Figure, alpha: float, beta: float) -> None:
    figure.box(20, 52, 16, 12, fill=LATENCY)
    figure.text(42, 58, f"latency: α = {seconds_text(alpha)} for each message", size=SMALL, color=MUTED)
    figure.box(330, 52, 16, 12, fill=BYTES)
    figure.text(352, 58, f"bytes: β = 1 / ({1 / beta / 1e9:.3g} GB/s)", size=SMALL, color=MUTED)
