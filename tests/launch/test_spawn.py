"""Without fork: the same behaviour from spawned ranks (forced by PICOLIB_START=spawn)."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One session that goes through many runs, since the first one takes seconds."""
    import os
    import subprocess
    import sys

    from tests.launch.conftest import REPOSITORY

    path = tmp_path_factory.mktemp("spawn") / "script.py"
    path.write_text(SESSION)
    env = {**os.environ, "PICOLIB_START": "spawn", "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=170, env=env)
    assert result.returncode == 0, result.stderr
    answers = {}
    for line in result.stdout.split("== ")[1:]:
        name, _, text = line.partition("\n")
        answers[name] = text
    return answers


SESSION = """
import os, sys, time, torch, torch.distributed as dist, picolib

def title(name):
    print("==", name, flush=True)

def pid_and_sum(x):
    y = torch.ones(2); dist.all_reduce(y); print("hello", dist.get_rank())
    os.write(1, b"raw\\n")
    torch.set_default_dtype(torch.float64)
    return os.getpid(), y + x

title("results")
first = picolib.run(pid_and_sum, 2, torch.ones(2))
print([value.tolist() for _, value in first])
title("warm")
second = picolib.run(pid_and_sum, 2, torch.ones(2))
print({pid for pid, _ in first} == {pid for pid, _ in second}, second[0][1].dtype, second.stdout)
title("exception")
def fail():
    if dist.get_rank() == 1:
        raise ValueError("bad luck")
    dist.barrier()
try:
    picolib.run(fail, 2)
except picolib.RankError as error:
    print(error)
title("fresh")
third = picolib.run(pid_and_sum, 2, torch.ones(2))
print({pid for pid, _ in third} & {pid for pid, _ in second})
title("deadlock")
def both_receive():
    dist.recv(torch.ones(1), 1 - dist.get_rank())
try:
    picolib.run(both_receive, 2)
except picolib.DeadlockError as error:
    print(error)
title("crash")
try:
    picolib.run(lambda: os._exit(0), 1)
except picolib.RankError as error:
    print(error)
"""


def test_results_and_output_arrive(session):
    assert session["results"] == (
        "[rank 0] hello 0\n[rank 0] raw\n[rank 1] hello 1\n[rank 1] raw\n[[3.0, 3.0], [3.0, 3.0]]\n"
    )


def test_processes_stay_warm_after_a_good_run_but_start_it_anew(session):
    assert session["warm"].endswith("True torch.float32 ['hello 0\\nraw\\n', 'hello 1\\nraw\\n']\n")


def test_an_exception_is_explained_and_its_processes_are_not_used_again(session):
    assert "rank 1 failed with ValueError: bad luck" in session["exception"]
    assert session["fresh"].endswith("set()\n")


def test_a_deadlock_is_explained(session):
    assert "rank 0 waits in recv from rank 1" in session["deadlock"]


def test_an_early_end_is_decoded(session):
    assert "rank 0 ended (exit code 0) before returning" in session["crash"]
