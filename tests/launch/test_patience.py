"""Long compute, long sleep and long transfers are nobody's fault."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import picolib
from picolib import comm

LONG = 10.0  # seconds
LARGE = 50_000_000  # elements: 200 MB


def test_ten_seconds_of_sleep_on_one_rank_and_of_pure_python_on_another():
    def program():
        rank, x = dist.get_rank(), torch.ones(1)
        end, count = time.monotonic() + LONG, 0
        if rank == 1:
            time.sleep(LONG)
        elif rank == 2:
            while time.monotonic() < end:
                count += 1
        if rank == 3:
            dist.recv(x, 1)  # waits for the sleeper, the others for the one that computes
        elif rank == 1:
            dist.send(x, 3)
        dist.all_reduce(x)
        comm.all_reduce(x, algorithm="ring")
        return x.item()

    assert list(picolib.run(program, 4, timeout=2 * LONG)) == [16.0] * 4


def test_a_long_transfer_while_a_third_rank_waits_for_both_ends():
    def program():
        rank, x, pair = dist.get_rank(), torch.full((LARGE,), 1.0), dist.new_group([0, 1])
        for api in (dist, comm):
            for _ in range(3):
                if rank == 0:
                    api.send(x, 1)
                elif rank == 1:
                    api.recv(x, 0)
            api.barrier()
        if rank < 2:
            comm.all_reduce(x, group=pair, algorithm="ring")
        return x[-1].item()

    assert list(picolib.run(program, 3, timeout=60)) == [2.0, 2.0, 1.0]
