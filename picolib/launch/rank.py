"""A rank's life: from the fork to its result."""

from __future__ import annotations

import datetime
import faulthandler
import io
import os
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from picolib.launch import environment, pickling, wire
from picolib.launch.frames import describe_exception

GIVE_UP = datetime.timedelta(days=1)  # the kernel ends a run that stands still; gloo's own time-outs never should


class NoInput(io.TextIOBase):
    """Stands where stdin was: a rank that waits for a keyboard would wait for ever."""

    def readable(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:
        raise RuntimeError("ranks have no stdin: input() and breakpoint() cannot work here; pass the value as argument")

    read = readline  # type: ignore[assignment]


def live(request: Mapping[str, Any], rank: int, control: Any, payload: memoryview, board: Any = None) -> None:
    """Do this rank's part of the run and tell the kernel how it went. Never raises."""
    try:
        value = _work(request, rank, payload, board)
        pieces = _result(value, request["options"])
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: whatever ends a rank is told to the kernel
        _send_report(control, request)
        wire.send_frame(control, b"E", wire.encode_plain(describe_exception(error)))
    else:
        _send_report(control, request)
        wire.send_frame(control, b"R", pieces)
    sys.stdout.flush()
    sys.stderr.flush()
    # Teardown is agreed: another rank may still need this one's sockets, so the kernel says when to leave.
    control.recv(1)


def _work(request: Mapping[str, Any], rank: int, payload: memoryview, board: Any) -> Any:
    options = request["options"]
    if request["threads"]:
        torch.set_num_threads(request["threads"])
    request["start"]["resident"] = resident_bytes("VmRSS")
    join(request["store"], rank, request["world_size"], request["backend"])
    fn, args = pickling.loads(payload)
    try:
        _monitor().start(board, rank, request["world_size"], options.get("checked", True), options.get("trace", False))
    except ImportError:
        pass
    request["start"]["clock"] = time.monotonic()
    return fn(*args)


def join(path: str, rank: int, world_size: int, backend: str) -> None:
    """Make the world's process group, by way of a file that only this user can read."""
    environment.use_loopback()
    store = dist.FileStore(path, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=GIVE_UP)


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
        "monitor": _monitor().report(),
        "seconds": time.monotonic() - start["clock"] if "clock" in start else 0.0,
        "memory": max(0, resident_bytes("VmHWM") - start.get("resident", 0)),
    }
    wire.send_frame(control, b"I", wire.encode_plain(report))


def _monitor() -> Any:
    from picolib.launch import monitor

    return monitor


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
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=r"torch\b")


def _stream(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True)
