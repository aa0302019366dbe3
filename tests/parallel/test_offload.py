"""fully_shard with shards on the CPU and in files: the same numbers, in the right place, and nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

import picolib
from picolib.parallel.fsdp import FileOffloadPolicy
from picolib.parallel.full_state import full_state_dict, load_full_state_dict
from tests.parallel.steps import sharded
from tests.parallel.zoo import Plain, TiedAndFrozen, UsedInAnotherOrder, WithRunningStatistics, build, data

STEPS, BATCH = 4, 13
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


@pytest.fixture(params=["CPU", "files"])
def policy(request, tmp_path):
    return CPUOffloadPolicy() if request.param == "CPU" else FileOffloadPolicy(tmp_path)


def train(model, optimizer, rank, size, no_sync=None) -> None:
    """Two micro-batches a step."""
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(2):
            x, y = (t.tensor_split(2)[micro].tensor_split(size)[rank] for t in data(BATCH, step))
            with no_sync() if no_sync and not micro else torch.enable_grad():
                ((model(x) - y).square().sum() / BATCH).backward()
        optimizer.step()


def on_a_rank(kind, name, policy, deferred=False, **options):
    model = build(kind, 100 + dist.get_rank())
    shard = picolib.fully_shard if kind is TiedAndFrozen else sharded
    model = shard(model, offload_policy=policy, **options)
    model.set_gradient_divide_factor(1)
    optimizer = OPTIMIZERS[name](model.parameters())
    if isinstance(policy, FileOffloadPolicy):
        policy.offload_optimizer_state(optimizer)
    train(model, optimizer, dist.get_rank(), dist.get_world_size(), model.no_sync if deferred else None)
    return full_state_dict(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_bit_is_that_without_offload_and_the_numbers_those_of_one_process(world_size, name, policy):
    model = build(Plain, 100)
    train(model, OPTIMIZERS[name](model.parameters()), 0, 1)
    offloaded, plain = (picolib.run(on_a_rank, world_size, Plain, name, where) for where in (policy, None))
    for found, other in zip(offloaded, plain, strict=True):
        for key, right in model.state_dict().items():
            assert torch.equal(found[key], other[key]), key
            assert torch.allclose(found[key], right, rtol=1e-10, atol=1e-12), key


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (TiedAndFrozen, {}),
        (UsedInAnotherOrder, {"deferred": True}),
        (UsedInAnotherOrder, {"reshard_after_forward": False}),
        (UsedInAnotherOrder, {"mp_policy": MixedPrecisionPolicy(torch.float32, torch.float64)}),
        (WithRunningStatistics, {}),
    ],
    ids=["tied and frozen", "deferred", "kept", "mixed precision", "buffers"],
)
def test_every_bit_is_that_without_offload_in_other_programs_too(kind, options, policy):
    offloaded, plain = (picolib.run(partial(on_a_rank, kind, "AdamW", p, **options), 3) for p in (policy, None))
    for found, right in zip(offloaded, plain, strict=True):
        assert found.keys() == right.keys() and all(torch.equal(found[key], right[key]) for key in right)


def test_hybrid_sharding(policy):
    def fn(policy):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        return on_a_rank(Plain, "SGD", policy, mesh=mesh)

    offloaded, plain = (picolib.run(fn, 4, where) for where in (policy, None))
    assert all(torch.equal(offloaded[3][key], plain[0][key]) for key in plain[0])


def beside_pytorch():
    from torch.distributed.fsdp import fully_shard

    ours, theirs = build(UsedInAnotherOrder, 1), build(UsedInAnotherOrder, 1)
    sharded(ours, offload_policy=CPUOffloadPolicy())
    options = {"mesh": init_device_mesh("cpu", (2,)), "offload_policy": CPUOffloadPolicy(pin_memory=False)}
    for layer in theirs.children():
        fully_shard(layer, **options)
    fully_shard(theirs, **options)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in (ours, theirs)]
    for step in range(3):
        x, y = (t.tensor_split(2)[dist.get_rank()] for t in data(12, step))
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(float((a - b.to_local()).abs().max()) for a, b in pairs if a.numel())


def test_the_same_as_pytorchs_with_offload_to_the_cpu():
    assert max(picolib.run(beside_pytorch, 2)) < 1e-14


def full_states_and_clipping(policy):
    model = sharded(build(Plain, 3), offload_policy=policy)
    load_full_state_dict(model, build(Plain, 9).state_dict())
    x, y = (t.tensor_split(2)[dist.get_rank()] for t in data(BATCH))
    model.set_gradient_divide_factor(1)
    (model(x) - y).square().sum().backward()
    norm = picolib.clip_grad_norm_(model, 0.5)
    return full_state_dict(model), norm, picolib.clip_grad_norm_(model, 1e9)


def test_full_states_go_in_and_come_out_and_clipping_is_right(policy):
    model, (x, y) = build(Plain, 9), data(BATCH)
    (model(x) - y).square().sum().backward()
    right = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for state, norm, clipped in picolib.run(full_states_and_clipping, 2, policy):
        assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
        assert torch.allclose(norm, right, rtol=1e-12) and torch.allclose(clipped, torch.tensor(0.5).double())


def test_torchs_base_class_means_no_offload():
    plain, other = (picolib.run(on_a_rank, 2, Plain, "SGD", where)[0] for where in (None, OffloadPolicy()))
    assert all(torch.equal(plain[key], other[key]) for key in plain)


# Files ----------------------------------------------------------------------------------------------------------------


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


# A GPU ----------------------------------------------------------------------------------------------------------------


def on_a_gpu(policy):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).double()
    sharded(model, mesh=init_device_mesh("cuda", (dist.get_world_size(),)), offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        out = model(torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cuda())
        out.square().mean().backward()
        optimizer.step()
    devices = {t.device.type for p in model.parameters() for t in (p, p.grad, optimizer.state[p]["exp_avg"])}
    return out.device.type, devices, full_state_dict(model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="offload from a GPU needs a GPU")
def test_a_gpu_computes_and_the_cpu_steps(policy):
    offloaded, plain = (picolib.run(on_a_gpu, 1, where, device="cuda") for where in (policy, None))
    assert offloaded[0][:2] == ("cuda", {"cpu"})
    assert all(torch.allclose(offloaded[0][2][key].cpu(), value.cpu()) for key, value in plain[0][2].items())
