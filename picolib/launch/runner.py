"""`run`: start ranks, follow them, collect what they return, explain what went wrong."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from picolib.launch import environment, pickling, threads, wire
from picolib.launch.errors import RankTimeout, RunInterrupted
from picolib.launch.failures import Failures
from picolib.launch.forked import ForkedRanks, fork_server
from picolib.launch.output import Output

GRACE = 0.1  # seconds to hear from other ranks after the first failure
BYTES_PER_RANK = 15_000_000
_one_run_at_a_time = threading.RLock()


@dataclass
class Run(Sequence):
    """What a run gave: a sequence of what each rank returned.

    Attributes:
        stdout: what each rank printed, one text per rank.
        seconds: from the call of `run` to the last rank's return.
        peak_memory: for each rank, resident bytes above its own start (indicative).
        trace: who sent what to whom.
    """

    results: list[Any]
    stdout: list[str] = field(default_factory=list, repr=False)
    seconds: float = 0.0
    peak_memory: list[int] = field(default_factory=list, repr=False)
    trace: Any = field(default=None, repr=False)

    def __getitem__(self, rank: Any) -> Any:
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"Run({self.results!r})"


def run(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    backend: str = "auto",
    device: str = "cpu",
    timeout: float = 60.0,
    max_seconds: float | None = None,
    trace: bool = False,
    checked: bool = True,
    **options: Any,
) -> Run:
    """Call `fn(*args)` on `world_size` fresh ranks that share a process group, and return what each returned.

    Args:
        fn: a function, lambda, closure, partial or method; it may be defined in a notebook cell. It gets no rank
            argument: `torch.distributed.get_rank()` tells. Keyword arguments go through `functools.partial`.
        world_size: number of ranks, at least 1.
        backend: "auto", "gloo" or "nccl".
        device: "cpu", or "cuda" for ranks on GPUs.
        timeout: seconds without any progress after which the run is ended.
        max_seconds: a bound for the whole run, in seconds.
        trace: also record when each message was sent and received.
        checked: watch the ranks' calls, and explain deadlocks and mismatches.

    Raises:
        RankError: a rank raised, crashed or was killed.
        DeadlockError: the ranks wait for one another.
        MismatchError: ranks disagree about a call.
        RankTimeout: nothing moved for `timeout` seconds, or `max_seconds` are over.
        TypeError, ValueError: a wrong argument, or something that cannot be sent to ranks.
    """
    _check(fn, world_size)
    options.update(trace=trace, checked=checked)
    payload = pickling.to_file(pickling.call_of(fn, args))
    threads.refuse_too_many(world_size, BYTES_PER_RANK)
    with payload, _one_run_at_a_time, _private_folder() as folder:
        request = {
            "world_size": world_size,
            "store": os.path.join(folder, "store"),
            "backend": "gloo" if backend == "auto" else backend,
            "threads": threads.threads_per_rank(world_size),
            "surroundings": environment.of_kernel(),
            "options": options,
        }
        ranks = ForkedRanks(fork_server(), request, [payload.fileno()])
        return _Following(ranks, world_size, options, timeout, max_seconds).to_the_end()


def _check(fn: Any, world_size: Any) -> None:
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {type(fn).__name__}: pass `train`, not `train()`")
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size must be a whole number, got {world_size!r}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")


class _private_folder:
    """A folder that only this user can enter, for the ranks' rendezvous."""

    def __enter__(self) -> str:
        self.path = tempfile.mkdtemp(prefix="picolib-")
        return self.path

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class _Following:
    """The kernel's loop over what ranks send, until all have ended."""

    def __init__(self, ranks: Any, world_size: int, options: dict, timeout: float, max_seconds: float | None) -> None:
        self.ranks = ranks
        self.world_size = world_size
        self.options = options
        self.timeout, self.max_seconds = timeout, max_seconds
        self.output = Output(world_size)
        self.failures = Failures(world_size)
        self.results: dict[int, Any] = {}
        self.reports: dict[int, Any] = {}
        self.started = self.progress = time.monotonic()

    def to_the_end(self) -> Run:
        """Follow the run; return its results or raise its explanation. Afterwards no rank is left."""
        try:
            while len(self.results) < self.world_size:
                self.step(0.1)
                self.look()
            seconds = time.monotonic() - self.started
            self.ranks.let_go()
            self.drain(5.0)
        except KeyboardInterrupt:
            self.end()
            raise RunInterrupted(f"Interrupted: all {self.world_size} ranks were ended.") from None
        except BaseException:
            self.end()
            raise
        finally:
            self.ranks.close()
            self.output.print_errors()
        return Run(
            [self.results[rank] for rank in range(self.world_size)],
            self.output.texts(),
            seconds,
            [self.reports[rank]["memory"] for rank in range(self.world_size)],
        )

    def step(self, seconds: float) -> None:
        for kind, rank, what in self.ranks.events(seconds):
            self.progress = time.monotonic()
            if kind in ("out", "err"):
                self.output.feed(kind, rank, what)
            elif kind == "frame":
                self.hear(rank, *what)
            elif rank not in self.results:
                self.failures.died(rank, what)

    def hear(self, rank: int, kind: bytes, body: memoryview) -> None:
        if kind == b"R":
            plain = self.options.get("results") == "plain"
            self.results[rank] = wire.decode_plain(body) if plain else pickling.loads(body)
        elif kind == b"E":
            self.failures.raised(rank, wire.decode_plain(body))
        else:
            self.reports[rank] = wire.decode_plain(body)

    def look(self) -> None:
        """Raise when something has gone wrong."""
        now = time.monotonic()
        if self.failures and now > self.failures.first + self.failures.patience():
            self.end()
            raise self.failures.error(self.output)
        if now - self.progress > self.timeout and not self.failures:
            raise RankTimeout(f"nothing moved for {self.timeout:g} s (timeout={self.timeout:g})")
        if self.max_seconds is not None and now - self.started > self.max_seconds:
            raise RankTimeout(f"the run took longer than max_seconds={self.max_seconds:g}")

    def end(self) -> None:
        """Kill all ranks and take in what they had still written."""
        self.ranks.kill()
        self.drain(5.0)

    def drain(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while not self.ranks.ended and time.monotonic() < limit:
            self.step(0.1)
        if not self.ranks.ended:
            self.ranks.kill()
        self.step(0.0)
        for rank in range(self.world_size):
            self.output.finish(rank)


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    yield from map(str, numbers)
