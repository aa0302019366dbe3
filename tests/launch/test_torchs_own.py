"""torch's own strategies run under the board as they do without it: same numbers, no false alarm, late ranks or not."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib

LATE = 1.3  # seconds by which one rank comes later than the others, longer than the board's patience


def same_with_and_without_the_board(program, world_size):
    watched, alone = (list(picolib.run(program, world_size, checked=checked, timeout=40)) for checked in (True, False))
    assert watched == alone
    return watched


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))


def train(wrapped, parameters, steps=3, clip=None):
    """Losses of a few steps; in each of the first ones another rank is late."""
    optimizer, losses = torch.optim.SGD(parameters, 0.1), []
    for step in range(steps):
        if step == dist.get_rank() and step < 2:
            time.sleep(LATE)
        optimizer.zero_grad()
        loss = wrapped(torch.full((4, 8), 1.0 + dist.get_rank())).square().mean()
        loss.backward()
        if clip is not None:
            clip()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_distributed_data_parallel_with_unused_parameters_accumulation_and_uneven_inputs():
    def program():
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.unused = model(), nn.Linear(3, 3)

            def forward(self, x):
                return self.body(x)

        ddp = nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
        losses = train(ddp, ddp.parameters())
        plain = nn.parallel.DistributedDataParallel(model())
        with plain.no_sync():
            plain(torch.ones(1, 8)).sum().backward()
        plain(torch.ones(1, 8)).sum().backward()
        with plain.join():  # rank r brings r + 1 batches
            for _ in range(dist.get_rank() + 1):
                plain(torch.ones(1, 8)).sum().backward()
        return losses

    same_with_and_without_the_board(program, 2)


def test_fully_shard_layer_by_layer_with_mixed_precision_and_clipping():
    def program():
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        losses = []
        for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
            sharded = model()
            for layer in sharded:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mp_policy=policy)
            fully_shard(sharded, mp_policy=policy)
            clip = lambda m=sharded: nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            losses += train(sharded, sharded.parameters(), clip=clip)
        return losses

    same_with_and_without_the_board(program, 2)


def test_functional_collectives_with_and_without_gradients():
    def program():
        import torch.distributed._functional_collectives as functional
        import torch.distributed.nn.functional as differentiable

        world, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
        x = torch.full((size * 2,), 1.0 + rank, requires_grad=True)
        total = functional.all_reduce(x.detach(), "sum", world)
        if rank == 1:
            time.sleep(LATE)
        gathered = functional.all_gather_tensor(x.detach(), 0, world)
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, world)
        exchanged = functional.all_to_all_single(x.detach(), None, None, world)
        functional.all_reduce_coalesced([x.detach(), x.detach()], "avg", world)
        differentiable.all_reduce(x).sum().backward()
        if rank == 0:
            time.sleep(LATE)
        return [float(t.sum()) for t in (total, gathered, scattered, exchanged, x.grad)]

    assert same_with_and_without_the_board(program, 3)[0][0] == 36.0


def test_tensor_parallel_layers():
    def program():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallel = parallelize_module(model()[:3], mesh, plan)
        if dist.get_rank() == 1:
            time.sleep(LATE)
        loss = parallel(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss.item()

    same_with_and_without_the_board(program, 2)


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
def test_a_pipeline(name):
    def program():
        from torch.distributed import pipelining

        rank, layers = dist.get_rank(), model()
        part = layers[:2] if rank == 0 else layers[2:]
        stage = pipelining.PipelineStage(part, rank, 2, torch.device("cpu"))
        schedule = getattr(pipelining, name)(stage, 4, loss_fn=lambda y, target: (y - target).square().mean())
        if rank == 1:
            time.sleep(LATE)
        if rank == 0:
            schedule.step(torch.ones(8, 8))
            return [p.grad.sum().item() for p in part.parameters()]
        losses: list = []
        schedule.step(target=torch.zeros(8, 1), losses=losses)
        return [loss.item() for loss in losses]

    same_with_and_without_the_board(program, 2)
