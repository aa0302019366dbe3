"""Sliders for ranks, size, latency and bandwidth: which all-reduce is the cheapest?"""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets

from picolib.course.figures.bars import cost_bars
from picolib.course.figures.canvas import Figure
from picolib.course.figures.curves import cost_curves
from picolib.course.style import seconds_text, size_text
from picolib.course.widgets.base import Explorer, explorer, slider

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
    """Bars for each algorithm's latency and bytes, the winner named. Give your own α and bandwidth to start from."""
    lines = [name for name in algorithms if name != "direct"]  # without overlap the same line as the ring
    picture = cost_curves(ranks, alpha, 1e-9 / gigabytes_per_second, lines, mark=nbytes)

    def draw(ranks: int, size: int, latency: float, speed: float, overlap: bool) -> Figure:
        return cost_bars(ranks, size, latency, 1e-9 / speed, algorithms, overlap)

    latencies, speeds = sorted({*LATENCIES, alpha}), sorted({*SPEEDS, gigabytes_per_second})
    controls = {
        "ranks": slider("ranks N", [(str(n), n) for n in sorted({2, 3, 4, 6, 8, 16, 32, 64, 256, ranks})], ranks),
        "size": slider("size S", [(size_text(b), b) for b in sorted({*SIZES, nbytes})], nbytes),
        "latency": slider("latency α", [(seconds_text(a), a) for a in latencies], alpha),
        "speed": slider("bandwidth 1/β", [(f"{s:g} GB/s", s) for s in speeds], gigabytes_per_second),
        "overlap": ipywidgets.Checkbox(
            value=False, description="messages of one round start together (they share one α)", indent=False
        ),
    }
    controls["overlap"].layout.width = "480px"
    return explorer(question, picture, draw, controls)
