"""A rank's life: from the fork to its result."""

from __future__ import annotations

import datetime
import faulthandler
import io
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from picolib.launch import environment, monitor, network, nodes, pickling, pretending, staging, uses, wire
from picolib.launch.board import Board
from picolib.launch.frames import describe_exception

GIVE_UP = datetime.timedelta(days=1)  # the kernel ends a run that stands still; gloo's own time-outs never should


class NoInput(io.TextIOBase):
    """Stands where stdin was: a rank that waits for a keyboard would wait for ever."""

    def readable(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:
        raise RuntimeError("ranks have no stdin: input() and breakpoint() cannot work here; pass the value as argument")

    read = readline  # type: ignore[assignment]


def live(request: dict[str, Any], rank: int, control: Any, payload: memoryview, board: int | None = None) -> None:
    """Do this rank's part of the run and tell the kernel how it went. Raises nothing.

    Args:
        control: a connection to the kernel with `sendall` and `recv`.
        payload: the serialised call.
        board: file descriptor of the board; None without.
    """
    request["start"] = {}
    me = os.getpid()
    try:
        value = _work(request, rank, control, payload, board)
        kind, pieces = b"R", _result(value, request["options"])
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: whatever ends a rank is told to the kernel
        _leave_if_forked(me, error)
        kind, pieces = b"E", wire.encode_plain(describe_exception(error))
    _flush()
    _send_report(control, request)
    wire.send_frame(control, kind, pieces)
    # Teardown is agreed: another rank may still need this one's sockets, so the kernel says when to leave.
    control.recv(1)
    _flush()


def _leave_if_forked(rank: int, error: BaseException | None = None) -> None:
    """End a copy that the learner's function has forked and let run on: the rank itself speaks with the kernel."""
    if os.getpid() == rank:
        return
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code & 255 if isinstance(code, int) else int(code is not None))


def _flush() -> None:
    """Send what was printed; the learner's function may have closed the streams or their descriptors."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass


def _work(request: dict[str, Any], rank: int, control: Any, payload: memoryview, board: int | None) -> Any:
    options, world_size, start = request["options"], request["world_size"], request["start"]
    # Whatever multiprocessing puts into temporary files goes with the run's own folder.
    multiprocessing.current_process()._config["tempdir"] = os.path.dirname(request["store"])  # type: ignore
    torch.set_num_threads(request["threads"])
    if request.get("gpus"):
        torch.cuda.set_device(rank % request["gpus"])
        if request["backend"] == "gloo":
            staging.install()
    start["resident"] = resident_bytes("VmRSS")
    join(request["store"], rank, world_size, request["backend"])
    slow_motion(options, os.path.dirname(request["store"]), rank)
    shared = None if board is None else Board.attach(board, world_size)
    monitor.start(shared, rank, world_size, options.get("checked", True), options.get("trace", False))
    say_what_was_used = uses.install(request.get("use"))  # before the function arrives: it may bring names along
    fn, args = pickling.loads(payload)
    wire.send_frame(control, b"S", [])
    network.begin()
    start["clock"] = time.monotonic()
    me = os.getpid()
    value = fn(*args)
    _leave_if_forked(me)
    monitor.returned()
    if say_what_was_used and rank == 0:
        print(say_what_was_used())
    return value


def join(path: str, rank: int, world_size: int, backend: str) -> None:
    """Make the world's process group, by way of a file that only this user can read."""
    environment.use_loopback()
    store = dist.FileStore(path, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=GIVE_UP)


def slow_motion(options: Mapping[str, Any], folder: str, rank: int) -> None:
    """Links and factors of this run, if it has any."""
    network.start(options.get("links"), os.path.join(folder, "links"), rank)
    pretending.start(options.get("slow"), rank)
    if network.current is not None:
        nodes.tell(network.current.links.per_node)
        torch.set_num_threads(1)  # threads that wait for each other on a busy machine would count as real work


def _result(value: Any, options: Mapping[str, Any]) -> list[Any]:
    if options.get("results") == "plain":
        return wire.encode_plain(value)
    try:
        return pickling.dumps(value)
    except Exception as error:
        raise TypeError(f"the returned {type(value).__name__} cannot be sent back: {error}") from None


def _send_report(control: Any, request: Mapping[str, Any]) -> None:
    start = request["start"]
    report = {
        "monitor": monitor.report(),
        "seconds": time.monotonic() - start["clock"] if "clock" in start else 0.0,
        "memory": max(0, resident_bytes("VmHWM") - start.get("resident", 0)),
    }
    wire.send_frame(control, b"I", wire.encode_plain(report))


def resident_bytes(field: str) -> int:
    """This process's resident memory now ("VmRSS") or at its highest ("VmHWM"), in bytes; 0 where unknown."""
    try:
        with open("/proc/self/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith(field)), 0)
    except OSError:
        return 0


def redirect(stdout: int, stderr: int) -> None:
    """Point descriptors 0, 1, 2 and Python's streams to the kernel's pipes; os.write and sub-processes follow."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    for descriptor in {nothing, stdout, stderr} - {0, 1, 2}:
        os.close(descriptor)
    sys.stdin = NoInput()
    sys.stdout, sys.stderr = _stream(1), _stream(2)
    sys.breakpointhook = lambda *args, **kwargs: sys.stdin.readline()
    faulthandler.enable(file=2, all_threads=False)  # a crash then says in which line of the learner's code it was
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)  # and so does a rank that takes too long
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=r"torch\b")


def _stream(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True)
