"""The bytes and messages that each rank sends are those of the algorithm's formula, exactly."""

from __future__ import annotations

import copy
import doctest

import pytest
import torch
import torch.distributed as dist

from picolib import comm
from picolib.comm import auto, traffic

LENGTHS = [0, 1, 7, 1001]
LONG = 700_001  # float32: several segments


def run_one(name: str, algorithm: str, length: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    root = n - 1
    vector, block, blocks = torch.ones(length), torch.ones(length), [torch.ones(length) for _ in range(n)]
    at_root = blocks if rank == root else None
    if name == "all_reduce":
        comm.all_reduce(vector, algorithm=algorithm)
    elif name == "broadcast":
        comm.broadcast(vector, root, algorithm=algorithm)
    elif name == "reduce":
        comm.reduce(vector, root, algorithm=algorithm)
    elif name == "all_gather":
        comm.all_gather(blocks, block, algorithm=algorithm)
    elif name == "reduce_scatter":
        comm.reduce_scatter(block, blocks, algorithm=algorithm)
    elif name == "all_to_all":
        comm.all_to_all([torch.ones(length) for _ in range(n)], blocks, algorithm=algorithm)
    elif name == "gather":
        comm.gather(block, at_root, root, algorithm=algorithm)
    elif name == "scatter":
        comm.scatter(block, at_root, root, algorithm=algorithm)
    elif name == "barrier":
        comm.barrier(algorithm=algorithm)


def cases(name: str) -> list[tuple[str, int]]:
    algorithms = comm.algorithms(name)[:-1]
    lengths = [*LENGTHS, LONG] if name in ("all_reduce", "broadcast") else LENGTHS
    return [(algorithm, length) for algorithm in algorithms for length in lengths]


def total(counts) -> int:
    return sum(counts.values()) if isinstance(counts, dict) else sum(counts)


def counted() -> dict:
    """What this rank sends in each case, as the monitor counts it."""
    from picolib.launch import monitor

    recorder, found = monitor.observer().recorder, {}
    for name in auto.ALGORITHMS:
        for algorithm, length in cases(name):
            before = copy.deepcopy(recorder.report())
            run_one(name, algorithm, length)
            after = recorder.report()
            found[name, algorithm, length] = [
                total(after[what]) - total(before[what]) for what in ("bytes", "messages")
            ]
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_bytes_and_messages_are_those_of_the_formula(run_ranks, world_size):
    found = run_ranks(counted, world_size, checked=world_size < 8)
    for rank, cases_of_rank in enumerate(found):
        for (name, algorithm, length), counts in cases_of_rank.items():
            sizes = comm.messages_sent(name, algorithm, length, world_size, rank, root=world_size - 1)
            assert counts == [sum(sizes), len(sizes)], (name, algorithm, length, rank)


def test_a_ring_sends_two_n_minus_one_nths_in_the_mean():
    sent = [comm.bytes_sent("all_reduce", "ring", 1001, 4, rank) for rank in range(4)]
    assert sum(sent) / 4 == 2 * 3 / 4 * 1001 * 4


def test_the_examples_in_the_documentation_are_right():
    assert doctest.testmod(traffic).failed == 0
    assert doctest.testmod(auto).failed == 0


def test_the_choice_is_a_pure_function_and_never_native():
    for name in auto.ALGORITHMS:
        for size in range(1, 9):
            for power in range(27):
                for async_op in (False, True):
                    chosen = auto.choose(name, 1 << power, size, async_op)
                    assert chosen == auto.choose(name, 1 << power, size, async_op) != "native"
                assert chosen in comm.algorithms(name)
