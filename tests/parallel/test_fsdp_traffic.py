"""What fully_shard sends and holds, and when."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import picolib
from picolib.launch import monitor
from tests.parallel.steps import sharded


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(4))).double()


NBYTES = 4 * 24 * 24 * 8


def steps(count: int, by_layer: bool, reshard: bool) -> None:
    model = stack()
    model = sharded(model, reshard_after_forward=reshard) if by_layer else picolib.fully_shard(model)
    for _ in range(count):
        model.zero_grad()
        model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()


@pytest.mark.parametrize(
    ("by_layer", "reshard", "collectives"), [(True, True, 3), (True, False, 2), (False, True, 2)], ids=str
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_bytes_of_a_step(world_size, by_layer, reshard, collectives):
    """3(N-1)/N of the parameters; 2(N-1)/N where they are kept after forward, as the root's own always are."""
    first, more = (picolib.run(steps, world_size, n, by_layer, reshard).trace for n in (1, 3))
    sent = [b - a for a, b in zip(first.bytes_sent, more.bytes_sent, strict=True)]
    assert sent == [2 * collectives * NBYTES * (world_size - 1) // world_size] * world_size


class WithItsOwn(nn.Module):
    """A layer, and a parameter that belongs to the root's unit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(24, 24, bias=False), nn.Parameter(torch.ones(24))

    def forward(self, x):
        return self.layer(x) * self.scale


LAYER, SCALE = 24 * 24 * 8, 24 * 8


def accumulated(count: int, deferred: bool, shape: tuple[int, ...]) -> None:
    """Steps of three micro-batches."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard")[-len(shape) :])
    model = sharded(WithItsOwn().double(), mesh=mesh)
    for _ in range(count):
        model.zero_grad()
        for micro in range(3):
            with model.no_sync() if deferred and micro < 2 else contextlib.nullcontext():
                model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2), (2, 3)], ids=str)
def test_bytes_of_accumulation_and_of_hybrid_sharding(shape, deferred):
    """Every micro-batch gathers, the root's own parameters once, the layer's twice. Replicas all-reduce shards."""
    *replicas, shards = shape
    world_size = shards * (replicas[0] if replicas else 1)
    first, more = (picolib.run(accumulated, world_size, n, deferred, shape).trace for n in (1, 3))
    reductions = 1 if deferred else 3
    one = (3 * (2 * LAYER + SCALE) + reductions * (LAYER + SCALE)) * (shards - 1) // shards
    across = reductions * (LAYER + SCALE) // shards if replicas else 0  # 2(R-1)/R of it, with R = 2
    sent = [b - a for a, b in zip(first.bytes_sent, more.bytes_sent, strict=True)]
    assert sent == [2 * (one + across)] * world_size


def memory_held() -> tuple[int, int, int]:
    """Bytes of whole parameters: before a step, at most inside a layer's forward, and after the step."""
    model = sharded(stack())
    units = [layer.__dict__["_picolib_unit"] for layer in model]
    whole = lambda: sum(p.full.data.untyped_storage().nbytes() for unit in units for p in unit.parameters)
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda *_: seen.append(whole()), prepend=True)
    before = whole()
    for _ in range(2):
        model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()
    return before, max(seen), whole()


def test_only_the_computing_layer_is_whole():
    for before, most, after in picolib.run(memory_held, 2):
        assert (before, most, after) == (0, NBYTES // 4, 0)


def local_numbers():
    model = sharded(stack())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()
    optimizer.step()
    parameters = sum(p.numel() for p in model.parameters())
    gradients = sum(p.grad.numel() for p in model.parameters())
    state = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim())
    return parameters, gradients, state


def test_a_rank_holds_its_part_of_parameters_gradients_and_state():
    part = 4 * 24 * 24 // 4
    assert list(picolib.run(local_numbers, 4)) == [(part, part, 2 * part)] * 4


def prefetched():
    model, x = sharded(stack()), torch.ones(2, 24, dtype=torch.float64)
    for number, layer in enumerate(model):
        mark = lambda *_, number=number: monitor.mark(f"computed {number}", time.monotonic())
        layer.register_forward_hook(mark, prepend=True)
    for _ in range(2):
        model(x).sum().backward()


def test_the_next_layer_is_gathered_while_one_computes():
    trace = picolib.run(prefetched, 2, trace=True).trace
    events = [e for e in trace.events if e.rank == 0 and e.kind == "collective"]
    gathers = [e for e in events if "unshard" in e.label][-8:]  # of the second step
    names = [e.label.split()[-2] for e in gathers]
    assert names == ["0", "1", "2", "3", "3", "2", "1", "0"]
    computed = [e.start for e in trace.events if e.rank == 0 and e.kind == "mark"][-4:]
    assert all(gather.start < before for gather, before in zip(gathers[1:4], computed[:3], strict=True))
