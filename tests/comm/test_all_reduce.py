"""All-reduce: right values and the same bits on every rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from picolib import comm


def _contribution(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-3, 4, (length,), generator=generator).to(dtype)


def _sums():
    rank, size = dist.get_rank(), dist.get_world_size()
    for algorithm in ("naive", "ring"):
        for length in (0, 1, 7, 1001):
            tensor = _contribution(rank, length, torch.float32)
            comm.all_reduce(tensor, algorithm=algorithm)
            assert torch.equal(tensor, sum(_contribution(r, length, torch.float32) for r in range(size)))
    works, tensors = [], []
    for i in range(4):
        tensors.append(_contribution(rank, 100 + i, torch.float32))
        works.append(comm.all_reduce(tensors[-1], async_op=True))
    for i in (2, 0, 1, 3):
        works[i].wait()
    while not works[3].is_completed():
        pass
    for i in range(4):
        assert torch.equal(tensors[i], sum(_contribution(r, 100 + i, torch.float32) for r in range(size)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_algorithm_sums(run_ranks, world_size):
    run_ranks(_sums, world_size)
