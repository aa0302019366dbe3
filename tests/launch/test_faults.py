"""Whatever happens to a rank, the run ends soon, says what it was, and leaves nothing."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch import forked, threads
from tests.launch.conftest import wait_until


def failure(fn, world_size=3, **options) -> picolib.RankError:
    with pytest.raises(picolib.RankError) as error:
        picolib.run(fn, world_size, **options)
    return error.value


def on_rank_1(action):
    """A function in which rank 1 does `action` while the others wait for it."""

    def work():
        if dist.get_rank() == 1:
            action()
        dist.barrier()

    return work


def test_the_first_failing_rank_is_named_with_the_learners_line():
    def train():
        if dist.get_rank() == 2:
            raise ValueError("bad luck")  # here
        dist.barrier()

    error = failure(train, 4)
    line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in text)
    assert str(error).splitlines() == [
        "rank 2 failed with ValueError: bad luck",
        f"  tests/launch/test_faults.py, line {line}, in train",
        '      raise ValueError("bad luck")  # here',
        "ranks 0, 1 and 3 stopped because rank 2 failed.",
    ]
    assert error.rank == 2 and error.traceback.endswith("ValueError: bad luck")


def test_the_launchers_and_torchs_own_frames_are_left_out_but_the_last():
    def train():
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))

    text = str(failure(train, 1))
    assert "in train" in text and "launch" not in text.replace("tests/launch", "")


def test_what_caused_an_exception_is_told_too():
    def train():
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("outer") from error

    text = str(failure(train, 1))
    assert "failed with RuntimeError: outer" in text and "caused by KeyError: 'key'" in text and '{}["key"]' in text


def test_ranks_that_fail_in_the_same_line_are_told_once():
    def train():
        raise ValueError(f"I am {dist.get_rank()}")

    text = str(failure(train, 4))
    assert text.startswith("rank 0 failed with ValueError: I am 0\n") and text.endswith(
        "\nranks 1-3 failed in the same line."
    )


def test_a_runaway_recursion_is_told_in_a_few_lines():
    def forever(n):
        return forever(n + 1)

    assert len(str(failure(lambda: forever(0), 1)).splitlines()) < 20


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: sys.exit(3), "rank 1 called sys.exit(3) before returning"),
        (lambda: sys.exit("enough"), "rank 1 called sys.exit('enough') before returning"),
        (lambda: os._exit(0), "rank 1 ended (exit code 0) before returning"),
        (lambda: os._exit(7), "rank 1 ended (exit code 7) before returning"),
        (lambda: ctypes.string_at(0), "rank 1 crashed with a segmentation fault (SIGSEGV)\n"),
        (os.abort, "rank 1 crashed (abort) (SIGABRT)\n"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 was killed (SIGKILL)"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "rank 1 was terminated (SIGTERM)"),
        (lambda: bytearray(10**16), "rank 1 ran out of memory"),
        (lambda: torch.empty(10**15), "rank 1 ran out of memory"),
        (lambda: input("? "), "ranks have no stdin"),
        (lambda: breakpoint(), "ranks have no stdin"),  # noqa: T100
    ],
)
def test_an_end_without_a_result_is_decoded(action, words):
    start = time.monotonic()
    error = failure(on_rank_1(action))
    assert error.rank == 1 and words in str(error)
    assert "ranks 0 and 2 stopped because rank 1 failed." in str(error)
    assert time.monotonic() - start < 5


def test_a_crash_tells_the_learners_line():
    def crash():
        ctypes.string_at(0)  # null

    assert "ctypes.string_at(0)  # null" in str(failure(crash, 1))


def test_a_receive_buffer_that_is_too_small_is_told_in_bytes_even_unchecked():
    def work():
        dist.send(torch.ones(4), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(2), 0)

    with pytest.raises(picolib.RunError, match="16 bytes") as checked:
        picolib.run(work, 2)
    with pytest.raises(picolib.RunError, match="message of 16 bytes into a buffer of 8 bytes"):
        picolib.run(work, 2, checked=False)
    assert "the buffer 8" in str(checked.value)


def test_ranks_that_ignore_every_signal_are_ended():
    def stubborn():
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError
        while True:
            pass

    start = time.monotonic()
    failure(stubborn)
    assert time.monotonic() - start < 5


def test_a_stopped_rank_is_ended():
    def stop():
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.1)
        raise ValueError

    assert failure(stop, 2).rank == 1


def test_no_progress_ends_in_a_timeout_that_tells_where_each_rank_is():
    def work():
        if dist.get_rank() == 0:
            time.sleep(1000)

    with pytest.raises(picolib.RankTimeout) as error:
        picolib.run(work, 2, timeout=0.3)
    text = str(error.value)
    assert "no rank got any further for 0.3 s (timeout=0.3)" in text
    assert "in work\n      time.sleep(1000)" in text and "rank 1 has returned" in text


@pytest.mark.skipif(sys.platform != "linux", reason="only there can one ask")
def test_a_timeout_tells_that_a_rank_is_stopped():
    with pytest.raises(picolib.RankTimeout) as error:
        picolib.run(on_rank_1(lambda: os.kill(os.getpid(), signal.SIGSTOP)), 2, timeout=1)
    assert "rank 0 is in" in str(error.value) and "\nrank 1 is stopped: a signal" in str(error.value)


def test_output_counts_as_progress_but_max_seconds_bounds_it():
    def work():
        while True:
            print("still here")
            time.sleep(0.05)

    start = time.monotonic()
    with pytest.raises(picolib.RankTimeout, match="not through after max_seconds=1"):
        picolib.run(work, 1, timeout=0.8, max_seconds=1)
    assert time.monotonic() - start < 10


def test_an_interrupt_ends_all_ranks_in_one_short_line():
    def work():
        print(os.getpid())
        time.sleep(1000)

    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(picolib.RunInterrupted) as error:
        picolib.run(work, 3)
    assert time.monotonic() - start < 3.5
    assert "\n" not in str(error.value) and "Interrupted" in str(error.value)
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]


def test_a_fork_server_that_is_killed_is_replaced():
    picolib.run(dist.get_rank, 1)
    first = forked.fork_server().process
    first.kill()
    first.wait()
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]

    def kill_it():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)

    assert "was killed" in str(failure(kill_it, 2))
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]


def test_a_process_that_a_rank_forks_may_return_or_raise_and_the_rank_does_not_notice():
    def work():
        child = os.fork()
        if child == 0 and dist.get_rank() == 1:
            raise ValueError
        return dist.get_rank() if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert list(picolib.run(work, 2)) == [0, 1]
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]


@pytest.mark.parametrize("garbage", [b"\0" * 50, b"S" + b"\xff" * 50, b"I" + bytes(8), b"z" + bytes(8)])
def test_a_connection_that_carries_nonsense_is_told_in_one_sentence_and_the_next_run_is_right(garbage):
    def work():
        for found in gc.get_objects():
            if isinstance(found, socket.socket):
                found.sendall(garbage)
        time.sleep(1000)

    error = failure(work, 2)
    assert "sent what picolib cannot read" in str(error) and "\n" not in str(error)
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]


def test_closed_streams_do_not_hide_what_a_rank_returns():
    def close():
        sys.stdout.close() if dist.get_rank() == 0 else (os.close(1), os.close(2))
        return dist.get_rank()

    assert list(picolib.run(close, 2)) == [0, 1]


def test_sub_processes_of_ranks_do_not_outlive_the_run(tmp_path):
    def work(path, fail):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (path / str(dist.get_rank())).write_text(str(child.pid))
        dist.barrier()
        if fail:
            raise ValueError

    for fail in (False, True):
        try:
            picolib.run(work, 2, tmp_path, fail)
        except picolib.RankError:
            pass
        for rank in range(2):
            child = int((tmp_path / str(rank)).read_text())
            assert wait_until(lambda child=child: not os.path.exists(f"/proc/{child}"), 5)


def test_shared_memory_of_a_killed_rank_is_removed():
    def work():
        shared_memory.SharedMemory(create=True, size=1000, name=f"picolib_test_{os.getppid()}")
        os.kill(os.getpid(), signal.SIGKILL)

    failure(work, 1)
    assert wait_until(lambda: not [name for name in os.listdir("/dev/shm") if name.startswith("picolib_test")], 5)


def test_a_machine_that_runs_out_of_memory_ends_the_run_first(monkeypatch):
    def work():
        time.sleep(1000)

    plenty = threads.usable_memory
    start = time.monotonic()
    monkeypatch.setattr(threads, "usable_memory", lambda: 10**7 if time.monotonic() > start + 1 else plenty())
    assert "memory ran out: rank" in str(failure(work, 2))


def test_a_system_without_the_memory_is_told_before_the_start(monkeypatch):
    monkeypatch.setattr(threads, "usable_memory", lambda: 200_000_000)
    with pytest.raises(ValueError, match="world_size=16 needs about 0.4 GB of memory to start and 0.2 GB are free"):
        picolib.run(print, 16)
