"""Where tensor parallelism belongs: the part of its time that a layer waits, against the speed of the link.

The layer and its seconds are those of `tensor_share`: 8(t-1)/t·b·s·h numbers against 6·P/t operations a token. Both
grow with the tokens, so they cancel, and one speed is left at which a layer waits as long as it computes:

    B = 8(t-1)·h·(bytes of a number)·(operations a second) / 6P

Overlap hides at best what a pass has to compute. Forward has half of the bytes and a third of the operations, so it
needs 1.5·B to hide all of them; backward, with two thirds, 0.75·B. (A gather that hides behind its own product alone
needs more, where that product is small: attention's.)

(Between the named links, latency is interpolated.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from picolib.course.figures.axes import Axes, Scale, name_lines
from picolib.course.figures.canvas import Figure
from picolib.course.figures.sharding_trade import FLOPS
from picolib.course.figures.tensor_share import ALL_REDUCES, BYTES, LINKS, Block, share
from picolib.course.style import ACCENT, INK, LARGE, MUTED, SMALL, WIDTH, series_color
from picolib.launch.links import Link

PASSES = (1 / 3, 2 / 3)  # of the operations, forward and backward; each has half of the bytes
SPEEDS = [10 ** (9 + i / 20) for i in range(61)]  # bytes a second: 1 GB/s to 1 TB/s


def break_even(block: Block, ranks: int, flops: float = FLOPS) -> float:
    """The bandwidth, in bytes a second, at which a layer sends as long as it computes; latency is left out."""
    return ALL_REDUCES * 2 * (ranks - 1) * block.hidden * BYTES * flops / (6 * block.weights)


def waiting(block: Block, ranks: int, tokens: float, link: Link, hidden: bool = False) -> float:
    """The part of a layer's time, 0 to 1, in which a rank only waits. hidden: with perfect overlap within each pass."""
    one = share(block, ranks, tokens, link)
    left = (max(0.0, one.exposed / len(PASSES) - part * one.compute) for part in PASSES)
    exposed = sum(left) if hidden else one.exposed
    return exposed / (one.compute + exposed)


def link_speed(block: Block, tokens: float, ranks: Sequence[int], hidden: bool = False) -> Figure:
    """A line for each number of ranks; dots on the named links, and where a layer waits half of its time."""
    title = f"One layer of {block.name}, {tokens:,.0f} tokens{', all hidden that can be' if hidden else ''}"
    figure = Figure(420, f"{title}: the part of its time that a rank waits. {_told(block, ranks, tokens, hidden)}")
    axes = Axes(
        figure,
        Scale(SPEEDS[0], SPEEDS[-1], 74, WIDTH - 96, log=True),
        Scale(0, 1, 352, 104),
        lambda speed: f"{speed / 1e9:,.0f} GB/s",
        "{:.0%}".format,
    )
    figure.text(20, 26, title, size=LARGE, bold=True)
    figure.text(20, 52, "Part of its time that a rank only waits, on t ranks", size=SMALL, color=INK)
    axes.frame("bandwidth of the link between the ranks", "")
    for name, link in LINKS.items():
        x = axes.x(link.bandwidth)
        figure.line([(x, axes.y.start), (x, axes.y.end - 8)], MUTED, 1, dash=True)
        figure.text(x, axes.y.end - 18, name, size=SMALL, bold=True, color=INK, anchor="middle")
    axes.line([SPEEDS[0], SPEEDS[-1]], [0.5, 0.5], ACCENT, 1, dash=True)
    text = "as long as it computes"
    figure.text(axes.x.start + 6, axes.y(0.5) + 11, text, size=SMALL - 1, color=ACCENT)
    ends = [_curve(axes, block, tokens, n, series_color(i), hidden) for i, n in enumerate(ranks)]
    name_lines(figure, axes.x.end, ends[::-1], axes.y.end, axes.y.start)
    return figure


def _curve(axes: Axes, block: Block, tokens: float, ranks: int, color: str, hidden: bool) -> tuple[float, str, str]:
    line = [waiting(block, ranks, tokens, Link(latency_at(speed), speed), hidden) for speed in SPEEDS]
    axes.line(SPEEDS, line, color, 2.5)
    links = LINKS.values()
    places = [waiting(block, ranks, tokens, link, hidden) for link in links]
    axes.points([link.bandwidth for link in links], places, color)
    return axes.at(SPEEDS[-1], line[-1])[1], f"t = {ranks}", color


def latency_at(speed: float) -> float:
    """The latency of a link of this bandwidth: that of the named ones, and between two of them a mean."""
    known = sorted((math.log(link.bandwidth), math.log(link.latency)) for link in LINKS.values())
    x = min(max(math.log(speed), known[0][0]), known[-1][0])
    for (x0, y0), (x1, y1) in itertools.pairwise(known):
        if x <= x1:
            return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    raise AssertionError("unreachable")


def _told(block: Block, ranks: Sequence[int], tokens: float, hidden: bool) -> str:
    said = []
    for n in ranks:
        parts = ", ".join(f"{name} {waiting(block, n, tokens, link, hidden):.0%}" for name, link in LINKS.items())
        said.append(f"{n} ranks: {parts}")
    return "; ".join(said) + "."
