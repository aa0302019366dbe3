"""Strange things that people do to `run`: each ends in a right result or in one sentence, and the next run works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
import torch.distributed as dist

import picolib


def told(fn, world_size=2, *args, **options):
    """The text of the error that a run ends with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        picolib.run(fn, world_size, *args, **options)
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]
    return str(caught.value)


def test_world_sizes_that_numpy_has_counted_are_whole_numbers_too():
    assert list(picolib.run(dist.get_world_size, numpy.prod([2, 1]))) == [2, 2]
    for wrong in (numpy.float64(2), torch.tensor([1, 2]), "2", float("nan"), None, True):
        with pytest.raises(TypeError, match="world_size must be a whole number"):
            picolib.run(dist.get_rank, wrong)


def test_a_generator_or_async_function_is_refused_before_the_start():
    def batches():
        yield 1

    async def step():
        pass

    with pytest.raises(TypeError, match="fn must be a plain function; `batches` is a generator"):
        picolib.run(batches, 2)
    with pytest.raises(TypeError, match="fn must be a plain function; `step` is async"):
        picolib.run(step, 2)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_an_exception_group_shows_what_is_in_it_with_its_lines():
    def fails(kind):
        raise kind("deep inside")

    def program():
        errors = []
        for kind in (ValueError, KeyError):
            try:
                fails(kind)
            except Exception as error:
                errors.append(error)
        raise ExceptionGroup("two things", [errors[0], ExceptionGroup("nested", errors[1:])])  # noqa: F821

    text = told(program)
    assert re.search(r"rank 0 failed with ExceptionGroup: two things \(2 sub-exceptions\)\n  .*, in program", text)
    assert re.search(r"  one of them is ValueError: deep inside\n.*line \d+", text)
    assert re.search(r"    one of them is KeyError: 'deep inside'\n.*line \d+", text)
    assert text.count("raise kind") == 2 and text.endswith("rank 1 failed in the same line.")


def test_the_text_of_an_exception_is_cut_where_nobody_would_read_on():
    def program():
        raise ValueError("y" * 5_000_000)

    text = told(program)
    assert len(text) < 12_000 and "y … 4,990,000 characters left out" in text


def test_an_exception_without_a_text_and_one_that_is_no_exception():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    class Odd(BaseException):
        pass

    def program(kind):
        raise kind

    assert "failed with Silent: <its text cannot be made: RuntimeError>" in told(program, 2, Silent)
    assert "failed with Odd\n" in told(program, 2, Odd)
    assert "failed with GeneratorExit\n" in told(program, 2, GeneratorExit)


def test_things_nested_without_end_are_told_in_one_sentence():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert "recursion" in told(lambda x: 1, 1, nested)

    def program():
        nested = []
        for _ in range(100_000):
            nested = [nested]
        return nested

    assert "the returned list cannot be sent back" in told(program)


