"""Ranks without fork (Windows, or where the fork server's self-test fails): new processes, kept warm between runs.

A warm process is used again only after a run without an error. Each has four pipes: commands in, stdout, stderr and
results out. Windows cannot wait for several pipes at once, so one thread reads each.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from picolib.launch import environment, wire
from picolib.launch.worker import END

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from picolib.launch import worker; worker.main(int(sys.argv[1]))"
)
Event = tuple[str, int, Any]


class Worker:
    """One spawned process and the threads that read from it."""

    def __init__(self) -> None:
        self.sink: queue.SimpleQueue[tuple[str, Worker, Any]] = queue.SimpleQueue()
        results, theirs = os.pipe()
        with _inherited(theirs) as (number, options):
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(number), json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment.without_launcher(os.environ),
                **options,
            )
        os.close(theirs)
        self.results = os.fdopen(results, "rb", buffering=0)
        self._readers = [
            threading.Thread(target=target, args=arguments, daemon=True)
            for target, arguments in (
                (self._read_output, ("out", self.process.stdout)),
                (self._read_output, ("err", self.process.stderr)),
                (self._read_results, ()),
            )
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self, kind: str, pipe: Any) -> None:
        held = b""
        while data := pipe.read(1 << 16):
            held += data
            if END in held:
                text, held = held.split(END, 1)
                self.sink.put((kind, self, text))
                self.sink.put(("end", self, kind))
            elif not END.startswith(held[held.rfind(b"\0") :]) or b"\0" not in held:
                self.sink.put((kind, self, held))
                held = b""
        self.sink.put((kind, self, held))
        self.sink.put(("end", self, kind))

    def _read_results(self) -> None:
        reader = wire.FrameReader()
        try:
            while True:
                frame = reader.read(_Readable(self.results))
                self.sink.put(("frame", self, frame))  # only now: a new run brings a new sink
        except (EOFError, OSError, wire.GarbledError) as error:
            if isinstance(error, wire.GarbledError):
                self.sink.put(("frame", self, (wire.GARBLED, memoryview(b""))))
            code = self.process.wait()
            self.sink.put(("exit", self, code))

    def tell(self, kind: bytes, pieces: list[Any]) -> None:
        """Send one frame to the process; a process that is gone is heard of otherwise."""
        try:
            wire.send_frame(_Writable(self.process.stdin), kind, pieces)
        except OSError:
            pass

    def kill(self) -> None:
        """End the process and what it has started."""
        try:
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        except (ProcessLookupError, PermissionError):
            pass

    def close(self) -> None:
        """After the process has ended: give back threads and pipes."""
        self.process.wait()
        for reader in self._readers:
            reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr, self.results):
            try:
                pipe.close()
            except OSError:  # the last bytes for a process that is gone
                pass


class _inherited:
    """Hand one descriptor to a new process: its number over there, and Popen's options."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __enter__(self) -> tuple[int, dict[str, Any]]:
        if os.name != "nt":
            return self.descriptor, {"pass_fds": [self.descriptor], "start_new_session": True}
        import msvcrt

        handle = msvcrt.get_osfhandle(self.descriptor)
        os.set_handle_inheritable(handle, True)
        startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})
        return handle, {"startupinfo": startup, "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

    def __exit__(self, *exc: object) -> None:
        pass


class _Readable:
    def __init__(self, file: Any) -> None:
        self.recv_into = file.readinto


class _Writable:
    def __init__(self, file: Any) -> None:
        self._file = file

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            view = view[self._file.write(view) :]


_idle: list[Worker] = []


def end_idle() -> None:
    """End the warm processes that wait for a next run."""
    while _idle:
        worker = _idle.pop()
        worker.kill()
        worker.close()


class SpawnedRanks:
    """The ranks of one run; the same methods as `forked.ForkedRanks`."""

    def __init__(self, request: dict[str, Any], payload: list[Any]) -> None:
        self.world_size = request["world_size"]
        self.ended = False
        self._sink: queue.SimpleQueue[tuple[str, Worker, Any]] = queue.SimpleQueue()
        self._open = {(rank, kind) for rank in range(self.world_size) for kind in ("out", "err")}
        self._failed = False
        alive = [_idle.pop() for _ in range(min(len(_idle), self.world_size))]
        self.workers = [worker for worker in alive if worker.process.poll() is None]
        self.workers += [Worker() for _ in range(self.world_size - len(self.workers))]
        self.ranks = {worker: rank for rank, worker in enumerate(self.workers)}
        self.processes = {rank: worker.process.pid for worker, rank in self.ranks.items()}
        call = b"".join(bytes(piece) for piece in payload)
        for worker, rank in self.ranks.items():
            worker.sink = self._sink
            head = json.dumps({**request, "rank": rank}).encode()
            worker.tell(b"Q", wire.pack(head, [call]))

    def events(self, seconds: float) -> Iterator[Event]:
        """What has happened, waiting up to `seconds` for the first event."""
        wait = seconds
        while True:  # also when all pipes have ended: how a process ended is told last
            try:
                kind, worker, what = self._sink.get(timeout=wait) if wait else self._sink.get_nowait()
            except queue.Empty:
                return
            wait = 0.0
            rank = self.ranks[worker]
            if kind == "end":
                self._open.discard((rank, what))
                self.ended = not self._open
            elif kind != "exit" or not self._failed:
                yield kind, rank, what

    def let_go(self) -> None:
        """Tell the ranks that everybody is done: they may leave the group and wait for the next run."""
        for worker in self.workers:
            worker.tell(b"X", [b""])

    def dump(self) -> None:
        """Make all ranks write on their stderr where they are (not on Windows)."""
        for worker in self.workers:
            if hasattr(signal, "SIGUSR1") and worker.process.poll() is None:
                os.kill(worker.process.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End all ranks and what they have started."""
        self._failed = True
        for worker in self.workers:
            worker.kill()

    abandon = kill

    def close(self) -> None:
        """Keep the processes of a good run for the next one; end those of a bad one."""
        if self.ended and not self._failed:
            _idle.extend(self.workers)
            return
        self.kill()
        for worker in self.workers:
            worker.close()
