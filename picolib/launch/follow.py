"""The kernel's loop over what ranks send, until all of them have ended and the outcome is known."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

from picolib.launch import frames, interrupts, pickling, processes, threads, wire, wording
from picolib.launch.errors import DeadlockError, MismatchError, RankError, RankTimeout, RunError, RunInterrupted
from picolib.launch.failures import Failures
from picolib.launch.output import Output
from picolib.launch.results import Run
from picolib.launch.trace import Trace

POLL = 0.1  # seconds between two looks at the board
START = 120.0  # seconds for ranks to import torch and find each other
PATIENCE = 5.0  # seconds for ranks to leave


class Following:
    """One run, as the kernel sees it."""

    def __init__(self, ranks: Any, request: Mapping[str, Any], watcher: Any, limits: tuple[float, float | None]):
        self.ranks, self.watcher = ranks, watcher
        self.timeout, self.max_seconds = limits
        self.world_size: int = request["world_size"]
        self.plain = request["options"].get("results") == "plain"
        self.output = Output(self.world_size)
        self.failures = Failures(self.world_size)
        self.results: dict[int, Any] = {}
        self.reports: dict[int, Any] = {}
        self.oom_kills = threads.oom_kills()
        self.started = self.moved = time.monotonic()
        self.looked = 0.0
        self.ready: set[int] = set()
        self.board_progress = -1
        self.decided = False

    def to_the_end(self) -> Run | BaseException:
        """Follow the run; what it gave, or the exception that explains it. Afterwards no rank is left."""
        try:
            outcome = self._outcome()
        except KeyboardInterrupt:
            outcome = self._interrupted()
        except Exception as error:  # such as a value that cannot be restored here
            outcome = error
        self._end(kill=not isinstance(outcome, Run))
        try:
            interrupts.check()
        except KeyboardInterrupt:  # it came while the ranks were seen out
            outcome = self._interrupted()
        if isinstance(outcome, Run):
            outcome.stdout = self.output.texts()
        return outcome

    def _interrupted(self) -> RunInterrupted:
        return RunInterrupted(f"Interrupted: {wording.ranks(range(self.world_size))} ended.")

    def _outcome(self) -> Run | RunError:
        while len(self.results) < self.world_size:
            self._step(POLL)
            interrupts.check()
            error = self._trouble()
            if error is not None:
                return error
        reports = [self.reports[rank] for rank in range(self.world_size)]
        return Run(
            [self.results[rank] for rank in range(self.world_size)],
            seconds=time.monotonic() - self.started,
            peak_memory=[report["memory"] for report in reports],
            trace=Trace(self.world_size, [report["monitor"] for report in reports]),
        )

    def _step(self, seconds: float) -> None:
        for kind, rank, what in self.ranks.events(seconds):
            self.moved = time.monotonic()
            if kind in ("out", "err"):
                self.output.feed(kind, rank, what)
            elif kind == "frame":
                if not self.decided:
                    self._hear(rank, *what)
            elif rank not in self.results:
                self.failures.died(rank, what)

    def _hear(self, rank: int, kind: bytes, body: memoryview) -> None:
        try:
            self._take(rank, kind, body)
        except Exception as error:
            if kind == b"R":
                what = f"returned a value that cannot be restored here: {type(error).__name__}: {error}"
                raise RankError(f"rank {rank} {what}", rank) from None
            what = "sent what picolib cannot read; a process that it forked must not use its open files"
            raise RankError(f"rank {rank} {what} ({type(error).__name__}: {error})", rank) from None

    def _take(self, rank: int, kind: bytes, body: memoryview) -> None:
        if kind == b"R":
            with interrupts.allowed():  # a class of the learner's may have its own way to be restored
                self.results[rank] = wire.decode_plain(body) if self.plain else pickling.loads(body)
            self.failures.returned(rank)
        elif kind == b"E":
            self.failures.raised(rank, wire.decode_plain(body))
        elif kind == b"S":
            self.ready.add(rank)
            if len(self.ready) == self.world_size:
                self.started = time.monotonic()
        elif kind == b"I":
            self.reports[rank] = wire.decode_plain(body)
        else:
            raise ValueError(f"no frame is of kind {kind!r}")

    def _trouble(self) -> RunError | None:
        """The explanation, when something has gone wrong for good."""
        if self.failures:
            return self._failed() if self.failures.heard_enough() else None
        now = time.monotonic()
        if now < self.looked + POLL:
            return None
        self.looked = now
        self.output.tick()
        return self._board() or self._too_long(now) or self._no_memory()

    def _failed(self) -> RunError:
        self._step(0.0)
        error = self.failures.error(lambda rank: self.output.err[rank].filter, threads.oom_kills() > self.oom_kills)
        if self.watcher is None or isinstance(error, MismatchError):
            return error
        verdict = self.watcher.final(str(error))
        return error if verdict is None else _error_of(verdict)

    def _board(self) -> RunError | None:
        if self.watcher is None:
            return None
        verdict = self.watcher.poll()
        progress = self.watcher.progress()
        if progress != self.board_progress:
            self.board_progress, self.moved = progress, time.monotonic()
        return None if verdict is None else _error_of(verdict)

    def _too_long(self, now: float) -> RunError | None:
        if len(self.ready) < self.world_size:  # a cold start is nobody's fault
            return RankTimeout(f"the ranks have not started after {START:g} s") if now - self.started > START else None
        if now - self.moved > self.timeout:
            text = f"no rank got any further for {self.timeout:g} s (timeout={self.timeout:g})"
        elif self.max_seconds is not None and now - self.started > self.max_seconds:
            text = f"the run is not through after max_seconds={self.max_seconds:g}"
        else:
            return None
        return RankTimeout(text + self._where())

    def _where(self) -> str:
        """Where each rank is now, one paragraph a rank."""
        self.ranks.dump()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            self._step(0.1)
        text = ""
        for rank in range(self.world_size):
            if rank in self.results:
                text += f"\nrank {rank} has returned"
                continue
            said = self.output.err[rank].filter.stack()
            stack = frames.of_learner(said)
            if stack:
                text += f"\nrank {rank} is in\n{frames.render(stack)}"
            elif processes.is_stopped(self.ranks.processes.get(rank, 0)):
                text += f"\nrank {rank} is stopped: a signal (SIGSTOP or the like) has suspended its process"
            elif not said and hasattr(signal, "SIGUSR1"):
                text += f"\nrank {rank} does not answer when asked where it is"
        return text

    def _no_memory(self) -> RunError | None:
        """End the run while the machine still answers: what comes next is a frozen desktop, or a killed notebook."""
        free = threads.usable_memory()
        if free is None or free > threads.RESERVE:
            return None
        used = {rank: threads.resident_of(process) for rank, process in self.ranks.processes.items()}
        rank = max(used, key=lambda r: used[r], default=0)
        return RankError(
            f"memory ran out: rank {rank} used {used.get(rank, 0) / 1e9:.1f} GB, {free / 1e6:.0f} MB were left", rank
        )

    def _end(self, kill: bool) -> None:
        """See all ranks out and print what they had still written."""
        self.decided = True
        if kill:
            self.ranks.kill()
        else:
            self.ranks.let_go()
        limit = time.monotonic() + PATIENCE
        while not self.ranks.ended and time.monotonic() < limit:
            self._step(POLL)
        if not self.ranks.ended:
            self.ranks.abandon()
        self._step(0.0)
        self.output.finish()


def _error_of(verdict: Any) -> RunError:
    if verdict.kind == "deadlock":
        return DeadlockError(verdict.text)
    return MismatchError(verdict.text, verdict.rank)
