"""The learning rate of each step: a linear warm-up, then half a cosine down (Loshchilov & Hutter 2017, equation 5)."""

from __future__ import annotations

import math


def learning_rate(step: int, *, steps: int, peak: float, warm_up: int = 0, final: float = 0.0) -> float:
    """The rate of `step` (the first is 0) in a run of `steps`.

        step < warm_up:          peak * (step + 1) / (warm_up + 1), so that step `warm_up` reaches the peak
        warm_up <= step < steps: final + (peak - final) * (1 + cos(pi * progress)) / 2, progress from 0 to 1
        step >= steps:           final

    It depends on nothing but its arguments: every rank knows the rate of every step, also after a restart.
    """
    if not 0 <= warm_up <= steps:
        raise ValueError(f"warm_up={warm_up} must be from 0 to steps={steps}.")
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)
    if step >= steps:
        return final
    progress = (step - warm_up) / (steps - warm_up)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2
