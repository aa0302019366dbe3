"""The same script, unchanged: one process, `picolib.run`, torchrun, and torchrun on two nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import picolib
from picolib.train import TrainConfig
from picolib.train.__main__ import command_line, main

REPOSITORY = Path(__file__).parents[2]
SETTINGS = ["--steps", "20", "--log-every", "10", "--warm-up", "5", "--accumulation", "2"]
TORCHRUN = ["-m", "torch.distributed.run"]
SCRIPT = ["-m", "picolib.train", *SETTINGS]


def start(arguments: list[str], history: Path) -> subprocess.Popen[str]:
    """A Python process on loopback, with one thread, that writes its history into a file."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *arguments, "--history", str(history)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """What they printed; none of them is left, whatever happens."""
    try:
        ended = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.terminate()  # torchrun takes its workers along
            process.wait()
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in ended]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The history of one process with the whole batch, and what it printed."""
    path = tmp_path_factory.mktemp("alone") / "history.json"
    (output,) = finish(start(SCRIPT, path))
    return {**json.loads(path.read_text()), "output": output}


def same_course(history: dict[str, Any], alone: dict[str, Any]) -> bool:
    assert history["steps"] == list(range(20)) and history["tokens"] == alone["tokens"]
    assert history["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert history["grad_norms"] == pytest.approx(alone["grad_norms"], rel=1e-4)
    return True


def test_alone_it_learns_and_its_log_has_a_line_for_every_ten_steps(alone):
    assert alone["losses"][-1] < alone["losses"][0] - 1
    first, second, last = alone["output"].splitlines()
    assert first.startswith(f"step 10 of 20  loss {alone['losses'][9]:.4f}") and second.startswith("step 20 of 20")
    assert last == f"20 steps, {20 * 32 * 32:,} tokens"


def test_torchrun_gives_the_losses_of_one_process(alone, tmp_path):
    (output,) = finish(start([*TORCHRUN, "--standalone", "--nproc-per-node=2", *SCRIPT], tmp_path / "history.json"))
    assert same_course(json.loads((tmp_path / "history.json").read_text()), alone)
    assert output.splitlines()[-1] == "20 steps, 20,480 tokens"


def test_two_nodes_give_the_losses_of_one_process(alone, tmp_path):
    meeting = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    nodes = [
        start([*TORCHRUN, *meeting, f"--node-rank={node}", *SCRIPT], tmp_path / f"node{node}.json") for node in (0, 1)
    ]
    first, second = finish(*nodes)
    assert same_course(json.loads((tmp_path / "node0.json").read_text()), alone)
    assert first.splitlines()[-1] == "20 steps, 20,480 tokens"
    assert second == "" and not (tmp_path / "node1.json").exists()  # rank 0 is on the first node


def test_four_ranks_of_a_run_follow_one_process_for_twenty_steps(alone):
    run = picolib.run(main, 4, SETTINGS)
    assert same_course(vars(run[0]), alone)
    assert run.stdout == ["20 steps, 20,480 tokens\n", "", "", ""]


def test_every_setting_is_an_option():
    options = command_line().parse_args(["--learning-rate", "0.25", "--steps", "7"])
    assert (options.learning_rate, options.steps, options.beta2) == (0.25, 7, TrainConfig.beta2)
