"""Which threads of this rank are blocked, and which could still start some communication.

A rank takes part in a deadlock only when none of its threads can go on. Threads that wait in a
communication call leave a mark. A sampler looks a few times a second and puts on the board what it finds waiting
(nearly all waits are over before, and cost no more than the mark). It also looks at the other threads:

- One that runs the learner's code is free, unless it sits in a lock or a join without a time-out (then
  it waits for a thread of this same rank). Threads that run no code of the learner's (progress bars,
  pin-memory threads) don't count.
- The main thread may stand in torch's own C++ code (DDP's reducer waits inside `backward`). That is a
  wait when it stays in the same place for a second, using no processor time; whether it is for good,
  the number of collectives that torch has started tells (`watch.py`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from picolib.launch.board import OPAQUE, WAITS
from picolib.launch.others import collector_stands_still
from picolib.launch.places import LEARNER, find_place, kind_of
from picolib.launch.writer import Writer

_SAMPLE_SECONDS = 0.2
_OPAQUE_SECONDS = 1.0
_OPAQUE_INDEX = WAITS - 1
_TORCH = torch.__path__[0]
_OPAQUE_FILES = tuple(
    os.path.join(_TORCH, *path.split("/"))
    for path in ("autograd/graph.py", "nn/parallel/distributed.py", "_ops.py", "distributed/distributed_c10d.py")
)
_LOCK_MODULES = ("threading.py", "queue.py", "_base.py", "thread.py")
_LOCK_CALLS = ("join", "wait", "get", "put", "result", "_wait_for_tstate_lock", "acquire", "__enter__", "shutdown")

Mark = tuple[Any, float]  # what a thread waits for, and since when (time.monotonic())


class Threads:
    """The rank's table of blocked threads, and the sampler that fills in what calls can't tell."""

    def __init__(self, writer: Writer, issued: Callable[[], int] = lambda: 0) -> None:
        self.writer = writer
        self.issued = issued
        self.lock = threading.RLock()
        self.main = threading.main_thread().ident
        self.ours = {t.ident for t in threading.enumerate()} - {threading.get_ident()}  # the launcher's own threads
        self.marks: dict[int, Mark] = {}  # by thread: what it waits for in a communication call
        self.shown: dict[int, Mark] = {}  # those of them that are on the board
        self.index: dict[int, int] = {}  # by thread: its place in the board's table
        self.stands_in: tuple | None = None
        self.since = self.sampled = time.monotonic()
        self.used = 0.0
        self.opaque = False
        self.stopped = threading.Event()
        self.sampler = threading.Thread(target=self._sample, name="picolib-threads", daemon=True)
        self.sampler.start()
        self.ours.add(self.sampler.ident)
        self.alone = threading.active_count()

    def begin(self, what: Any) -> Mark | None:
        """The calling thread is blocked from now on, on something with a method `on_board()`.

        Returns what it was blocked on already (a wait that looks after others meanwhile), for `end`.
        """
        me = threading.get_ident()
        before = self.marks.get(me)
        self.marks[me] = (what, time.monotonic())
        return before

    def end(self, before: Mark | None) -> None:
        """The calling thread runs again; or it is blocked as before."""
        me = threading.get_ident()
        if before is None:
            del self.marks[me]
        else:
            self.marks[me] = before
        if me in self.shown:
            with self.lock:
                self._hide(me)

    def _show_marks(self) -> None:
        """Put on the board who is blocked now.

        A thread may go on just then. It takes its mark away first and looks at `shown` after that; here it is the
        other way round: so one of the two sees the other, and a wait that is over does not stay on the board.
        """
        new = {ident: mark for ident, mark in dict(self.marks).items() if self.shown.get(ident) is not mark}
        self.shown.update(new)
        if self.shown or self.opaque:
            self.writer.set_free_threads(self._count_free())
        for ident, mark in new.items():
            what, since = mark
            index = self._index_of(ident)
            if index is not None:
                *fields, place = what.on_board()
                self.writer.begin_wait(index, *fields, self.writer.text(place), since)
            if self.marks.get(ident) is not mark:
                self._hide(ident)

    def _hide(self, ident: int) -> None:
        if self.shown.pop(ident, None) is None:
            return
        if self.shown or self.opaque:
            self.writer.set_free_threads(1)
        if ident in self.index:
            self.writer.end_wait(self.index[ident])

    def _index_of(self, ident: int) -> int | None:
        """The thread's place in the board's table; None when it is full (then the rank never counts as blocked)."""
        if ident in self.index:
            return self.index[ident]
        if len(self.index) == _OPAQUE_INDEX:
            alive = {*self.shown, *(thread.ident for thread in threading.enumerate())}
            self.index = {i: n for i, n in self.index.items() if i in alive}
        unused = set(range(_OPAQUE_INDEX)) - set(self.index.values())
        if not unused:
            self.writer.set_free_threads(1)
            return None
        self.index[ident] = min(unused)
        return self.index[ident]

    def _count_free(self) -> int:
        """Threads that may still communicate. picolib's own, which run no learner's code, are left out by name."""
        ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith("picolib-")}
        skipped = {*ours, *self.ours, *self.shown, *([self.main] if self.opaque else [])}
        with collector_stands_still():
            return sum(may_communicate(f) for ident, f in sys._current_frames().items() if ident not in skipped)

    def stop(self) -> None:
        """End the sampler; the board may go afterwards."""
        self.stopped.set()
        self.sampler.join()

    def _sample(self) -> None:
        while not self.stopped.wait(_SAMPLE_SECONDS):
            with self.lock, collector_stands_still():
                self._look_at_main()
                self._show_marks()
                self.writer.set_issued(self.issued())

    def _look_at_main(self) -> None:
        """Note when the main thread has stood in torch's own code for a while."""
        frame = sys._current_frames().get(self.main)
        stands_in = (id(frame), frame.f_lasti, self.issued()) if frame is not None and self._could_wait(frame) else None
        now, used = time.monotonic(), time.process_time()
        if stands_in is None or stands_in != self.stands_in or used - self.used > 0.1 * (now - self.sampled):
            self.since = now
        self.stands_in, self.used, self.sampled = stands_in, used, now
        opaque = now - self.since >= _OPAQUE_SECONDS
        if opaque != self.opaque:
            self._set_opaque(opaque, frame)

    def _could_wait(self, frame: FrameType) -> bool:
        """Whether this innermost frame of the main thread is one in which torch communicates by itself."""
        return (
            self.main not in self.marks
            and frame.f_code.co_filename.endswith(_OPAQUE_FILES)
            and not torch.cuda.is_initialized()
        )

    def _set_opaque(self, opaque: bool, frame: FrameType | None) -> None:
        self.opaque = opaque
        if opaque:
            place = self.writer.text(find_place(frame=frame).text)
            self.writer.set_free_threads(self._count_free())
            self.writer.begin_wait(_OPAQUE_INDEX, OPAQUE, 0, self.issued(), 0, 0, place)
        else:
            self.writer.end_wait(_OPAQUE_INDEX)


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
