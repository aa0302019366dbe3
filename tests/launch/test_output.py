"""What ranks print arrives as whole lines, in rank order, complete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch.output import HEAD, TAIL, Stream


def test_lines_come_whole_in_rank_order_with_a_prefix(capsys):
    def talk():
        for part in range(3):
            time.sleep(0.01 * (3 - dist.get_rank()))
            print("part", part, "of", dist.get_rank())

    run = picolib.run(talk, 3)
    expected = [f"[rank {rank}] part {part} of {rank}\n" for rank in range(3) for part in range(3)]
    assert capsys.readouterr().out == "".join(expected)
    assert run.stdout[1] == "part 0 of 1\npart 1 of 1\npart 2 of 1\n"


def test_raw_writes_and_sub_processes_are_seen(capsys):
    def talk():
        print("print")
        os.write(1, b"write\n")
        subprocess.run([sys.executable, "-S", "-c", "print('child')"])
        print("no line end", end="")

    picolib.run(talk, 1)
    assert capsys.readouterr().out.split("\n")[:-1] == [
        f"[rank 0] {x}" for x in ("print", "write", "child", "no line end")
    ]


def test_any_text_and_any_bytes_are_shown(capsys):
    def talk():
        print("naïve 🦙 \ud800")
        os.write(1, b"\xff\n")

    picolib.run(talk, 1)
    assert capsys.readouterr().out == "[rank 0] naïve 🦙 \\ud800\n[rank 0] \ufffd\n"


def test_a_flood_is_cut_and_counted_but_kept_in_the_run(capsys):
    def flood():
        for line in range(10_000):
            print(line)

    run = picolib.run(flood, 1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == HEAD + TAIL + 1
    assert lines[HEAD] == "[rank 0] … 9,900 lines left out" and lines[-1] == "[rank 0] 9999"
    assert run.stdout[0].count("\n") == 10_000


def test_a_very_long_line_is_cut(capsys):
    picolib.run(lambda: print("x" * 5_000_000), 1)
    assert len(capsys.readouterr().out) < 20_000


def test_a_progress_bar_ends_as_its_last_state(capsys):
    picolib.run(lambda: [print(f"\r{k}/3", end="") for k in (1, 2, 3)] and None, 1)
    assert capsys.readouterr().out == "[rank 0] 3/3\n"


def test_stderr_comes_after_stdout_with_the_learners_own_warnings(capsys):
    def talk():
        print("to err", file=sys.stderr)
        warnings.warn("careful", stacklevel=1)
        print("to out")

    picolib.run(talk, 1)
    captured = capsys.readouterr()
    assert captured.out == "[rank 0] to out\n"
    assert "[rank 0] to err" in captured.err and "UserWarning: careful" in captured.err


@pytest.mark.parametrize(
    "line",
    [
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        "[W1129 17:00:00.123456789 ProcessGroupGloo.cpp:514] Warning: Unable to resolve hostname",
        "[rank0]:[W1129 17:00:00.123456789 ProcessGroup.hpp:941] Warning: No backend of type 0 found",
    ],
)
def test_chatter_of_libraries_is_left_out(line):
    stream = Stream()
    stream.feed(f"{line}\nkept\n".encode())
    assert stream.text == ["kept"]


def test_collectives_leave_stderr_clean(capfd):
    def talk():
        dist.all_reduce(torch.ones(1))
        dist.barrier()

    picolib.run(talk, 2)
    assert capfd.readouterr() == ("", "")


def test_what_was_printed_before_a_failure_is_shown(capsys):
    def fail():
        print("before")
        raise ValueError

    with pytest.raises(picolib.RankError):
        picolib.run(fail, 1)
    assert capsys.readouterr().out == "[rank 0] before\n"


def test_rank_0_is_heard_while_it_runs(capsys):
    class Spy:
        """Stands for the notebook: notes when something arrives."""

        def __init__(self):
            self.times = []

        def write(self, text):
            self.times.append((text, time.monotonic()))

        def flush(self):
            pass

    def talk():
        print("first")
        time.sleep(0.5)
        print("second")

    spy, stdout = Spy(), sys.stdout
    sys.stdout = spy
    try:
        picolib.run(talk, 1)
    finally:
        sys.stdout = stdout
    (first, early), (second, late) = spy.times
    assert "first" in first and "second" in second and late - early > 0.3


def test_a_progress_bar_of_many_updates_stays_one_line():
    stream = Stream()
    for step in range(300):
        stream.feed(b"\r" + b"." * 10_000)
        stream.feed(f"\r{step}".encode())
    assert stream.newest() == "299" and not stream.shown
    stream.feed(b"\r")  # the line's end comes in two pieces
    stream.feed(b"\n")
    assert list(stream.shown) == ["299"]
