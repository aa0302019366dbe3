"""Where tensor parallelism belongs: what a layer computes and what it waits for its all-reduces, on several links.

A layer of P weights computes 2P floating-point operations a token forward and twice that backward, split over t ranks.
Its four all-reduces send 8(t-1)/t·b·s·h numbers from each rank (Shoeybi et al. 2019, section 3), with nothing to hide
behind: what follows needs the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.figures.sharding_trade import FLOPS, WORK
from picolib.course.style import ACCENT, GRID, INK, LARGE, MUTED, SMALL, WIDTH, seconds_text
from picolib.launch.links import Link, Links
from picolib.plan.links import ring_all_reduce

LINKS = {"NVLink 4": Link.NVLINK4, "PCIe 5": Link.PCIE5, "100G Ethernet": Link.ETHERNET_100G}
BYTES, ALL_REDUCES = 2, 4  # of a number that travels (bf16); in a layer, forward and backward
LEFT, RIGHT, ROW, TOP = 128, 190, 29, 96


class Block(NamedTuple):
    """What matters of a model here: weights of a layer, and the width of the stream between the blocks."""

    name: str
    weights: float
    hidden: int


BLOCKS = (
    Block("Llama 3.2 1B", 60.8e6, 2048),
    Block("Llama 3 8B", 218e6, 4096),
    Block("Llama 3 70B", 856e6, 8192),
    Block("Llama 3.1 405B", 3.19e9, 16384),
)


class Share(NamedTuple):
    """A layer on one rank, forward and backward: seconds of compute, seconds in which it waits, bytes sent."""

    compute: float
    exposed: float
    sent: float


def share(block: Block, ranks: int, tokens: float, link: Link, flops: float = FLOPS) -> Share:
    """A layer split over `ranks` ranks of one link. tokens: of the micro-batch, b·s, the same on every rank."""
    once = tokens * block.hidden * BYTES
    exposed = ALL_REDUCES * ring_all_reduce(Links(1, ranks, intra=link), once)
    return Share(6 * block.weights * tokens / ranks / flops, exposed, ALL_REDUCES * 2 * (ranks - 1) / ranks * once)


def tensor_share(block: Block, tokens: float, ranks: Sequence[int], links: Sequence[str] = tuple(LINKS)) -> Figure:
    """For each number of ranks and each link: compute and exposed communication of a layer, and the part exposed."""
    groups = [(n, [(name, share(block, n, tokens, LINKS[name])) for name in links]) for n in ranks]
    height = TOP + sum(ROW * len(rows) + 34 for _, rows in groups)
    title = f"One layer of {block.name}, {tokens:,.0f} tokens, forward and backward"
    figure = Figure(height + 30, f"{title}. {_told(groups)}")
    figure.text(20, 28, title, size=LARGE, bold=True)
    _legend(figure)
    scale = Scale(0, max(one.compute + one.exposed for _, rows in groups for _, one in rows), LEFT, WIDTH - RIGHT)
    for value in scale.ticks(5):
        figure.line([(scale(value), TOP - 12), (scale(value), height)], GRID)
        text = seconds_text(value) if value else "0"
        figure.text(scale(value), height + 14, text, size=SMALL, color=MUTED, anchor="middle")
    top = TOP
    for n, rows in groups:
        figure.text(20, top, f"t = {n} ranks", size=SMALL, bold=True)
        for number, (name, one) in enumerate(rows):
            _bar(figure, scale, name, one, top + 14 + ROW * number)
        top += ROW * len(rows) + 34
    return figure


def _bar(figure: Figure, scale: Scale, name: str, one: Share, top: float) -> None:
    middle, end = scale(one.compute), scale(one.compute + one.exposed)
    figure.text(LEFT - 8, top + 11, name, size=SMALL, anchor="end")
    figure.box(LEFT, top, middle - LEFT, 22, fill=WORK)
    if end > middle:
        figure.box(middle, top, end - middle, 22, fill=ACCENT)
    x = WIDTH - RIGHT + 14
    figure.text(x, top + 11, f"{one.sent / 1e6:,.3g} MB sent", size=SMALL, color=INK)
    figure.text(x + 108, top + 11, _percent(one), size=SMALL, bold=True, color=ACCENT)


def _percent(one: Share) -> str:
    return f"{100 * one.exposed / (one.compute + one.exposed):.0f}%"


def _legend(figure: Figure) -> None:
    x = 20.0
    for color, text in ((WORK, "compute"), (ACCENT, "all-reduces, which nothing hides")):
        figure.box(x, 51, 14, 12, fill=color)
        figure.text(x + 20, 57, text, size=SMALL, color=MUTED)
        x += 40 + text_width(text, SMALL)
    figure.text(WIDTH - 20, 57, "part of the time", size=SMALL, color=MUTED, anchor="end")


def _told(groups: Sequence[tuple[int, list[tuple[str, Share]]]]) -> str:
    said = (f"{n} ranks: " + ", ".join(f"{name} {_percent(one)} exposed" for name, one in rows) for n, rows in groups)
    return "; ".join(said) + "."
