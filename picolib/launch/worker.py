"""A spawned rank's process: does one run after the other, as told through its stdin."""

from __future__ import annotations

import gc
import json
import os
import queue
import random
import sys
import threading
from typing import Any

import numpy
import torch
import torch.distributed as dist

from picolib.launch import environment, frames, rank, wire

TORCH_SEED = torch.initial_seed()  # every new process starts with the same one
END = b"\0picolib: end of this run\0\n"  # on stdout and stderr, so that the kernel knows it has read all of a run


class Control:
    """The connection to the kernel: frames come from one pipe and go into another."""

    def __init__(self, commands: int, results: int) -> None:
        self._results = results
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)
        self._commands = os.fdopen(commands, "rb", buffering=0)
        self.frames: queue.SimpleQueue[tuple[bytes, memoryview]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _forget(self) -> None:
        """In a process that this rank has forked: it is no rank."""
        os.close(self._results)
        self._results = -1

    def _read(self) -> None:
        reader = wire.FrameReader()
        try:
            while True:
                self.frames.put(reader.read(self))
        except (EOFError, OSError):  # the kernel is gone: so is this rank, whatever it is doing
            os._exit(1)

    def recv_into(self, target: memoryview) -> int:
        """For FrameReader."""
        return self._commands.readinto(target)

    def sendall(self, data: Any) -> None:
        """Send bytes to the kernel."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[os.write(self._results, view) :]

    def recv(self, _: int) -> bytes:
        """Wait until the kernel lets this rank go."""
        return self.frames.get()[0]


def main(results: int) -> None:
    """Serve the kernel until it closes this process's stdin."""
    if os.name == "nt":
        import msvcrt

        results = msvcrt.open_osfhandle(results, os.O_WRONLY)
    control = Control(os.dup(0), results)
    rank.redirect(1, 2)
    known = set(sys.modules)
    while True:
        _, body = control.frames.get()
        head, (payload,) = wire.unpack(body)
        _one_run(json.loads(bytes(head)), payload, control)
        _forget(known)
        for descriptor in (1, 2):
            os.write(descriptor, END)


def _one_run(request: dict[str, Any], payload: memoryview, control: Control) -> None:
    environment.take_over(request["surroundings"])
    path = request.get("board")
    board = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0)) if path else None
    rank.live(request, request["rank"], control, payload, board)
    if dist.is_initialized():
        dist.destroy_process_group()
    if board is not None:
        os.close(board)


def _forget(known: set[str]) -> None:
    """As far as a process can: be as new for the next run. The learner's own modules are imported afresh."""
    for name, module in list(sys.modules.items()):
        if name not in known and not frames.is_library(getattr(module, "__file__", None) or "<frozen"):
            del sys.modules[name]
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(TORCH_SEED)
    random.seed()
    numpy.random.seed()
    gc.collect()
