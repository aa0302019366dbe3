"""What a run can end with instead of results. The text of each error is the explanation; notebooks show it alone."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run ended without results; `str(error)` says why."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the explanation, without the launcher's own frames."""
        return str(self).split("\n")


class RankError(RunError):
    """A rank raised, crashed or was killed.

    Attributes:
        rank: the first rank that failed.
        traceback: its full traceback as text (empty when it died without one).
    """

    def __init__(self, text: str, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.traceback = traceback


class DeadlockError(RunError):
    """Ranks wait for one another and nobody can ever answer; the text says who waits for whom, and where."""


class RankTimeout(RunError):
    """Nothing moved for `timeout` seconds, or the run took longer than `max_seconds`."""


class MismatchError(RunError):
    """Ranks disagree about a call (operation, shape, dtype, size) in a way that the backend would let pass.

    Raised inside the rank that notices, and again by `run` in the kernel.
    """

    def __init__(self, text: str, rank: int | None = None, traceback: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.traceback = traceback


class RunInterrupted(KeyboardInterrupt):
    """The run was interrupted (the stop button, Ctrl-C); all ranks have been ended."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
