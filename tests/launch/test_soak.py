"""200 runs in a row with a random fault each: nothing is left, and the next run is right."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory

import psutil
import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch import forked

RUNS = 200


def on_one_rank(action):
    def work(victim):
        if dist.get_rank() == victim:
            action()
        dist.all_reduce(torch.ones(10))

    return work


def raises():
    raise ValueError("bad luck")


def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    raise ValueError


def leaves_a_process():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    raise ValueError


def leaves_a_fork():
    if os.fork() == 0:
        time.sleep(1000)
    raise ValueError


def leaves_shared_memory():
    shared_memory.SharedMemory(create=True, size=100_000)
    os._exit(1)


def floods():
    for line in range(5000):
        print(line, file=random.choice([sys.stdout, sys.stderr]))
    raise ValueError


def ignores_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=raises).start()
    time.sleep(0.02)
    os._exit(3)


FAULTS = {
    "exception": raises,
    "sys.exit": lambda: sys.exit(3),
    "exit code 0": lambda: os._exit(0),
    "exit code 9": lambda: os._exit(9),
    "segmentation fault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill -9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: (threading.Timer(0.05, os._exit, (1,)).start(), time.sleep(1000)),
    "memory hog": lambda: bytearray(10**16),
    "thread": leaves_a_thread,
    "process": leaves_a_process,
    "fork": leaves_a_fork,
    "shared memory": leaves_shared_memory,
    "flood": floods,
    "signals": ignores_signals,
    "time limit": lambda: time.sleep(1000),
    "interrupt": lambda: time.sleep(1000),
}


def right(x):
    y = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(y)
    return float((x + y).sum())


def left_behind() -> tuple:
    """What must not grow: processes, open files here and in the server, shared memory, folders."""
    server = psutil.Process(forked.fork_server().process.pid)
    return (
        [child.pid for child in server.children(recursive=True)],
        len(os.listdir("/proc/self/fd")),
        server.num_fds(),
        sorted(name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "torch_", "picolib"))),
    )


@pytest.mark.timeout(600)
def test_200_random_faults_leave_nothing_and_the_next_run_is_right(tmp_path, monkeypatch, capsys):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chance = random.Random(0)
    picolib.run(right, 2, 0)
    before = left_behind()
    for number in range(RUNS):
        fault = chance.choice(list(FAULTS))
        world_size, limit = chance.choice([2, 3]), 0.3 if fault == "time limit" else None
        if fault == "interrupt":
            threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            picolib.run(on_one_rank(FAULTS[fault]), world_size, chance.randrange(world_size), max_seconds=limit)
            raise AssertionError(f"run {number}: {fault} went unnoticed")
        except (picolib.RunError, picolib.RunInterrupted) as error:
            assert str(error), fault
        assert list(picolib.run(right, 2, number)) == [4.0 * (number + 1)] * 2, f"after run {number}: {fault}"
    assert left_behind() == before
    assert list(tmp_path.iterdir()) == []
    capsys.readouterr()  # the floods
