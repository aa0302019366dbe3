"""fully_shard with shards on the CPU and in files: the same numbers as without."""

from __future__ import annotations

from functools import partial

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
