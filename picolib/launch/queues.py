"""The queues of a run's links, in memory that all ranks share: who has booked which stretch of time.

A queue is first come, first served, and a message takes whatever is free from its start on, in pieces if need be, as
packets do. Gaps count because ranks book in the order in which the system lets them run, not in the order of their
planned times. One lock guards all queues. The system takes it back from a process that dies.

So where messages of several collectives compete for one queue, and a rank lags, who books first is chance, and planned
times then differ by up to some messages' time on that queue from run to run. Where nothing competes they are exact.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from collections.abc import Iterable
from typing import Any

from picolib.launch.slot import U64

BOOKINGS = 128  # of a queue; with more of them, the first gaps are forgotten
FORGET_SECONDS = 10.0  # a past that nobody can book any more, unless its plan lags that far behind
QUEUE_BYTES = 8 + 16 * BOOKINGS

Booked = list[tuple[float, float]]  # start and end of each stretch, sorted


class Queues:
    """One rank's hand on all queues, which stand at the start of the memory of an open file."""

    def __init__(self, file: int, memory: Any) -> None:
        self.file, self.memory = file, memory
        self.threads = threading.Lock()  # the system's lock is one for the whole process

    def book(self, path: Iterable[int], earliest: float, seconds: float) -> float:
        """Take so many seconds of each queue on a way, from `earliest` on; return when the last byte is through.

        The first bytes go on while the others follow, so a message that finds its way free takes `seconds` in all.
        """
        end = earliest
        with self.threads, _Locked(self.file):
            for queue in path:
                booked = self._read(queue)
                pieces = free(booked, earliest, seconds)
                self._write(queue, joined(booked + pieces))
                if pieces:
                    earliest, end = pieces[0][0], max(end, pieces[-1][1])
        return end

    def _read(self, queue: int) -> Booked:
        where = queue * QUEUE_BYTES
        (count,) = U64.unpack_from(self.memory, where)
        times = struct.unpack_from(f"<{2 * count}d", self.memory, where + 8)
        old = time.monotonic() - FORGET_SECONDS
        return [pair for pair in zip(times[::2], times[1::2], strict=True) if pair[1] > old]

    def _write(self, queue: int, booked: Booked) -> None:
        where, moments = queue * QUEUE_BYTES, [moment for pair in booked for moment in pair]
        struct.pack_into(f"<{len(moments)}d", self.memory, where + 8, *moments)
        U64.pack_into(self.memory, where, len(booked))


def free(booked: Booked, earliest: float, seconds: float) -> Booked:
    """The first stretches, not before `earliest`, that are free and make so many seconds together.

    >>> free([(1.0, 2.0), (3.0, 4.0)], 0.5, 1.0)
    [(0.5, 1.0), (2.0, 2.5)]
    """
    pieces = []
    for start, end in [*booked, (math.inf, math.inf)]:
        piece = min(start - earliest, seconds)
        if piece > 0:
            pieces.append((earliest, earliest + piece))
            seconds -= piece
        if seconds <= 0:
            break
        earliest = max(earliest, end)
    return pieces


def joined(booked: Booked) -> Booked:
    """The same, sorted, with those that touch made one, and no more of them than there is room for.

    >>> joined([(3.0, 4.0), (1.0, 2.0), (2.0, 2.5)])
    [(1.0, 2.5), (3.0, 4.0)]
    """
    result: Booked = []
    for start, end in sorted(booked):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    while len(result) > BOOKINGS:
        result[:2] = [(result[0][0], result[1][1])]
    return result


class _Locked:
    """Context manager: no other process is inside."""

    def __init__(self, file: int) -> None:
        self.file = file

    if os.name == "nt":

        def __enter__(self) -> None:
            self._call("LK_LOCK")

        def __exit__(self, *exc: object) -> None:
            self._call("LK_UNLCK")

        def _call(self, mode: str) -> None:
            import msvcrt

            os.lseek(self.file, 0, os.SEEK_SET)
            msvcrt.locking(self.file, getattr(msvcrt, mode), 1)

    else:

        def __enter__(self) -> None:
            import fcntl

            fcntl.lockf(self.file, fcntl.LOCK_EX)

        def __exit__(self, *exc: object) -> None:
            import fcntl

            fcntl.lockf(self.file, fcntl.LOCK_UN)
