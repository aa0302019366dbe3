"""From what failing ranks tell to one explanation: which rank failed first, how, and in which line."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from picolib.launch import frames
from picolib.launch.errors import MismatchError, RankError, RunError

VICTIM_WORDS = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused")
SIGNALS = {
    "SIGSEGV": "crashed with a segmentation fault",
    "SIGABRT": "aborted",
    "SIGBUS": "crashed with a bus error",
    "SIGFPE": "crashed with an arithmetic error",
    "SIGKILL": "was killed",
    "SIGTERM": "was terminated",
}


class Failures:
    """What has gone wrong so far in one run."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.errors: dict[int, Mapping[str, Any]] = {}
        self.deaths: dict[int, int] = {}
        self.order: list[int] = []
        self.first = 0.0

    def __bool__(self) -> bool:
        return bool(self.order)

    def _note(self, rank: int) -> None:
        if not self.order:
            self.first = time.monotonic()
        if rank not in self.order:
            self.order.append(rank)

    def raised(self, rank: int, told: Mapping[str, Any]) -> None:
        """Rank `rank` has told of an exception (see `frames.describe_exception`)."""
        self.errors[rank] = told
        self._note(rank)

    def died(self, rank: int, code: int) -> None:
        """Rank `rank` has ended without a result."""
        if rank not in self.errors:
            self.deaths[rank] = code
            self._note(rank)

    def patience(self) -> float:
        """Seconds to wait after the first failure for a better explanation."""
        return 0.1 if any(not self.is_victim(rank) for rank in self.order) else 1.0

    def is_victim(self, rank: int) -> bool:
        """Whether this rank only noticed that another one is gone."""
        text = self.errors[rank]["text"].lower() if rank in self.errors else ""
        return any(words in text for words in VICTIM_WORDS)

    def cause(self) -> int:
        """The rank that failed first, victims last."""
        return min(self.order, key=lambda rank: (self.is_victim(rank), self.order.index(rank)))

    def error(self, output: Any = None) -> RunError:
        """The exception to raise in the kernel."""
        rank = self.cause()
        others = [other for other in range(self.world_size) if other != rank]
        stopped = f"\n{_name(others)} stopped because rank {rank} failed." if others else ""
        if rank in self.deaths:
            return RankError(f"rank {rank} {_decode(self.deaths[rank])}{stopped}", rank)
        told = self.errors[rank]
        kind = MismatchError if "MismatchError" in told["kinds"] else RankError
        where = frames.render(told)
        text = f"rank {rank} failed with {told['type']}: {told['text']}\n{where}{stopped}"
        return kind(text, rank, frames.render(told, full=True) + f"\n{told['type']}: {told['text']}")


def _decode(code: int) -> str:
    if code >= 0:
        return f"ended (exit code {code}) before returning"
    name = signal.Signals(-code).name
    return f"{SIGNALS.get(name, 'ended by a signal')} ({name})"


def _name(ranks: Sequence[int]) -> str:
    """ "ranks 0-2, 4" for a list of ranks."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return "ranks " + ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
