"""Which threads of this rank are blocked, and which could still start some communication.

A rank takes part in a deadlock only when none of its threads can go on. Threads that wait in a
communication call say so on the board. The others are looked at: one that runs the learner's code is
free, unless it sits in a lock or a join without a time-out (then it waits for a thread of this same
rank). Threads that run no code of the learner's (progress bars, pin-memory threads) don't count.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from picolib.launch.board import WAITS
from picolib.launch.places import LEARNER, kind_of
from picolib.launch.slot import Text, Writer

_SAMPLE_SECONDS = 0.1
_LOCK_MODULES = ("threading.py", "queue.py", "_base.py", "thread.py")
_LOCK_CALLS = ("join", "wait", "get", "put", "result", "_wait_for_tstate_lock", "acquire", "__enter__", "shutdown")


class Threads:
    """The rank's table of blocked threads."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.lock = threading.RLock()
        self.ours = {t.ident for t in threading.enumerate()} - {threading.get_ident()}  # the launcher's own threads
        self.alone = 1 + len(self.ours)
        self.index: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.sampler: threading.Thread | None = None

    def begin(self, kind: int, channel: int, number: int, peer: int, index: int, place: Text) -> int | None:
        """The calling thread is blocked from now on; None when the table is full."""
        me = threading.get_ident()
        with self.lock:
            thread = self._index_of(me)
            if thread is None:
                return None
            self.waiting.add(me)
            if self.sampler is not None or threading.active_count() > self.alone:
                self._watch_other_threads()
            self.writer.begin_wait(thread, kind, channel, number, peer, index, place)
            return thread

    def end(self, thread: int) -> None:
        """The calling thread runs again."""
        with self.lock:
            self.waiting.discard(threading.get_ident())
            if self.sampler is not None:
                self.writer.set_free_threads(1)
            self.writer.end_wait(thread)

    def _index_of(self, ident: int) -> int | None:
        if ident not in self.index:
            if len(self.index) == WAITS:
                alive = sys._current_frames()
                self.index = {i: n for i, n in self.index.items() if i in alive}
            unused = set(range(WAITS)) - set(self.index.values())
            if not unused:
                self.writer.set_free_threads(1)
                return None
            self.index[ident] = min(unused)
        return self.index[ident]

    def _watch_other_threads(self) -> None:
        """Count now, and keep counting: a thread that blocks in a lock tells nobody."""
        if self.sampler is None:
            self.sampler = threading.Thread(target=self._sample, name="picolib-threads", daemon=True)
            self.sampler.start()
            self.ours.add(self.sampler.ident)
        self.writer.set_free_threads(self._count_free())

    def _count_free(self) -> int:
        frames = sys._current_frames()
        others = [f for ident, f in frames.items() if ident not in self.waiting and ident not in self.ours]
        return sum(may_communicate(f) for f in others)

    def _sample(self) -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS)
            with self.lock:
                self.writer.set_free_threads(self._count_free())


def may_communicate(frame: FrameType | None) -> bool:
    """Whether a thread with this innermost frame runs the learner's code and isn't stuck in a lock."""
    if frame is not None and _in_endless_lock(frame):
        return False
    while frame is not None:
        if kind_of(frame.f_code.co_filename) == LEARNER:
            return True
        frame = frame.f_back
    return False


def _in_endless_lock(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_name not in _LOCK_CALLS or not code.co_filename.endswith(_LOCK_MODULES):
        return False
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_filename.endswith(_LOCK_MODULES):
        if inner.f_locals.get("timeout") not in (None, -1) or inner.f_locals.get("block") is False:
            return False
        inner = inner.f_back
    return True
