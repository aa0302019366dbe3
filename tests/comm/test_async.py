"""Asynchronous collectives: many in flight, waited for in any order, advanced by polling, beside other groups."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from picolib import comm
from picolib.comm.groups import SPARE_BYTES, resolve


def many_in_flight():
    rank, n = dist.get_rank(), dist.get_world_size()
    works, tensors = [], []
    for i, algorithm in enumerate(comm.algorithms("all_reduce")[:-1] * 3):
        tensors.append(torch.full((100 + i,), float(rank + i)))
        works.append(comm.all_reduce(tensors[-1], async_op=True, algorithm=algorithm))
    for i in sorted(range(len(works)), key=lambda i: (i * 7 + 3 * rank) % len(works)):
        works[i].wait()
    for i, tensor in enumerate(tensors):
        assert torch.all(tensor == sum(r + i for r in range(n))), i
    assert all(work.is_completed() for work in works)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_many_handles_waited_for_in_another_order_on_each_rank(run_ranks, world_size):
    run_ranks(many_in_flight, world_size)


def polled_only():
    rank, n = dist.get_rank(), dist.get_world_size()
    for algorithm in comm.algorithms("all_reduce")[:-1]:
        tensor = torch.full((1000,), float(rank))
        work = comm.all_reduce(tensor, async_op=True, algorithm=algorithm)
        until = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < until, algorithm
            time.sleep(0.001)
        assert torch.all(tensor == sum(range(n))), algorithm


def test_is_completed_alone_brings_a_collective_to_its_end(run_ranks):
    run_ranks(polled_only, 3)


def polled_while_computing():
    """Both ranks only poll; what they poll for is complete before anybody waits."""
    _, group = resolve(None)
    tensor = torch.ones(100_000)
    work = comm.all_reduce(tensor, async_op=True, algorithm="direct")
    until = time.monotonic() + 5
    while work in group.in_flight and time.monotonic() < until:
        comm.poll()
        time.sleep(0.001)
    finished = work not in group.in_flight
    work.wait()
    return finished


def test_poll_advances_a_collective_without_a_wait(run_ranks):
    assert all(run_ranks(polled_while_computing, 2))


def two_groups_waited_for_in_opposite_orders():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    a, b = torch.ones(5000), torch.ones(5000)
    works = [comm.all_reduce(a, group=first, async_op=True), comm.all_reduce(b, group=second, async_op=True)]
    for work in works if dist.get_rank() else reversed(works):
        work.wait()
    assert torch.all(a == 2) and torch.all(b == 2)


def test_groups_may_be_waited_for_in_any_order(run_ranks):
    run_ranks(two_groups_waited_for_in_opposite_orders, 2)


def other_calls_meanwhile():
    """A message, and a synchronous call on the same group, while a collective is in flight."""
    rank = dist.get_rank()
    tensor, message = torch.full((3000,), float(rank + 1)), torch.zeros(3)
    if rank == 0:
        work = comm.all_reduce(tensor, async_op=True, algorithm="ring")
        comm.send(torch.ones(3), 1)
    else:
        comm.recv(message, 0)
        work = comm.all_reduce(tensor, async_op=True, algorithm="ring")
        assert message.tolist() == [1, 1, 1]
    comm.all_reduce(tensor)  # goes behind the one in flight
    assert torch.all(tensor == 6)
    assert work.wait()


def test_messages_and_synchronous_calls_beside_a_collective_in_flight(run_ranks):
    run_ranks(other_calls_meanwhile, 2)


def buckets_of_a_backward_pass(steps):
    """Even ranks poll after every bucket, odd ranks never; bucket after bucket of several sizes, step after step."""
    rank, n = dist.get_rank(), dist.get_world_size()
    sizes = [10, 70_000, 300_000, 70_000, 1]
    for step in range(steps):
        tensors = [torch.full((size,), float(rank + step + i)) for i, size in enumerate(sizes)]
        works = []
        for tensor in tensors:
            works.append(comm.all_reduce(tensor, async_op=True))
            if rank % 2 == 0:
                time.sleep(0.001)
                comm.poll()
        for work in works if rank % 3 else reversed(works):
            work.wait()
        for i, tensor in enumerate(tensors):
            assert torch.all(tensor == sum(r + step + i for r in range(n))), (step, i)


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_rank_polls_and_another_does_not(run_ranks, world_size):
    run_ranks(buckets_of_a_backward_pass, world_size, 5)


def a_subgroup_and_the_world():
    """Ranks 0 and 1 have work in two groups, rank 2 in one; they wait in opposite orders."""
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    for _ in range(5):
        everybody, two = torch.ones(50_000), torch.ones(50_000)
        works = [comm.all_reduce(everybody, async_op=True, algorithm="ring")]
        if rank < 2:
            works.append(comm.all_reduce(two, group=pair, async_op=True))
        for work in works if rank == 0 else reversed(works):
            work.wait()
        assert torch.all(everybody == 3) and (rank == 2 or torch.all(two == 2))


def test_a_rank_with_work_in_one_group_does_not_hold_up_those_with_two(run_ranks):
    run_ranks(a_subgroup_and_the_world, 3)


def borrowed_buffers():
    """A buffer that was given back is used again; no more of them are kept than the limit says."""
    _, group = resolve(None)
    like = torch.empty(1000)
    first = group.borrow(like, 2)
    group.give_back(first)
    assert group.borrow(like, 2) is first and group.borrow(like, 2) is not first
    many = [group.borrow(torch.empty(1 << 20), 2) for _ in range(6)]
    for buffer in many:
        group.give_back(buffer)
    kept = [group.borrow(torch.empty(1 << 20), 2) for _ in many]
    assert 0 < sum(any(k is m for m in many) for k in kept) * many[0].nbytes <= SPARE_BYTES


def test_buffers_are_used_again_up_to_a_limit(run_ranks):
    run_ranks(borrowed_buffers, 1)


def every_collective_has_a_handle():
    rank, n = dist.get_rank(), dist.get_world_size()
    ones, blocks = torch.ones(4), [torch.ones(4) for _ in range(n)]
    out = [torch.zeros(4) for _ in range(n)]
    at_root = (lambda value: value) if rank == 0 else (lambda value: None)
    works = [
        comm.barrier(async_op=True),
        comm.broadcast(torch.ones(4), 0, async_op=True),
        comm.reduce(torch.ones(4), 0, async_op=True),
        comm.all_gather(out, ones, async_op=True),
        comm.all_gather_single(torch.zeros(4 * n), ones, async_op=True),
        comm.reduce_scatter(torch.zeros(4), blocks, async_op=True),
        comm.reduce_scatter_single(torch.zeros(4), torch.ones(4 * n), async_op=True),
        comm.all_to_all([torch.zeros(4) for _ in range(n)], blocks, async_op=True),
        comm.all_to_all_single(torch.zeros(4 * n), torch.ones(4 * n), async_op=True),
        comm.gather(ones, at_root([torch.zeros(4) for _ in range(n)]), 0, async_op=True),
        comm.scatter(torch.zeros(4), at_root(blocks), 0, async_op=True),
    ]
    return [work.wait() for work in works]


def test_every_collective_returns_a_handle(run_ranks):
    assert all(all(done) for done in run_ranks(every_collective_has_a_handle, 3))
