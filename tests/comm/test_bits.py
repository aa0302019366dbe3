"""After an all-reduce, all ranks hold the same bits, whatever the order in which they were combined."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from picolib import comm

ALGORITHMS = comm.algorithms("all_reduce")[:-1]


def results():
    """Random numbers, and zeros of both signs, for which min depends on the order of its arguments."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        for op in ("SUM", "AVG", "MIN", "MAX"):
            for algorithm in ALGORITHMS:
                generator = torch.Generator().manual_seed(dist.get_rank())
                tensor = torch.randn(257, generator=generator)
                tensor[:50] = 0.0 if dist.get_rank() % 2 else -0.0
                tensor = tensor.to(dtype)
                comm.all_reduce(tensor, getattr(dist.ReduceOp, op), algorithm=algorithm)
                found[algorithm, op, dtype] = tensor.view(torch.uint8).tolist()
    return found


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_all_ranks_end_with_the_same_bits(run_ranks, world_size):
    found = run_ranks(results, world_size, checked=False)
    for case, bits in found[0].items():
        for rank in range(1, world_size):
            assert found[rank][case] == bits, (case, rank)
