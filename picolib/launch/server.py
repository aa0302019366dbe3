"""The fork server: a process that has imported torch and nothing else has touched; every rank is a fresh copy of it.

It runs in a session of its own, has one thread, and never runs a tensor operation. It watches the kernel through
their socket: when the kernel is gone, however that came, it ends all ranks and removes their rendezvous folder.
"""

from __future__ import annotations

import ctypes
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

HELLO = {"ready": True}


def main(descriptor: int) -> None:
    """Serve the kernel at the other end of `descriptor` until it is gone."""
    connection = socket.socket(fileno=descriptor)
    _adopt_orphans()
    _import_everything()
    Server(connection).serve()


def _import_everything() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's BLAS would start threads on import

    from picolib.launch import monitor, rank  # noqa: F401

    assert threading.active_count() == 1
    assert not os.path.isdir("/proc/self/task") or len(os.listdir("/proc/self/task")) == 1, "a thread before the fork"
    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page in every rank


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _adopt_orphans() -> None:
    """On Linux, sub-processes of dead ranks become children of the server, which can then end them."""
    if sys.platform == "linux":
        _libc().prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _die_with_parent() -> None:
    """On Linux, the system kills this rank when the server dies."""
    if sys.platform == "linux":
        _libc().prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


class Server:
    """One kernel, one run at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.kernel = os.getppid()
        self.ranks: dict[int, int] = {}  # process id -> rank
        self.folder: str | None = None
        self.wake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        self.tell(HELLO)
        poller = select.poll()
        for descriptor in (self.connection.fileno(), self.wake):
            poller.register(descriptor, select.POLLIN)
        try:
            while os.getppid() == self.kernel:
                ready = dict(poller.poll(1000))
                self.reap()
                if self.connection.fileno() in ready:
                    self.obey()
        except (EOFError, OSError):  # the kernel is gone
            pass
        finally:
            self.end_ranks()

    def tell(self, message: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def obey(self) -> None:
        size = int.from_bytes(_exactly(self.connection, 4), "little")
        request = json.loads(_exactly(self.connection, size))
        if request["do"] == "run":
            self.start(request)
        else:
            self.kill()

    def start(self, request: dict[str, Any]) -> None:
        from picolib.launch import environment

        self.folder = os.path.dirname(request["store"])
        environment.take_over(request["surroundings"])
        _, shared, _, _ = socket.recv_fds(self.connection, 1, request["shared"])
        for rank in range(request["world_size"]):
            _, descriptors, _, _ = socket.recv_fds(self.connection, 1, 3)
            process = os.fork()
            if process == 0:
                _be_a_rank(self, request, rank, shared, descriptors)
            self.ranks[process] = rank
            for descriptor in descriptors:
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
            end_orphans()
            self.tell({"ended": True})

    def kill(self) -> None:
        for process in self.ranks:
            for kill in (os.killpg, os.kill):  # its group holds its sub-processes; it may not have made it yet
                try:
                    kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def end_ranks(self) -> None:
        self.kill()
        for process in self.ranks:
            os.waitpid(process, 0)
        end_orphans()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def end_orphans() -> None:
    """Kill the sub-processes that ranks have left behind (they are this process's children by now)."""
    while True:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                left = [int(word) for word in children.read().split()]
        except OSError:
            return
        if not left:
            return
        for process in left:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _be_a_rank(server: Server, request: dict[str, Any], rank: int, shared: list[int], descriptors: list[int]) -> None:
    """In the child: live a rank's life, then leave without running the server's own clean-up."""
    code = 1
    try:
        os.setsid()
        _die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server.connection.close()
        os.close(server.wake)
        gc.enable()
        from picolib.launch import pickling
        from picolib.launch import rank as life

        control = socket.socket(fileno=descriptors[0])
        life.redirect(*descriptors[1:])
        request["start"] = {}
        life.live(request, rank, control, pickling.from_file(shared[0]), shared[1] if len(shared) > 1 else None)
        code = 0
    finally:
        os._exit(code)
