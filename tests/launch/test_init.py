"""picolib.init(): the same group under torchrun or SLURM, or alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch import nodes
from picolib.launch.joining import _coordinates
from tests.launch.conftest import REPOSITORY

# Each line is one write: two processes that share a terminal don't mix their lines then.
SCRIPT = """
import os, picolib, torch, torch.distributed as dist
picolib.init()
x = torch.ones(1)
dist.all_reduce(x)
os.write(1, f"sum {float(x)}\\n".encode())
picolib.comm.all_reduce(x, algorithm="hierarchical")
node = picolib.comm.groups.resolve(None)[1].ranks_per_node
os.write(1, f"twice {float(x)} with {node} a node\\n".encode())
dist.destroy_process_group()
"""


def test_under_torchrun_all_processes_join_one_group(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path, env=env)
    assert result.stdout.count("sum 2.0") == 2, result.stderr
    assert result.stdout.count("twice 4.0 with 2 a node") == 2


def test_alone_it_is_a_world_of_one(script):
    assert script(SCRIPT).stdout == "sum 1.0\ntwice 1.0 with None a node\n"


def test_inside_a_run_it_does_nothing():
    def both():
        picolib.init()
        return dist.get_world_size()

    assert list(picolib.run(both, 2)) == [2, 2]


def hierarchical(ranks_per_node, local_rank, members):
    """How many ranks of a group the hierarchical all-reduce takes for a node, and what it sends."""
    from picolib import comm

    nodes.agree(ranks_per_node[dist.get_rank()], local_rank[dist.get_rank()])
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return None
    x = torch.ones(6)
    comm.all_reduce(x, group=group, algorithm="hierarchical")
    return comm.groups.resolve(group)[1].ranks_per_node, x.tolist() == [len(members)] * 6


@pytest.mark.parametrize(
    "sizes, places, members, expected",
    [
        ([3] * 6, [0, 1, 2] * 2, range(6), 3),
        ([3] * 6, [0, 1, 2] * 2, [0, 1, 3, 4], 2),
        ([3] * 6, [0, 1, 2] * 2, [0, 3, 1, 4], 2),  # torch sorts the members of a group
        ([3] * 6, [0, 1, 2] * 2, [0, 1, 2, 3], None),  # three on one node, one on the other
        ([2] * 2 + [4] * 4, [0, 1, 0, 1, 2, 3], range(6), None),  # nodes of different size
        ([3] * 6, [0, 0, 1, 1, 2, 2], range(6), None),  # numbered across the nodes
    ],
)
def test_ranks_per_node_is_what_all_ranks_have_agreed_on(sizes, places, members, expected):
    run = picolib.run(hierarchical, 6, sizes, places, list(members), trace=True)
    assert [run[rank] for rank in members] == [(expected, True)] * len(members)
    ring = picolib.comm.messages_sent
    wanted = ring("all_reduce", "hierarchical", 6, size=len(members), rank=0, ranks_per_node=expected)
    assert [e.bytes for e in run.trace.events if e.kind == "send" and e.rank == members[0]] == wanted


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
