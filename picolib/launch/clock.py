"""A rank's clock in slow motion.

All ranks of a run share one clock, `time.monotonic()`: on Linux and macOS it counts for the whole system. But a
laptop runs eight ranks on two cores, so a rank may wake up some milliseconds after its message has arrived, and over
many steps that would add up. So a rank goes by the time at which things were *due*: when a message was to arrive,
when pretended compute was to end. The real time never comes before it, since every wait sleeps until then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FREE_WORK_SECONDS = 0.005  # processor time between two events up to here is the simulation's own, and counts nothing
# So long after an event a rank is taken to have done something that needs no processor of its own, such as sleeping.
# Not less: on a busy machine a rank that wants a core may have to wait for it that long.
LATE_SECONDS = 0.2


class Clock:
    """What time it is for a rank, or for a collective that goes on beside it. Seconds of `time.monotonic()`.

    Between two events a rank's clock stands still, but for real work: processor time beyond 5 ms of the thread that
    saw the last one, and all real time beyond 0.2 s. Neither counts where the rank waits (`still`), and how far it lags
    behind its plan does not either. The clock of a collective goes by events alone (`counts_work=False`).
    """

    __slots__ = ("due", "counts_work", "_thread", "_last", "_left_out", "_entered")

    def __init__(self, start: float | None = None, counts_work: bool = True) -> None:
        self.counts_work = counts_work
        self._left_out, self._entered = (0.0, 0.0), None
        self.set(time.monotonic() if start is None else start)

    def now(self) -> float:
        """The planned time; never after the real one."""
        return min(time.monotonic(), self.due + (self._work() if self.counts_work else 0.0))

    def set(self, due: float) -> None:
        """It was to be this late now: something that was waited for has happened."""
        self.due, self._thread, self._last = due, threading.get_ident(), self._spent()

    def reach(self, due: float) -> None:
        """Something happened at `due`; a clock that is past it stays as it is."""
        self.set(max(self.now(), due))

    @contextmanager
    def still(self) -> Iterator[None]:
        """What happens inside is waiting, or the network's own work: only events move the clock."""
        if self._entered is not None:
            yield
            return
        self._entered, start = self._spent(), _used()
        try:
            yield
        finally:
            self._left_out = tuple(a + b - c for a, b, c in zip(self._left_out, _used(), start, strict=True))
            self._entered = None

    def _work(self) -> float:
        """Seconds of real work since the last event."""
        real, processor = (now - then for now, then in zip(self._spent(), self._last, strict=True))
        own = self._thread == threading.get_ident()  # each thread has a processor time of its own
        return max(0.0, real - LATE_SECONDS, processor - FREE_WORK_SECONDS if own else 0.0)

    def _spent(self) -> tuple[float, float]:
        """Real and processor seconds until now, without those inside `still`."""
        return self._entered or tuple(a - b for a, b in zip(_used(), self._left_out, strict=True))


def _used() -> tuple[float, float]:
    return time.monotonic(), time.thread_time()
