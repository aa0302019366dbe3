"""fully_shard with shards in memory-mapped files: really there, not in memory, nothing left behind, errors in words."""

from __future__ import annotations

import gc
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import picolib
from picolib.parallel.fsdp import FileOffloadPolicy
from tests.parallel.steps import sharded
from tests.parallel.zoo import Plain, build, data


def mapped(folder) -> list[range]:
    """Addresses at which this process has files of a folder in its memory."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    return [range(*(int(end, 16) for end in line[0].split("-"))) for line in lines]


def in_files(folder, *tensors) -> bool:
    """Whether all numbers of all tensors are in the files of a folder."""
    ranges = mapped(folder)
    ends = [(t.data_ptr(), t.data_ptr() + t.nbytes - 1) for t in tensors if t.numel()]
    return all(any(first in r and last in r for r in ranges) for first, last in ends)


def where_it_is(folder):
    folder = folder / str(dist.get_rank())  # a rank's own
    folder.mkdir()
    policy = FileOffloadPolicy(folder)
    model = sharded(build(Plain, 0), offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    policy.offload_optimizer_state(optimizer)
    whole = []
    computing = lambda module, args, out: whole.append(in_files(folder, module.weight))
    model.first.register_forward_hook(computing, prepend=True)
    found = []
    for step in range(2):
        optimizer.zero_grad()
        model(data(4, step)[0]).sum().backward()
        gradients = [p.grad for p in model.parameters()]
        found.append(in_files(folder, *model.parameters(), *gradients))
        optimizer.step()
        moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
        found.append(in_files(folder, *model.parameters(), *moments) and bool(moments))
    names = os.listdir(folder)
    with picolib.memory.measure(model, optimizer) as measured:
        pass
    scalars = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if not t.dim())
    held = measured.parameters + measured.gradients + measured.optimizer - scalars
    del model, optimizer, gradients, moments
    gc.collect()
    return found, whole, names, measured.in_files == held > 0, mapped(folder)


linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the memory map of a process is Linux's")


@linux
def test_shards_gradients_and_state_are_in_files_that_have_no_name_and_go_with_the_module(tmp_path):
    for found, whole, names, counted, mapped_after in picolib.run(where_it_is, 2, tmp_path):
        assert found == [True] * 4 and whole == [False] * 2
        assert names == [] and counted and mapped_after == []
    assert [os.listdir(tmp_path / rank) for rank in ("0", "1")] == [[], []]


def anonymous_memory() -> int:
    """Resident bytes that no file stands for."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


WIDTH = 3072  # 36 MiB a matrix: freed memory of more than 32 MiB goes back to the system at once


def grown(folder) -> float:
    """By how much this process has grown, in sizes of its matrix, with the state of AdamW."""
    policy = folder and FileOffloadPolicy(folder)
    before = anonymous_memory()
    model = picolib.fully_shard(nn.Linear(WIDTH, WIDTH, bias=False), offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    if policy:
        policy.offload_optimizer_state(optimizer)
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    return (anonymous_memory() - before) / model.weight.nbytes


@linux
def test_the_rank_s_own_memory_holds_none_of_it(tmp_path):
    """Parameter, gradient and two moments; a step's small allocations are less than one of them."""
    assert picolib.run(grown, 1, None)[0] >= 4
    assert picolib.run(grown, 1, tmp_path)[0] < 1


@linux
def test_a_conversion_takes_shards_out_of_the_files_and_the_next_forward_pass_puts_them_back(tmp_path):
    def fn():
        model = sharded(build(Plain, 0), offload_policy=FileOffloadPolicy(tmp_path)).float()
        before = in_files(tmp_path, *model.parameters())
        out = model(data(4)[0].float())
        model.reshard()
        return before, in_files(tmp_path, *model.parameters()), out.dtype

    assert list(picolib.run(fn, 2)) == [(False, True, torch.float32)] * 2


@linux
def test_state_that_was_loaded_moves_into_files(tmp_path):
    def fn():
        policy = FileOffloadPolicy(tmp_path)
        model = sharded(build(Plain, 0), offload_policy=policy)
        optimizers = [torch.optim.AdamW(model.parameters()) for _ in range(2)]
        model(data(4)[0]).sum().backward()
        optimizers[0].step()
        optimizers[1].load_state_dict(optimizers[0].state_dict())
        policy.offload_optimizer_state(optimizers[1])
        moments = [t for state in optimizers[1].state.values() for t in state.values() if t.dim()]
        return in_files(tmp_path, *moments), len(moments)

    for found, count in picolib.run(fn, 2):
        assert found and count


def killed(folder):
    model = sharded(build(Plain, 0), offload_policy=FileOffloadPolicy(folder))
    model(data(4)[0]).sum().backward()
    assert mapped(folder)
    os.kill(os.getpid(), signal.SIGKILL)


def test_nothing_is_left_when_a_rank_is_killed(tmp_path):
    with pytest.raises(picolib.RunError):
        picolib.run(killed, 2, tmp_path)
    assert os.listdir(tmp_path) == []


def refused(folders):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    try:
        picolib.fully_shard(nn.Linear(4, 4), mesh=mesh, offload_policy=FileOffloadPolicy(folders[dist.get_rank()]))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("bad", [range(4), [3]], ids=["all ranks", "one rank"])
def test_a_folder_that_cannot_be_written_is_the_same_sentence_on_all_ranks(bad, tmp_path):
    missing = tmp_path / "missing"
    folders = [missing if rank in bad else tmp_path for rank in range(4)]
    why = f"rank {min(bad)} can't make a file in {str(missing)!r} (No such file or directory)"
    said = f"offload_policy must have a folder that exists and can be written, but {why}."
    assert list(picolib.run(refused, 4, folders)) == [said] * 4


def problem_without_permission(folder):
    if os.geteuid() == 0:  # who may write everywhere
        os.seteuid(65534)
    try:
        return FileOffloadPolicy(folder).problem()
    finally:
        os.seteuid(os.getuid())


def test_a_folder_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o500)
    said = picolib.run(problem_without_permission, 1, tmp_path)[0]
    assert f"rank 0 can't make a file in {str(tmp_path)!r} (Permission denied)" in said


def on_a_full_disk(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
    picolib.fully_shard(nn.Linear(64, 64), offload_policy=FileOffloadPolicy(folder))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system gives files room when they are written")
def test_a_full_disk_is_told_when_the_file_is_made(tmp_path):
    with pytest.raises(picolib.RankError, match="OSError"):
        picolib.run(on_a_full_disk, 2, tmp_path)
    assert os.listdir(tmp_path) == []


def different_policies(folder):
    policy = FileOffloadPolicy(folder) if dist.get_rank() else None
    picolib.fully_shard(nn.Linear(4, 4), offload_policy=policy)


def test_policies_must_be_the_same_on_all_ranks(tmp_path):
    with pytest.raises(picolib.RankError, match="rank 1 has offload_policy=FileOffloadPolicy"):
        picolib.run(different_policies, 2, tmp_path)
