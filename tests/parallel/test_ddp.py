"""DistributedDataParallel against the one-process model on the whole batch: gradients and parameters, on every rank."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import picolib
from tests.parallel.zoo import Plain, TiedAndFrozen, UsedInAnotherOrder, build, data

STEPS, BATCH = 5, 12
SMALL = 40 / (1 << 20)  # MiB: five float64 numbers fill a bucket, so that there are several


def share(step: int, micro: int, accumulation: int, rank: int, size: int):
    """Rank `rank`'s part of one micro-batch of a step; the parts differ in length, and some are empty."""
    x, y = (t.tensor_split(accumulation)[micro] for t in data(BATCH + 1, seed=step))
    return x.tensor_split(size)[rank], y.tensor_split(size)[rank]


def loss_of(model, x, y):
    """The sum of squares, divided by the size of the whole batch: ranks with no example give 0."""
    return (model(x) - y).square().sum() / (BATCH + 1)


def record(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and gradients, by name."""
    found = {name: p.detach().clone() for name, p in model.named_parameters()}
    return found | {f"{n}.grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def train(model, parts, accumulation: int, no_sync) -> list[dict[str, torch.Tensor]]:
    """SGD; the model after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulation):
            with no_sync(micro < accumulation - 1):
                loss_of(model, *parts(step, micro)).backward()
        optimizer.step()
        history.append(record(model.module if hasattr(model, "module") else model))
    return history


class Sync:
    """`with Sync(model)(True):` is `with model.no_sync():`; with False, nothing."""

    def __init__(self, model=None):
        self.model = model

    def __call__(self, local: bool):
        from contextlib import nullcontext

        return self.model.no_sync() if local and self.model is not None else nullcontext()


def on_a_rank(kind, accumulation: int, options: dict):
    """Every rank starts from another seed: the broadcast has to make them one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = picolib.DistributedDataParallel(build(kind, seed=100 + rank), **options)
    parts = partial(share, accumulation=accumulation, rank=rank, size=size)
    return train(model, parts, accumulation, Sync(model))


def assert_equal_to_one_process(kind, world_size: int, accumulation: int, options: dict) -> None:
    alone = partial(share, accumulation=accumulation, rank=0, size=1)
    right = train(build(kind, seed=100), alone, accumulation, Sync())
    run = picolib.run(partial(on_a_rank, kind, accumulation), world_size, options)
    for rank, history in enumerate(run):
        for step, (found, wanted) in enumerate(zip(history, right, strict=True)):
            assert found.keys() == wanted.keys()
            for name in wanted:
                assert torch.allclose(found[name], wanted[name], rtol=1e-12, atol=1e-13), (rank, step, name)
    for history in run[1:]:
        for found, first in zip(history, run[0], strict=True):
            assert all(torch.equal(found[name], first[name]) for name in first)  # the same bits on all ranks


SUM = {"bucket_cap_mb": SMALL, "gradient_divide_factor": 1}


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_gradients_and_parameters_equal_the_one_process_model(world_size, accumulation):
    assert_equal_to_one_process(Plain, world_size, accumulation, SUM)


@pytest.mark.parametrize("kind", [TiedAndFrozen, UsedInAnotherOrder])
def test_tied_frozen_and_shuffled_parameters(kind):
    assert_equal_to_one_process(kind, 3, 2, SUM)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 25},
        {"bucket_cap_mb": 1e-6},
        {"gradient_as_bucket_view": False},
        {"find_unused_parameters": True},
        {"algorithm": "ring"},
        {"reduce_dtype": torch.float64},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_gives_the_same_numbers(options):
    assert_equal_to_one_process(Plain, 3, 2, {**SUM, **options})


def mean_on_a_rank() -> float:
    x, y = (t.tensor_split(4)[dist.get_rank()] for t in data(12))
    model = picolib.DistributedDataParallel(build(Plain, seed=dist.get_rank()))
    (model(x) - y).square().mean().backward()
    return model.module.second.weight.grad


def test_without_a_divide_factor_the_gradient_is_the_mean_over_ranks():
    x, y = data(12)
    model = build(Plain, seed=0)
    (model(x) - y).square().mean().backward()
    for found in picolib.run(mean_on_a_rank, 4):
        assert torch.allclose(found, model.second.weight.grad, rtol=1e-12)


def in_a_group() -> torch.Tensor | None:
    group = dist.new_group([1, 3, 4])
    if dist.get_rank() not in (1, 3, 4):
        return None
    module = build(Plain, seed=dist.get_rank())
    model = picolib.DistributedDataParallel(module, process_group=group, bucket_cap_mb=SMALL)
    x, y = (t.tensor_split(3)[dist.get_rank(group)] for t in data(12))
    (model(x) - y).square().mean().backward()
    return model.module.first.weight.grad


def test_a_group_that_does_not_start_at_rank_0():
    x, y = data(12)
    model = build(Plain, seed=1)
    (model(x) - y).square().mean().backward()
    run = picolib.run(in_a_group, 5)
    assert run[0] is None and run[2] is None
    for rank in (1, 3, 4):
        assert torch.allclose(run[rank], model.first.weight.grad, rtol=1e-12)


def beside_torch(kind, steps: int):
    """The same job by picolib's and by PyTorch's: gradients of each step, and the buckets in their order."""
    rank = dist.get_rank()
    ours = picolib.DistributedDataParallel(build(kind, seed=rank), bucket_cap_mb=SMALL)
    theirs = nn.parallel.DistributedDataParallel(build(kind, seed=rank), bucket_cap_mb=SMALL)
    names = {id(p): name for name, p in theirs.module.named_parameters()}
    order: list[list[str]] = []

    def hook(state, bucket):
        order.append([names[id(p)] for p in bucket.parameters()])
        return allreduce_hook(None, bucket)

    theirs.register_comm_hook(None, hook)
    differ = []
    for step in range(steps):
        order.clear()
        for model in (ours, theirs):
            model.zero_grad()
            x, y = (t.tensor_split(3)[rank] for t in data(12, seed=step))
            (model(x) - y).square().mean().backward()
        pairs = zip(ours.module.parameters(), theirs.module.parameters(), strict=True)
        differ.append(max(float((a.grad - b.grad).abs().max()) for a, b in pairs if a.grad is not None and a.numel()))
    mine = [[ours.reducer.names[i] for i in bucket.positions] for bucket in ours.reducer.buckets]
    return differ, mine, order


@pytest.mark.parametrize("kind", [Plain, UsedInAnotherOrder])
def test_gradients_and_buckets_are_those_of_pytorch(kind):
    for differ, mine, theirs in picolib.run(beside_torch, 3, kind, 3):
        assert max(differ) < 1e-14
        assert mine == theirs
        assert len(mine) > 1
