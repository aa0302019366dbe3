"""The kernel's side of the fork server: start it, ask it for ranks, hear from them, end them."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from picolib.launch import environment, interrupts, wire

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from picolib.launch import server; server.main(int(sys.argv[1]))"
)
Event = tuple[str, int, Any]  # ("out" | "err", rank, bytes), ("frame", rank, (kind, body)), ("exit", rank, code)


class ServerGone(RuntimeError):
    """The fork server has ended or cannot be started here."""


class ForkServer:
    """A running fork server; `start` gives the ranks of one run."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.connection, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        variables = {**environment.without_launcher(os.environ), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=variables,
            )
        self._unread = b""
        self._ready = False

    def usable(self) -> bool:
        """Whether this server belongs to this very process and still runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Wait until torch is imported over there.

        Raises:
            ServerGone: it ended instead, or took longer.
        """
        end = time.monotonic() + seconds
        while not self._ready:
            if time.monotonic() > end:
                raise ServerGone("the fork server does not answer")
            interrupts.check()
            self._ready = any("ready" in message for message in self.messages(0.1))

    def messages(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """What the server has said, waiting up to `seconds` for the first word."""
        readable, _, _ = select.select([self.connection], [], [], seconds)
        if not readable:
            return []
        data = self.connection.recv(1 << 16)
        if not data:
            raise ServerGone(self.last_words())
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def last_words(self) -> str:
        """The end of what the server wrote on its stderr."""
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace").strip() or "the fork server has ended"

    def ask(self, request: dict[str, Any]) -> None:
        """Send one request."""
        data = json.dumps(request).encode()
        try:
            self.connection.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise ServerGone(self.last_words()) from error

    def close(self) -> None:
        """End the server; it takes its ranks with it."""
        self.connection.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


_lock = threading.Lock()
_current: ForkServer | None = None


def fork_server() -> ForkServer:
    """The kernel's fork server, started at first use and again when it is gone."""
    global _current
    with _lock:
        if _current is not None and not _current.usable():
            _current.close()
            _current = None
        if _current is None:
            _current = ForkServer()
        return _current


def warm_up() -> None:
    """Start the fork server now, beside the kernel's own import of torch, so that the first run need not wait."""
    if hasattr(os, "fork") and os.environ.get("PICOLIB_START") != "spawn":
        fork_server()


class ForkedRanks:
    """The ranks of one run and the kernel's ends of their pipes."""

    def __init__(self, server: ForkServer, request: dict[str, Any], shared: list[int]) -> None:
        self.server = server
        self.world_size = request["world_size"]
        self.processes: dict[int, int] = {}
        self.running = set(range(self.world_size))
        self.ended = False
        self._selector = selectors.DefaultSelector()
        self._controls: list[socket.socket] = []
        self._readers = [wire.FrameReader() for _ in range(self.world_size)]
        self._pipes: list[int] = []
        server.wait_ready()
        try:
            server.ask({"do": "run", "shared": len(shared), **request})
            socket.send_fds(server.connection, [b"s"], shared)
            for rank in range(self.world_size):
                self._connect(rank)
        except BaseException:  # half a request: this server cannot be asked again
            server.close()
            self.close()
            raise
        self._selector.register(server.connection, selectors.EVENT_READ, ("server", -1))

    def _connect(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        self._controls.append(ours)
        self._pipes += [out, err]
        socket.send_fds(self.server.connection, [b"r"], [theirs.fileno(), out_theirs, err_theirs])
        theirs.close()
        os.close(out_theirs)
        os.close(err_theirs)
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, ("frame", rank))
        for kind, descriptor in (("out", out), ("err", err)):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, (kind, rank))

    def events(self, seconds: float) -> Iterator[Event]:
        """What has happened, waiting up to `seconds` for the first event."""
        for key, _ in self._selector.select(seconds):
            kind, rank = key.data
            if kind == "server":
                yield from self._from_server()
            elif kind == "frame":
                yield from self._frames(rank)
            else:
                yield from self._output(kind, rank, key.fd)

    def _from_server(self) -> Iterator[Event]:
        try:
            messages = self.server.messages()
        except (ServerGone, OSError):  # killed; the system has ended its ranks with it
            self._selector.unregister(self.server.connection)
            self.ended = True
            yield from (("exit", rank, -signal.SIGKILL) for rank in sorted(self.running))
            return
        for message in messages:
            if "exit" in message:
                rank, code = message["exit"]
                self.running.discard(rank)
                yield "exit", rank, code
            self.processes.update((int(rank), process) for rank, process in message.get("processes", {}).items())
            self.ended = self.ended or "ended" in message

    def _frames(self, rank: int) -> Iterator[Event]:
        try:
            while (frame := self._readers[rank].read(self._controls[rank])) is not None:
                yield "frame", rank, frame
        except BlockingIOError:
            pass
        except (EOFError, ConnectionError):
            self._selector.unregister(self._controls[rank])
        except wire.GarbledError:
            self._selector.unregister(self._controls[rank])
            yield "frame", rank, (wire.GARBLED, memoryview(b""))

    def _output(self, kind: str, rank: int, descriptor: int) -> Iterator[Event]:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if data:
            yield kind, rank, data
        else:
            self._selector.unregister(descriptor)

    def let_go(self) -> None:
        """Tell the ranks that everybody is done: they may leave."""
        for control in self._controls:
            try:
                control.send(b"x")
            except OSError:  # already gone
                pass

    def dump(self) -> None:
        """Make all ranks write on their stderr where they are."""
        self._ask("dump")

    def kill(self) -> None:
        """End all ranks and what they have started, whatever they are doing."""
        self._ask("kill")

    def _ask(self, what: str) -> None:
        try:
            self.server.ask({"do": what})
        except ServerGone:  # told as an event
            pass

    def abandon(self) -> None:
        """The server does not get its ranks ended: end the server, which takes them with it."""
        self._selector.unregister(self.server.connection)
        self.server.close()

    def close(self) -> None:
        """Close the kernel's ends of the pipes; a server that has more to say of this run serves no other one."""
        if not self.ended:
            self.server.close()
        self._selector.close()
        for control in self._controls:
            control.close()
        for descriptor in self._pipes:
            os.close(descriptor)
