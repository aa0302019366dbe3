"""From what failing ranks tell to one explanation: which rank failed first, how, and in which line."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from picolib.launch import frames, wording
from picolib.launch.chatter import Filter
from picolib.launch.errors import MismatchError, RankError, RunError

VICTIM = re.compile(
    r"connection (closed|reset) by peer|broken pipe|connection refused|writev|application timeout", re.I
)
NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|cannot allocate memory", re.I)
TOO_SMALL = re.compile(r"op\.preamble\.length <= op\.nbytes\D*(\d+) vs (\d+)")
SIGNALS = {
    "SIGSEGV": "crashed with a segmentation fault",
    "SIGABRT": "crashed (abort)",
    "SIGBUS": "crashed with a bus error",
    "SIGFPE": "crashed with an arithmetic error",
    "SIGILL": "crashed with an illegal instruction",
    "SIGTERM": "was terminated",
}


class Failures:
    """What has gone wrong so far in one run."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.errors: dict[int, Mapping[str, Any]] = {}
        self.deaths: dict[int, int] = {}
        self.order: list[int] = []
        self.through: set[int] = set()
        self.first = 0.0

    def __bool__(self) -> bool:
        return bool(self.order)

    def raised(self, rank: int, told: Mapping[str, Any]) -> None:
        """Rank `rank` has told of an exception (see `frames.describe_exception`)."""
        self.errors[rank] = told
        self._note(rank)

    def died(self, rank: int, code: int) -> None:
        """Rank `rank` has ended without a result; a negative code is a signal's number."""
        if rank not in self.errors:
            self.deaths[rank] = code
            self._note(rank)

    def returned(self, rank: int) -> None:
        """Rank `rank` has returned: it is neither a cause nor a victim."""
        self.through.add(rank)

    def _note(self, rank: int) -> None:
        if not self.order:
            self.first = time.monotonic()
        self.order.append(rank)

    def heard_enough(self) -> bool:
        """Whether the cause is known: a rank that lost its connection waits for the one that broke it."""
        if len(self.order) + len(self.through) >= self.world_size:
            return True
        only_victims = all(self.is_victim(rank) for rank in self.order)
        return time.monotonic() > self.first + (1.5 if only_victims else 0.1)

    def is_victim(self, rank: int) -> bool:
        """Whether this rank only noticed that another one is gone."""
        return rank in self.errors and bool(VICTIM.search(self.errors[rank]["text"]))

    def alike(self) -> list[int]:
        """The ranks that failed first, all in the same line in the same way; the cause is the lowest of them."""
        first = min(self.order, key=lambda rank: (self.is_victim(rank), self.order.index(rank)))
        return sorted(rank for rank in self.order if self._kind(rank) == self._kind(first))

    def _kind(self, rank: int) -> tuple:
        if rank in self.deaths:
            return (self.deaths[rank],)
        told = self.errors[rank]
        return (told["type"], self.is_victim(rank), *map(tuple, frames.of_learner(told["frames"])[-1:]))

    def error(self, crash: Callable[[int], Filter], out_of_memory: bool = False) -> RunError:
        """The exception to raise in the kernel.

        Args:
            crash: what a rank has written about its own crash.
            out_of_memory: the system has killed something for lack of memory during this run.
        """
        alike = self.alike()
        rank = alike[0]
        rest = "".join(f"\n{line}" for line in self._others(alike))
        if rank in self.deaths:
            text = f"rank {rank} {_decode(self.deaths[rank], crash(rank), out_of_memory)}"
            return RankError(text + rest, rank, "\n".join(crash(rank).crash))
        told = self.errors[rank]
        if "MismatchError" in told["kinds"]:
            return MismatchError(wording.relabel(told["text"]), rank, frames.full(told))
        where = frames.explain(told)
        text = f"rank {rank} {_headline(told)}" + (f"\n{where}" if where else "")
        return RankError(text + rest, rank, frames.full(told))

    def _others(self, alike: list[int]) -> Iterable[str]:
        same = alike[1:]
        if same:
            yield f"{wording.ranks(same)} failed in the same {'line' if alike[0] in self.errors else 'way'}."
        different = [rank for rank in sorted(self.order) if rank not in alike and not self.is_victim(rank)]
        for rank in different[:3]:
            told = self.errors.get(rank)
            yield f"rank {rank} failed too" + (f": {told['type']}: {told['text']}" if told else ".")
        # Whether a rank returned just before another one failed is chance, and the text should be the same every time.
        left = self.through if self.is_victim(alike[0]) else set()
        stopped = [rank for rank in range(self.world_size) if rank not in {*alike, *different[:3], *left}]
        if stopped:
            yield f"{wording.ranks(stopped)} stopped because rank {alike[0]} failed."
        if left:
            who = wording.ranks(sorted(left))
            yield f"{who} had returned and left the process group: was destroy_process_group() called too early?"


def _headline(told: Mapping[str, Any]) -> str:
    if "code" in told:
        code = told["code"]
        return f"called sys.exit({'' if code is None else repr(code)}) before returning"
    if "MemoryError" in told["kinds"] or NO_MEMORY.search(told["text"]):
        return f"ran out of memory: {told['text'] or told['type']}"
    if told["type"] == "KeyboardInterrupt":
        return "was interrupted"
    return f"failed with {told['type']}: {told['text']}" if told["text"] else f"failed with {told['type']}"


def _decode(code: int, crash: Filter, out_of_memory: bool) -> str:
    where = frames.render(frames.of_learner(crash.stack()))
    where = f"\n{where}" if where else ""
    if code >= 0:
        return f"ended (exit code {code}) before returning{where}"
    try:
        signal_name = signal.Signals(-code).name
    except ValueError:
        signal_name = f"signal {-code}"
    small = TOO_SMALL.search("\n".join(crash.crash))
    if small:
        return f"received a message of {small[1]} bytes into a buffer of {small[2]} bytes{where}"
    if signal_name == "SIGKILL":
        if out_of_memory:
            return "was killed by the system because memory ran out (SIGKILL)"
        return "was killed (SIGKILL), by hand or by the system for lack of memory"
    return f"{SIGNALS.get(signal_name, 'was ended by a signal')} ({signal_name}){where}"
