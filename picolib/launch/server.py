"""The fork server: a process that has imported torch and nothing else has touched; every rank is a fresh copy of it.

It runs in a session of its own, has one thread, and never runs a tensor operation. It watches the kernel through
their socket: when the kernel is gone, however that came, it ends all ranks and removes their rendezvous folder.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
from typing import Any

from picolib.launch import preload, processes


def main(descriptor: int) -> None:
    """Serve the kernel at the other end of `descriptor` until it is gone."""
    connection = socket.socket(fileno=descriptor)
    processes.adopt_orphans()
    _import_everything()
    _test_fork()
    Server(connection).serve()


def _import_everything() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's BLAS would start threads on import

    from picolib.launch import board, instrument, monitor, pickling, rank  # noqa: F401

    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page in every rank


def assert_one_thread() -> None:
    """A fork copies one thread only: with a second one, some lock may stay locked for ever in the copy."""
    assert count_threads() == 1, f"the fork server has {count_threads()} threads; it must have one"


def count_threads() -> int:
    """All threads of this process, also those that no Python code has started (where the system tells)."""
    tasks = "/proc/self/task"
    return len(os.listdir(tasks)) if os.path.isdir(tasks) else threading.active_count()


def _test_fork() -> None:
    """Whether a copy can compute; on some systems libraries crash after a fork. Then the kernel spawns ranks."""
    assert_one_thread()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            import torch

            signal.alarm(10)
            a = torch.ones(64, 64)
            code = 0 if float((a @ a).sum()) == 64.0**3 else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    if status != 0:
        sys.exit("a forked copy of torch cannot compute here")


class Server:
    """One kernel, one run at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.kernel = os.getppid()
        self.ranks: dict[int, int] = {}  # process id -> rank
        self.folder: str | None = None
        self.preload = preload.Preload()
        self.idle_after = -1  # milliseconds without a request until there is time for something else; -1: never
        self.wake, wake = os.pipe()
        for descriptor in (self.wake, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Until the kernel closes its end, or is no longer this process's parent."""
        poller = select.poll()
        for descriptor in (self.connection.fileno(), self.wake):
            poller.register(descriptor, select.POLLIN)
        try:
            self.tell({"ready": True})
            while os.getppid() == self.kernel:
                ready = dict(poller.poll(self.idle_after if self.idle_after > 0 else 1000))
                self.reap()
                if self.connection.fileno() in ready:
                    self.obey()
                elif not ready and not self.ranks and self.idle_after > 0:
                    self.use_the_time()
        except (EOFError, OSError):  # the kernel is gone
            pass
        finally:
            self.end_ranks()

    def use_the_time(self) -> None:
        """Import something that later ranks may need; start this process anew should that have started a thread."""
        if not self.preload.left:
            self.idle_after = -1
            return
        self.idle_after = 10
        self.preload.step()
        if count_threads() > 1:
            os.environ[preload.VARIABLE] = ""
            os.set_inheritable(self.connection.fileno(), True)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def tell(self, message: dict[str, Any]) -> None:
        """One line of JSON to the kernel."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def obey(self) -> None:
        """Read one request and do it."""
        size = int.from_bytes(_exactly(self.connection, 4), "little")
        request = json.loads(_exactly(self.connection, size))
        if request["do"] == "run":
            self.start(request)
        else:
            self.signal_ranks(signal.SIGUSR1 if request["do"] == "dump" else signal.SIGKILL)

    def start(self, request: dict[str, Any]) -> None:
        """Fork the ranks of one run."""
        from picolib.launch import environment

        self.folder = os.path.dirname(request["store"])
        environment.take_over(request["surroundings"])
        shared = _descriptors(self.connection, request["shared"])
        assert_one_thread()
        for rank in range(request["world_size"]):
            own = _descriptors(self.connection, 3)
            process = os.fork()
            if process == 0:
                _be_a_rank(self, request, rank, shared, own)
            self.ranks[process] = rank
            for descriptor in own:
                os.close(descriptor)
        for descriptor in shared:
            os.close(descriptor)
        self.tell({"processes": {rank: process for process, rank in self.ranks.items()}})

    def reap(self) -> None:
        """Tell the kernel which ranks have ended and how; after the last one, end whatever they left behind."""
        try:
            os.read(self.wake, 512)
        except BlockingIOError:
            pass
        if not self.ranks:
            return
        for process in list(self.ranks):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                self.tell({"exit": [self.ranks.pop(process), os.waitstatus_to_exitcode(status)]})
        if not self.ranks:
            processes.end_children()
            self.tell({"ended": True})
            self.idle_after = 1 if self.preload.is_urgent() else 1000

    def signal_ranks(self, number: int) -> None:
        """Send a signal to all living ranks."""
        for process in self.ranks:
            processes.send(process, number)

    def end_ranks(self) -> None:
        """Leave nothing behind."""
        self.signal_ranks(signal.SIGKILL)
        for process in self.ranks:
            os.waitpid(process, 0)
        processes.end_children()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def _descriptors(connection: socket.socket, count: int) -> list[int]:
    """Descriptors that the kernel sends with one byte."""
    data, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    if not data:
        raise EOFError
    return descriptors


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _be_a_rank(server: Server, request: dict[str, Any], rank: int, shared: list[int], own: list[int]) -> None:
    """In the child: live a rank's life, then leave without running the server's own clean-up."""
    code = 1
    try:
        processes.become_a_rank()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server.connection.close()
        os.close(server.wake)
        gc.enable()
        from picolib.launch import pickling
        from picolib.launch import rank as life

        control = socket.socket(fileno=own[0])
        os.register_at_fork(after_in_child=control.close)  # what a rank forks is no rank
        server.preload.forget_shadowed(request["surroundings"]["path"])
        life.redirect(*own[1:])
        life.live(request, rank, control, pickling.from_file(shared[0]), shared[1] if len(shared) > 1 else None)
        server.preload.tell_if_used()
        code = 0
    finally:
        os._exit(code)
