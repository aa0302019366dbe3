"""fully_shard against the one-process model and against PyTorch's: gradients, parameters, bytes, memory, errors."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import picolib
from picolib.parallel.full_state import full_state_dict
from tests.parallel.steps import sharded
from tests.parallel.zoo import Plain, TiedAndFrozen, UsedInAnotherOrder, build, data

STEPS, BATCH = 5, 13


def train(model, optimizer, rank, size, accumulation=1, no_sync=None, record=None):
    history = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulation):
            x, y = (t.tensor_split(accumulation)[micro].tensor_split(size)[rank] for t in data(BATCH, seed=step))
            local = no_sync is not None and micro < accumulation - 1
            with no_sync() if local else contextlib.nullcontext():
                ((model(x) - y).square().sum() / BATCH).backward()
        optimizer.step()
        history.append(record(model))
    return history


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


def on_a_rank(kind, name, accumulation=1, deferred=False, by_layer=True, **options):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = build(kind, seed=100 + rank)
    model = sharded(model, **options) if by_layer else picolib.fully_shard(model, **options)
    model.set_gradient_divide_factor(1)
    optimizer = OPTIMIZERS[name](model.parameters())
    no_sync = model.no_sync if deferred else None
    return train(model, optimizer, rank, size, accumulation, no_sync, full_state_dict)


def plain_state(model):
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


def assert_equal_to_one_process(kind, name, world_size, accumulation=1, **options):
    model = build(kind, seed=100)
    right = train(model, OPTIMIZERS[name](model.parameters()), 0, 1, accumulation, None, plain_state)
    for history in picolib.run(partial(on_a_rank, kind, name, accumulation, **options), world_size):
        for step, (found, wanted) in enumerate(zip(history, right, strict=True)):
            assert found.keys() == wanted.keys()
            for key in wanted:
                assert torch.allclose(found[key], wanted[key], rtol=1e-10, atol=1e-12), (step, key)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_parameters_equal_the_one_process_model(world_size, name):
    assert_equal_to_one_process(Plain, name, world_size)


@pytest.mark.parametrize(
    "options",
    [{"by_layer": False}, {"reshard_after_forward": False}, {"algorithm": "ring"}],
    ids=lambda options: next(iter(options)),
)
def test_every_option_gives_the_same_numbers(options):
    assert_equal_to_one_process(UsedInAnotherOrder, "SGD", 3, **options)


@pytest.mark.parametrize("deferred", [False, True])
def test_accumulation_with_and_without_deferred_reduction(deferred):
    assert_equal_to_one_process(Plain, "SGD", 3, accumulation=2, deferred=deferred)


def test_tied_and_frozen_parameters_in_one_unit():
    assert_equal_to_one_process(TiedAndFrozen, "SGD", 3, by_layer=False)


def test_a_tie_across_units_is_an_error_that_names_it():
    with pytest.raises(picolib.RankError, match="tied to a parameter that fully_shard has put into another unit"):
        picolib.run(partial(on_a_rank, TiedAndFrozen, "SGD"), 2)


def in_a_mesh(shape):
    names = ("dp_replicate", "dp_shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return on_a_rank(Plain, "SGD", mesh=mesh)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (2, 1), (1, 3)])
def test_hybrid_sharding_on_a_mesh(shape):
    model = build(Plain, seed=100)
    right = train(model, OPTIMIZERS["SGD"](model.parameters()), 0, 1, 1, None, plain_state)
    for history in picolib.run(in_a_mesh, shape[0] * (shape[1] if len(shape) > 1 else 1), shape):
        for key in right[-1]:
            assert torch.allclose(history[-1][key], right[-1][key], rtol=1e-10, atol=1e-12), key


def in_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    parallel = dist.is_initialized() and dist.get_world_size() > 1
    if parallel:
        model = sharded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        optimizer.zero_grad()
        for rank in [dist.get_rank()] if parallel else [0, 1]:
            (model(x.tensor_split(2)[rank]).square().mean() / (1 if parallel else 2)).backward()
        optimizer.step()
    return full_state_dict(model)


def test_on_two_ranks_in_float32_every_bit_is_that_of_accumulating_the_ranks_batches():
    alone = picolib.run(in_float32, 1)[0]
    for found in picolib.run(in_float32, 2):
        assert all(torch.equal(found[name], alone[name]) for name in alone)


def beside_pytorch(name):
    from torch.distributed.fsdp import fully_shard

    rank, ours, theirs = dist.get_rank(), build(UsedInAnotherOrder, 1), build(UsedInAnotherOrder, 1)
    sharded(ours)
    for layer in theirs.children():
        fully_shard(layer, mesh=init_device_mesh("cpu", (3,)))
    fully_shard(theirs, mesh=init_device_mesh("cpu", (3,)))
    optimizers = [OPTIMIZERS[name](model.parameters()) for model in (ours, theirs)]
    for step in range(STEPS):
        x, y = (t.tensor_split(3)[rank] for t in data(12, seed=step))
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    same_layout = all(a.shape == b.to_local().shape for a, b in pairs)
    return same_layout, max([float((a - b.to_local()).abs().max()) for a, b in pairs if a.numel()])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_numbers_and_the_same_shards_as_pytorchs_fully_shard(name):
    for same_layout, differ in picolib.run(beside_pytorch, 3, name):
        assert same_layout and differ < 1e-14


class Policy:
    """The fields of torch's MixedPrecisionPolicy."""

    param_dtype, reduce_dtype, output_dtype = torch.bfloat16, torch.float32, torch.float32


def in_mixed_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    seen = []
    model[0].register_forward_hook(lambda m, args, out: seen.append((m.weight.dtype, args[0].dtype, out.dtype)))
    picolib.fully_shard(model, mp_policy=Policy)
    out = model(torch.ones(2, 16))
    out.sum().backward()
    grads = {(p.dtype, p.grad.dtype) for p in model.parameters()}
    return seen, out.dtype, grads


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32():
    seen, out, grads = picolib.run(in_mixed_precision, 2)[0]
    assert seen == [(torch.bfloat16,) * 3]
    assert out == torch.float32
    assert grads == {(torch.float32, torch.float32)}
