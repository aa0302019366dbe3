"""picolib.init(): the same group under torchrun or SLURM, or alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

import picolib
from picolib.launch.joining import _coordinates
from tests.launch.conftest import REPOSITORY

SCRIPT = """
import picolib, torch, torch.distributed as dist
picolib.init()
x = torch.ones(1)
dist.all_reduce(x)
print("sum", float(x), flush=True)
dist.destroy_process_group()
"""


def test_under_torchrun_all_processes_join_one_group(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path, env=env)
    assert result.stdout.count("sum 2.0") == 2, result.stderr


def test_alone_it_is_a_world_of_one(script):
    assert script(SCRIPT).stdout == "sum 1.0\n"


def test_inside_a_run_it_does_nothing():
    def both():
        picolib.init()
        return dist.get_world_size()

    assert list(picolib.run(both, 2)) == [2, 2]


def test_slurm_s_variables_are_read_and_torchrun_s_come_first():
    slurm = {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_NNODES": "4",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": "17",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    }
    found = _coordinates(slurm)
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("3", "8", "1", "2")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "20017")
    assert _coordinates({**slurm, "RANK": "5", "WORLD_SIZE": "6"})["RANK"] == "5"


def test_half_a_launcher_is_told_by_name(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="RANK is set but WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not"):
        picolib.init()
