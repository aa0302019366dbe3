"""What surrounds a call in which this rank blocks: it is noted on the board, and in the trace as an event "wait"."""

from __future__ import annotations

import time

from picolib.launch.announce import Announcer
from picolib.launch.trace import Recorder


class Waiting:
    """Context manager: the calling thread is blocked on one thing."""

    __slots__ = ("announcer", "what", "place", "thread")

    def __init__(self, announcer: Announcer | None, what: tuple[int, int, int, int, int] | None, place: str) -> None:
        self.announcer, self.what, self.place = announcer, what, place

    def __enter__(self) -> Waiting:
        self.thread = None
        if self.announcer is not None and self.what is not None:
            text = self.announcer.writer.text(self.place)
            self.thread = self.announcer.threads.begin(*self.what, text)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.thread is not None:
            self.announcer.threads.end(self.thread)


NOT_BLOCKED = Waiting(None, None, "")


class Timed:
    """Context manager around another one: the time inside is an event of kind "wait"."""

    __slots__ = ("recorder", "label", "inner", "start")

    def __init__(self, recorder: Recorder, label: str, inner: Waiting) -> None:
        self.recorder, self.label, self.inner = recorder, label, inner

    def __enter__(self) -> None:
        self.start = time.monotonic()
        self.inner.__enter__()

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)
        self.recorder.event("wait", self.start, label=self.label)
