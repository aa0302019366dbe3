"""What surrounds a call in which this rank blocks: it is noted on the board, and in the trace as an event "wait"."""

from __future__ import annotations

from picolib.launch.trace import Recorder
from picolib.launch.waiting import Threads


class Waiting:
    """Context manager: the calling thread is blocked on one thing."""

    __slots__ = ("threads", "what", "place", "before")

    def __init__(self, threads: Threads | None, what: tuple[int, int, int, int, int], place: str) -> None:
        self.threads, self.what, self.place = threads, what, place

    def __enter__(self) -> None:
        if self.threads is not None:
            self.before = self.threads.begin(self)

    def __exit__(self, *exc: object) -> None:
        if self.threads is not None:
            self.threads.end(self.before)

    def on_board(self) -> tuple[int, int, int, int, int, str]:
        """The fields of a wait (`slot.Wait`), the last one as text."""
        return (*self.what, self.place)


NOT_BLOCKED = Waiting(None, (0, 0, 0, 0, 0), "")


class Timed:
    """Context manager around another one: the time inside is an event of kind "wait"."""

    __slots__ = ("recorder", "label", "inner", "start")

    def __init__(self, recorder: Recorder, label: str, inner: Waiting) -> None:
        self.recorder, self.label, self.inner = recorder, label, inner

    def __enter__(self) -> None:
        self.start = self.recorder.now()
        self.inner.__enter__()

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)
        self.recorder.event("wait", self.start, label=self.label)
