"""A rank's clock in slow motion.

All ranks of a run share one clock, `time.monotonic()`: on Linux and macOS it counts for the whole system. But a
laptop runs eight ranks on two cores, so a rank may wake up some milliseconds after its message has arrived, and over
many steps that would add up. So a rank goes by the time at which things were *due*: when a message was to arrive,
when pretended compute was to end. The real time never comes before it, since every wait sleeps until then.
"""

from __future__ import annotations

import threading
import time

FREE_WORK_SECONDS = 0.005  # processor time between two events up to here is the simulation's own, and counts nothing
# A rank that lags behind its plan by more than this is taken to have done something real. Not less: where many programs
# share few cores, lateness of some 10 ms a step adds up over the steps of a ring.
LATE_SECONDS = 0.2


class Clock:
    """What time it is for a rank, or for a collective that goes on beside it. Seconds of `time.monotonic()`.

    Between two events the clock stands still, but for real work: processor time beyond 5 ms (`counts_work`) of the
    thread that saw the last one, and all that takes the rank more than 0.2 s past its plan.
    """

    __slots__ = ("due", "counts_work", "_thread", "_used")

    def __init__(self, start: float | None = None, counts_work: bool = True) -> None:
        self.counts_work = counts_work
        self.set(time.monotonic() if start is None else start)

    def now(self) -> float:
        """The planned time; never after the real one."""
        real = time.monotonic()
        counts = self.counts_work and self._thread == threading.get_ident()  # each thread has a time of its own
        work = max(0.0, time.thread_time() - self._used - FREE_WORK_SECONDS) if counts else 0.0
        return min(real, max(self.due + work, real - LATE_SECONDS))

    def set(self, due: float) -> None:
        """It was to be this late now: something that was waited for has happened."""
        self.due = due
        self._thread, self._used = threading.get_ident(), time.thread_time()

    def reach(self, due: float) -> None:
        """Something happened at `due`; a clock that is past it stays as it is."""
        self.set(max(self.now(), due))
