"""Sliders for ranks, size, latency and bandwidth, and a menu of links: which all-reduce is the cheapest?

The menu's links, rounded to what one can calculate with; measure your own (lesson 02B). Bandwidth is one way:

- NVLink 4: 18 links of 25 GB/s, NVIDIA's H100 data sheet (900 GB/s both ways); α 3.4 µs;
- PCIe 5: 16 lanes of 32 GT/s, 63 GB/s less the protocol (PCI-SIG); α 5.7 µs;
- InfiniBand: NDR, 400 Gb/s a port (InfiniBand Trade Association); α 14 µs;
- 10 Gb Ethernet: IEEE 802.3ae; α 30 µs is a TCP message through two kernels, an order of magnitude.

The first three α are what NCCL itself calculates with for a step of a ring (`hwLat`, protocol Simple, in
src/graph/tuning.cc): most of it is software.
"""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets

from picolib.course.figures.bars import cost_bars
from picolib.course.figures.canvas import Figure
from picolib.course.figures.curves import cost_curves
from picolib.course.style import seconds_text, size_text
from picolib.course.widgets.base import Explorer, choice, explorer, slider

LINKS = {  # name -> (α in seconds, GB/s)
    "NVLink 4": (3e-6, 450),
    "PCIe 5": (5e-6, 50),
    "InfiniBand": (14e-6, 50),
    "10 Gb Ethernet": (30e-6, 1.25),
}
OWN = "as the sliders say"
QUESTION = "At which size does the ring begin to win, and which way does that size move when latency doubles?"
SIZES = [2**k for k in range(8, 31, 2)]
LATENCIES = [m * 10.0**e for e in (-6, -5, -4, -3) for m in (1, 2, 5)]
SPEEDS = [0.125, 0.25, 0.5, 1, 2, 5, 12.5, 25, 50, 100, 450]  # GB/s


def cost_explorer(
    ranks: int = 8,
    nbytes: int = 2**20,
    alpha: float = 5e-5,
    gigabytes_per_second: float = 2,
    algorithms: Sequence[str] = ("naive", "recursive_doubling", "ring", "direct"),
    question: str = QUESTION,
) -> Explorer:
    """Bars for each algorithm's latency and bytes, the winner named. Give your own α and bandwidth to start from.

    A link chosen from the menu sets both sliders; a slider that is moved sets the menu back.
    """
    lines = [name for name in algorithms if name != "direct"]  # without overlap the same line as the ring
    picture = cost_curves(ranks, alpha, 1e-9 / gigabytes_per_second, lines, mark=nbytes)

    def draw(ranks: int, size: int, link: str, latency: float, speed: float, overlap: bool) -> Figure:
        return cost_bars(ranks, size, latency, 1e-9 / speed, algorithms, overlap)

    latencies = sorted({*LATENCIES, *(a for a, _ in LINKS.values()), alpha})
    speeds = sorted({*SPEEDS, *(s for _, s in LINKS.values()), gigabytes_per_second})
    controls = {
        "ranks": slider("ranks N", [(str(n), n) for n in sorted({2, 3, 4, 6, 8, 16, 32, 64, 256, ranks})], ranks),
        "size": slider("size S", [(size_text(b), b) for b in sorted({*SIZES, nbytes})], nbytes),
        "link": choice("link", [OWN, *LINKS], _named(alpha, gigabytes_per_second)),
        "latency": slider("latency α", [(seconds_text(a), a) for a in latencies], alpha),
        "speed": slider("bandwidth 1/β", [(f"{s:g} GB/s", s) for s in speeds], gigabytes_per_second),
        "overlap": ipywidgets.Checkbox(
            value=False, description="messages of one round start together (they share one α)", indent=False
        ),
    }
    controls["overlap"].layout.width = "480px"
    _join(controls["link"], controls["latency"], controls["speed"])
    return explorer(question, picture, draw, controls)


def _named(alpha: float, speed: float) -> str:
    return next((name for name, link in LINKS.items() if link == (alpha, speed)), OWN)


def _join(menu: ipywidgets.Dropdown, latency: ipywidgets.SelectionSlider, speed: ipywidgets.SelectionSlider) -> None:
    """Let the menu move both sliders, and the sliders say which link of the menu they stand at."""

    def from_menu(_change: object) -> None:
        if menu.value in LINKS and _named(latency.value, speed.value) != menu.value:
            wanted = LINKS[menu.value]
            for control in (latency, speed):
                control.unobserve(from_sliders, names="value")
            latency.value, speed.value = wanted
            for control in (latency, speed):
                control.observe(from_sliders, names="value")

    def from_sliders(_change: object) -> None:
        menu.value = _named(latency.value, speed.value)

    menu.observe(from_menu, names="value")
    for control in (latency, speed):
        control.observe(from_sliders, names="value")
