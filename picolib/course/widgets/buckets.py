"""Sliders for bucket size, latency, bandwidth and a layer's backward time: how much of the all-reduces is hidden?"""

from __future__ import annotations

from picolib.course.figures.bucket_plan import Model, bucket_plan
from picolib.course.figures.canvas import Figure
from picolib.course.style import seconds_text
from picolib.course.widgets.base import Explorer, explorer, slider

QUESTION = "Which bucket size leaves the least exposed, and does that size grow or shrink when the latency does?"
CAPS = (0.5, 1, 2, 4, 8, 16, 25, 64)
LATENCIES = (1e-6, 5e-6, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
SPEEDS = (0.5, 1, 2, 5, 25, 100)  # GB/s
STATIC = (0.5, 2, 4, 16, 64)  # too small, right, too large
BACKWARD = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2)  # seconds a layer


def bucket_explorer(
    bucket_cap_mb: float = 25,
    alpha: float = 5e-5,
    gigabytes_per_second: float = 2,
    ranks: int = 8,
    question: str = QUESTION,
) -> Explorer:
    """A backward pass of 16 layers, 64 MB of gradients, by formula. Static: too small, right, too large."""

    def draw(cap: float, latency: float, speed: float, layer: float) -> Figure:
        return bucket_plan([cap], latency, 1e-9 / speed, ranks, Model(seconds=layer))

    caps, latencies = sorted({*CAPS, bucket_cap_mb}), sorted({*LATENCIES, alpha})
    controls = {
        "cap": slider("bucket_cap_mb", [(f"{cap:g} MB", cap) for cap in caps], bucket_cap_mb),
        "latency": slider("latency α", [(seconds_text(a), a) for a in latencies], alpha),
        "speed": slider(
            "bandwidth 1/β", [(f"{s:g} GB/s", s) for s in sorted({*SPEEDS, gigabytes_per_second})], gigabytes_per_second
        ),
        "layer": slider("backward, a layer", [(seconds_text(s), s) for s in BACKWARD], 5e-3),
    }
    picture = bucket_plan(STATIC, alpha, 1e-9 / gigabytes_per_second, ranks)
    return explorer(question, picture, draw, controls)
