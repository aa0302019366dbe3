"""Where tensor parallelism belongs: what a layer computes and what it waits for its all-reduces, on several links.

A layer of P weights computes 2P floating-point operations a token forward and twice that backward, split over t ranks.
Its four all-reduces send 8(t-1)/t·b·s·h numbers from each rank (Shoeybi et al. 2019, section 3), with nothing to hide
behind: what follows needs the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from picolib.course.figures.canvas import Figure
from picolib.course.figures.exposed import Bar, Note, exposed_bars
from picolib.course.figures.sharding_trade import FLOPS
from picolib.course.style import ACCENT, MUTED
from picolib.launch.links import Link, Links
from picolib.plan.links import ring_all_reduce

LINKS = {"NVLink 4": Link.NVLINK4, "PCIe 5": Link.PCIE5, "100G Ethernet": Link.ETHERNET_100G}
BYTES, ALL_REDUCES = 2, 4  # of a number that travels (bf16); in a layer, forward and backward
LEFT, RIGHT = 182, 190


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
    groups = [
        (f"t = {n} ranks", [_bar(name, share(block, n, tokens, LINKS[name])) for name in links]) for n in ranks
    ]  # fmt: skip
    title = f"One layer of {block.name}, {tokens:,.0f} tokens, forward and backward"
    told = "; ".join(
        f"{n} ranks: " + ", ".join(f"{bar.name}: {_percent(bar)} exposed" for bar in bars)
        for n, (_, bars) in zip(ranks, groups, strict=True)
    )
    heading = Note("part of the time", 156, color=MUTED, anchor="end")
    assumed = f"bf16, {FLOPS / 1e12:g} TFLOP/s a rank, without attention's scores"
    names = {"exposed_name": f"all-reduces, not hidden ({assumed})", "heading": heading}
    return exposed_bars(title, groups, f"{told}.", **names, left=LEFT, right=RIGHT)


def _bar(name: str, one: Share) -> Bar:
    bar = Bar(f"{name}, {LINKS[name].bandwidth / 1e9:g} GB/s", one.compute, one.exposed)
    notes = Note(f"{one.sent / 1e6:,.3g} MB sent"), Note(_percent(bar), 108, bold=True, color=ACCENT)
    return bar._replace(notes=notes)


def _percent(bar: Bar) -> str:
    return f"{100 * bar.share:.0f}%"
