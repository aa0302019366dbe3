"""Pretended compute: a rank that would be a device is busy for so long, and needs no processor for it."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable

from picolib.launch import monitor, network

LOOK_EVERY_SECONDS = 0.001

# What goes on by itself while a device computes, asked every millisecond; each answers whether it has anything to do.
beside: list[Callable[[], bool]] = []
_factor = 1.0  # of this rank, from `run(..., slow={rank: factor})`


def pretend(seconds: float, label: str = "compute") -> None:
    """Be busy for `seconds`, times this rank's factor from `run(..., slow={rank: factor})`, without any work.

        with picolib.mark("forward"):
            picolib.pretend(0.1, label="layer 1")

    A rank stands for a device, so this only sleeps, and eight ranks can pretend side by side on two cores. Messages
    and asynchronous collectives of `picolib.comm` go on meanwhile. The trace shows it as an event of kind "compute".

    Raises:
        TypeError, ValueError: `seconds` is no number, or less than 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"seconds must be a number, got {seconds!r}")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"seconds must be 0 or more and finite, got {seconds!r}")
    start = monitor.now()
    end = start + seconds * _factor
    look_after_others_until(end)
    if network.current is not None:
        network.current.clock.set(end)
    monitor.compute(label, start, end)


def look_after_others_until(moment: float) -> None:
    """Sleep until `time.monotonic()` is `moment`, and keep asynchronous collectives going."""
    # A list, not a generator: all of them look, whatever the first one says.
    while any([look() for look in beside]) and (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_EVERY_SECONDS))
        monitor.goes_on()
    network.sleep_until(moment)


def start(factors: list[float] | None, rank: int) -> None:
    """Called once in each rank, before the learner's function."""
    global _factor
    _factor = 1.0 if factors is None else factors[rank]
