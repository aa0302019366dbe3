"""`run`: start ranks, follow them, return what they return or raise what explains it."""

from __future__ import annotations

import errno
import inspect
import numbers
import operator
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from picolib.launch import backends, environment, interrupts, monitor, pickling, starting, threads, uses
from picolib.launch import links as slow_motion
from picolib.launch.errors import RunInterrupted
from picolib.launch.follow import Following
from picolib.launch.links import Links
from picolib.launch.results import Run
from picolib.launch.watch import Watcher

_one_run_at_a_time = threading.RLock()

OPTIONS = frozenset({"results"})  # what parts of picolib may ask for besides the named ones


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
    use: str | None = None,
    links: Links | None = None,
    slow: Mapping[int, float] | None = None,
    **options: Any,
) -> Run:
    """Call `fn(*args)` on `world_size` fresh ranks that share a process group, and return what each returned.

    Ranks are processes of their own: what they change is gone afterwards, the return value is the way back.

    Args:
        fn: a function, lambda, closure, partial or method; it may be defined in a notebook cell. It gets no rank
            argument: `torch.distributed.get_rank()` tells. Keyword arguments go through `functools.partial`.
        world_size: number of ranks, at least 1.
        backend: "auto", "gloo" or "nccl".
        device: "cpu", or "cuda" for ranks on GPUs.
        timeout: seconds without any progress (a message, a line of output) after which the run is ended.
        max_seconds: a bound for the whole run, in seconds.
        trace: also record when each message was sent and received.
        checked: watch the ranks' calls, and explain deadlocks and mismatches.
        use: "mine" puts what you have built and passed in the course, from `mine/` in your workspace, in the library's
            place: your collectives under torch's and picolib's, your functions in DistributedDataParallel,
            ZeroRedundancyOptimizer, fully_shard, clip_grad_norm_, tensor.parallelize and its loss. What is missing is
            the library's; rank 0 says at the end what ran. `help("picolib.course.stack")` lists them all.
        links: let messages take as long as on these `picolib.Links`: picolib's own and torch's send, recv, isend,
            irecv and batch_isend_irecv. torch's own collectives are refused, but for those that DDP's C++ code starts,
            which take no time. Times in the trace are then planned ones: a rank's clock stands still between two
            waits or pretends, except for processor time beyond 5 ms and all real time beyond 0.2 s. Only where several
            collectives compete for one link may a busy machine change their order, and so their times.
        slow: factors for what some ranks pretend to compute (`picolib.pretend`), such as {3: 1.5}.

    Raises:
        RankError: a rank raised, crashed or was killed.
        DeadlockError: the ranks wait for one another.
        MismatchError: ranks disagree about a call.
        RankTimeout: nothing moved for `timeout` seconds, or `max_seconds` are over.
        TypeError, ValueError: a wrong argument, or something that cannot be sent to ranks.
    """
    world_size = check_arguments(fn, world_size, timeout, max_seconds)
    check_options(fn, options)
    in_slow_motion = slow_motion.options(links, slow, world_size, device)
    choice = backends.choose(backend, device, world_size)
    payload = pickling.call_of(fn, args)
    threads.refuse_too_many(world_size)
    if choice.note:
        print(choice.note)
    request = {
        "world_size": world_size,
        "backend": choice.backend,
        "gpus": choice.gpus,
        "threads": threads.threads_per_rank(world_size),
        "surroundings": environment.of_kernel(),
        "use": uses.gather(use),
        "options": {**options, **in_slow_motion, "trace": trace, "checked": checked},
    }
    with _one_run_at_a_time, interrupts.held():
        outcome = _attempt(request, payload, (timeout, max_seconds))
    if isinstance(outcome, Run):
        return outcome
    raise outcome from None


def check_arguments(fn: Any, world_size: Any, timeout: Any, max_seconds: Any) -> int:
    """Refuse what cannot be meant, each in one sentence; the world size as a plain number."""
    if monitor.observer() is not None:
        raise RuntimeError("picolib.run starts ranks from a notebook or a script; it cannot be called inside a rank")
    if not callable(fn) and callable(world_size):
        raise TypeError("fn and world_size have changed places: the function comes first, picolib.run(train, 4)")
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {type(fn).__name__}: pass `train`, not `train()`")
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        kind = "a generator (it has `yield`)" if inspect.isgeneratorfunction(fn) else "async"
        raise TypeError(f"fn must be a plain function; `{fn.__name__}` is {kind}, so calling it would run none of it")
    try:
        size = operator.index(world_size)  # also NumPy's whole numbers
    except TypeError:
        size = None
    if size is None or isinstance(world_size, bool):
        raise TypeError(f"world_size must be a whole number, got {world_size!r}")
    if size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    for name, value in (("timeout", timeout), ("max_seconds", max_seconds)):
        if value is None and name == "max_seconds":
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number of seconds, got {value!r}")
        if not value > 0:
            raise ValueError(f"{name} must be more than 0 seconds, got {value!r}")
    return size


def check_options(fn: Any, options: Mapping[str, Any]) -> None:
    """Refuse a keyword that `run` does not know: it was probably meant for `fn`."""
    for name, value in options.items():
        if name not in OPTIONS:
            called = getattr(fn, "__name__", "fn")
            way = f"functools.partial({called}, {name}=...)"
            raise TypeError(f"run has no option {name}={value!r}; an argument for `{called}` travels as {way}")


def _attempt(request: dict[str, Any], payload: list[Any], limits: tuple[float, float | None]) -> Run | BaseException:
    try:
        with _private_folder() as folder:
            request["store"] = os.path.join(folder, "store")
            with starting.ranks(request, payload) as (ranks, board):
                watcher = None if board is None else Watcher(board, request["world_size"])
                return Following(ranks, request, watcher, limits).to_the_end()
    except KeyboardInterrupt:
        return RunInterrupted("Interrupted before the ranks had started.")
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        ranks, needed = request["world_size"], threads.files_for(request["world_size"])
        return OSError(
            f"too many open files: {ranks} ranks need about {needed} beside those that are open already; "
            "raise the limit in the shell first, for example by ulimit -n 4096"
        )


@contextmanager
def _private_folder() -> Iterator[str]:
    """A folder that only this user can enter, for the ranks' rendezvous."""
    path = tempfile.mkdtemp(prefix="picolib-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