def test_a_module_that_was_edited_between_two_runs_is_the_new_one_and_a_broken_one_is_told(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = tmp_path / "edited_by_the_learner.py"
    source.write_text("def value(): return 1\n")
    import edited_by_the_learner

    def program():
        return edited_by_the_learner.value()

    assert list(picolib.run(program, 2)) == [1, 1]
    source.write_text("def value(): return 22\n")
    assert list(picolib.run(program, 2)) == [22, 22]
    source.write_text("def value( return 22\n")
    assert "failed with SyntaxError" in told(program) and "edited_by_the_learner.py, line 1" in told(program)


def test_a_rank_that_leaves_the_group_early_is_named():
    def program():
        if dist.get_rank() == 0:
            dist.destroy_process_group()
        else:
            dist.all_reduce(torch.ones(1))

    text = told(program)
    assert text.startswith("rank 1 failed with") and re.search("(closed|reset) by peer", text)
    assert "\nrank 0 had returned and left the process group: was destroy_process_group() called too early?" in text


@pytest.mark.parametrize(
    "number, words",
    [(signal.SIGALRM, "SIGALRM"), (signal.SIGTERM, "was terminated"), (signal.SIGINT, "was interrupted")],
)
def test_a_signal_that_a_rank_gets_is_named(number, words):
    def program():
        os.kill(os.getpid(), number)
        time.sleep(10)

    assert words in told(program)


def test_a_rank_that_closes_its_open_files_or_loses_its_folder(tmp_path):
    def closes():
        os.closerange(3, 100)

    def loses(folder):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        dist.barrier()
        if dist.get_rank() == 0:
            os.rmdir(folder)

    assert "rank" in told(closes)
    assert list(picolib.run(loses, 2, str(tmp_path / "gone"))) == [None, None]


PRESSED_AT_ANY_MOMENT = """
import os, signal, sys, tempfile, threading, time
import torch.distributed as dist
import picolib
from picolib.launch import forked

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

def program():
    time.sleep(0.03)
    return 1

def press(after, times, over):
    time.sleep(after)
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.005)
    time.sleep(0.1)  # the last one has arrived while somebody still expects it
    over.append(True)

def in_spite_of_interrupts(step):
    while True:
        try:
            return step()
        except KeyboardInterrupt:
            continue

picolib.run(dist.get_rank, 2)
server, files = forked.fork_server().process.pid, len(os.listdir("/proc/self/fd"))
for moment in range(25):
    over = []
    presses = threading.Thread(target=press, args=(0.004 * moment + 0.001, 1 + moment % 4, over))

    def run_once():
        if not presses.ident:
            presses.start()
            picolib.run(program, 2)
        while not over:  # join() that is interrupted takes the thread for ended (Python 3.11)
            time.sleep(0.01)

    in_spite_of_interrupts(run_once)
    assert list(picolib.run(program, 2)) == [1, 1], moment
assert forked.fork_server().process.pid == server, "the server was started again"
assert len(os.listdir("/proc/self/fd")) == files, "files are left open"
assert not os.listdir(tempfile.gettempdir()), os.listdir(tempfile.gettempdir())
"""


def test_interrupts_at_any_moment_leave_nothing_and_the_next_run_right(tmp_path):
    """In a process of its own: an interrupt that comes late would end the tests."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    script = tmp_path.with_suffix(".py")
    script.write_text(PRESSED_AT_ANY_MOMENT)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


def test_a_handler_of_the_learners_own_is_called_and_what_it_raises_ends_the_run():
    def stop(*_):
        raise RuntimeError("stopped by my own handler")

    before = signal.signal(signal.SIGINT, stop)
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(RuntimeError, match="stopped by my own handler"):
            picolib.run(time.sleep, 2, 30)
        assert signal.getsignal(signal.SIGINT) is stop
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]


class NeverBack:
    """What a rank returns restores itself for a minute."""

    def __reduce__(self):
        return time.sleep, (60,)


def test_a_value_that_is_never_restored_can_be_interrupted():
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(picolib.RunInterrupted):
        picolib.run(NeverBack, 1)
    assert time.monotonic() - start < 30
    assert list(picolib.run(dist.get_rank, 2)) == [0, 1]


def test_few_open_files_are_one_sentence_that_says_what_to_do(script):
    text = """
        import resource
        import picolib

        picolib.run(lambda: 1, 2)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, hard))
        try:
            picolib.run(lambda: 1, 40)
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        print(list(picolib.run(lambda: 1, 2)))
    """
    result = script(text)
    assert "too many open files: 40 ranks need about 180 beside" in result.stdout and "ulimit -n" in result.stdout
    assert result.stdout.endswith("[1, 1]\n") and result.stderr == ""


def test_a_home_and_a_folder_for_temporary_files_that_are_not_there(script):
    text = "import picolib\nprint(list(picolib.run(lambda: 1, 2)))"
    assert script(text, HOME="/nonexistent", TMPDIR="/nonexistent").stdout == "[1, 1]\n"


def test_a_rank_without_any_line_of_the_learners_shows_none_of_the_launchers():
    assert told(time.sleep, 2, 60, max_seconds=1.0) == "the run is not through after max_seconds=1"
