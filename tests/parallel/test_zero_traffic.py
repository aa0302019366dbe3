"""What the sharded optimizer sends and holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import picolib


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(4))).double()


NBYTES = 4 * 24 * 24 * 8


def steps(stage: int, count: int, accumulation: int) -> None:
    model = stack()
    optimizer = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, stage=stage, lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        for _ in range(accumulation):
            model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_of_a_step(world_size, stage, accumulation):
    """(N-1)/N of the gradients once a step, in stage 2 once a backward pass, and (N-1)/N of the parameters."""
    first, more = (picolib.run(steps, world_size, stage, n, accumulation).trace for n in (1, 3))
    share = NBYTES * (world_size - 1) // world_size
    reductions = accumulation if stage == 2 else 1
    sent = [b - a for a, b in zip(first.bytes_sent, more.bytes_sent, strict=True)]
    assert sent == [2 * (reductions + 1) * share] * world_size
    for before, after in zip(first.calls, more.calls, strict=True):
        calls = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        assert calls == {"reduce_scatter_tensor": 2 * reductions, "all_gather_into_tensor": 2}  # one bucket


def gradients_after_backward(stage: int):
    model = stack()
    optimizer = picolib.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, stage=stage, lr=0.1, bucket_cap_mb=24 * 24 * 8 / (1 << 20)
    )
    model(torch.ones(2, 24, dtype=torch.float64)).sum().backward()
    optimizer.finalize_grads()
    own = sum(piece.shard.grad.numel() for bucket in optimizer.buckets for piece in bucket.pieces)
    return [p.grad is not None for p in model.parameters()], own


def test_stage_2_keeps_its_own_part_of_the_gradients_only():
    assert picolib.run(gradients_after_backward, 2, 1)[1] == ([True] * 4, 2 * 24 * 24)
    assert picolib.run(gradients_after_backward, 2, 2)[1] == ([False] * 4, 2 * 24 * 24)
