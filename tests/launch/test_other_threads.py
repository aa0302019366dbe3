"""The board looks at threads that come and go by the hundred, and nothing crashes, hangs or is accused."""

from __future__ import annotations

import gc
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist

import picolib


class Cycle:
    """Garbage for the collector, whose destructor may let other threads run, as those of torch's handles do."""

    def __init__(self):
        self.me = self

    def __del__(self):
        if random.random() < 0.05:
            time.sleep(0.00005)


def short(depth):
    Cycle()
    if depth:
        return short(depth - 1)
    time.sleep(0.0002)


def many_short_threads(seconds):
    """While some threads only compute, short ones use sub-groups one after the other, and the main thread the world."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([a, b]) for a in range(size) for b in range(a + 1, size)]
    gc.set_threshold(50)
    sums, over = [], threading.Event()

    def compute():
        while not over.is_set():
            threads = [threading.Thread(target=short, args=(5,)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def communicate(group):
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        sums.append(x.tolist())

    computing = threading.Thread(target=compute)
    computing.start()
    more, end = torch.ones(1), time.monotonic() + seconds
    while more.item():
        threads = [threading.Thread(target=communicate, args=(g,)) for g in groups if dist.get_rank(g) >= 0]
        for thread in threads:
            thread.start()
        for _ in range(10):
            more.fill_(float(rank == 0 and time.monotonic() < end))
            dist.broadcast(more, 0)
        for thread in threads:
            thread.join()
    over.set()
    computing.join()
    return len(sums) > 50 and sums == [[2.0] * 3] * len(sums)


@pytest.mark.timeout(120)
def test_hundreds_of_short_threads_some_of_which_communicate():
    assert list(picolib.run(many_short_threads, 3, 4.0, timeout=20)) == [True] * 3


def test_the_collector_runs_again_after_the_board_has_looked_and_stays_off_where_it_was_off():
    def program(enabled):
        if not enabled:
            gc.disable()
        thread = threading.Thread(target=time.sleep, args=(0.7,))
        thread.start()
        dist.all_reduce(torch.ones(1))
        thread.join()
        return gc.isenabled()

    assert list(picolib.run(program, 2, True)) == [True, True]
    assert list(picolib.run(program, 2, False)) == [False, False]
