"""Every collective, with every algorithm, gives the right values: many cases in one run per number of ranks."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

from picolib import comm

LENGTHS = [0, 1, 7, 1001]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
THOROUGH = [1, 2, 3, 5]  # numbers of ranks that see all cases
OPS = ["SUM", "AVG", "MAX", "MIN", "PRODUCT"]


def vector(rank: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, different on each rank, so that every order of summation is exact."""
    numbers = (torch.arange(length) * (rank + 2) + 3 * rank) % 5 - 2
    return numbers.to(dtype)


def combined(op: str, vectors: list[torch.Tensor]) -> torch.Tensor:
    """The reference, computed in the simplest way: exactly, in double precision or whole numbers."""
    dtype = vectors[0].dtype
    stacked = torch.stack(vectors).to(torch.float64 if dtype.is_floating_point else torch.int64)
    results = {
        "SUM": stacked.sum(0),
        "AVG": stacked.sum(0) / len(vectors),
        "MAX": stacked.amax(0),
        "MIN": stacked.amin(0),
        "PRODUCT": stacked.prod(0),
    }
    return results[op].to(dtype)


def cases(thorough: bool) -> list[tuple[str, torch.dtype, int]]:
    """Every length, every dtype and every operation, but not each with each other."""
    if not thorough:
        return [("SUM", torch.float32, 1), ("AVG", torch.bfloat16, 1001)]
    some = [("SUM", torch.float32, length) for length in LENGTHS]
    some += [("SUM", dtype, 7) for dtype in DTYPES]
    some += [(op, torch.float64, 7) for op in OPS]
    return some + [("AVG", torch.bfloat16, 10), ("MAX", torch.int64, 5), ("PRODUCT", torch.int64, 3)]


def check(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal, but for the rounding of an average. (torch.testing would take seconds to import, on every rank.)"""
    assert got.dtype == want.dtype and got.shape == want.shape, name
    rounding = 0.01 if want.dtype.itemsize == 2 else 1e-6
    same = torch.allclose(got, want, rtol=rounding) if want.dtype.is_floating_point else torch.equal(got, want)
    assert same, f"{name}: got {got[:10]}, want {want[:10]}"


def algorithms(name: str) -> list[str]:
    return ["auto", *comm.algorithms(name)[:-1]]


def reductions(thorough, group=None, world=None):
    """all_reduce, reduce and reduce_scatter over a group whose members are the ranks `world`."""
    world = world or list(range(dist.get_world_size()))
    rank, n = dist.get_rank(), len(world)
    for (op, dtype, length), algorithm in itertools.product(cases(thorough), algorithms("all_reduce")):
        tensor = vector(rank, length, dtype)
        comm.all_reduce(tensor, getattr(dist.ReduceOp, op), group=group, algorithm=algorithm)
        want = combined(op, [vector(r, length, dtype) for r in world])
        check(f"all_reduce {algorithm} {op} {dtype} {length}", tensor, want)
    for (op, dtype, length), algorithm in itertools.product(cases(thorough), algorithms("reduce")):
        root = world[length % n]
        tensor = vector(rank, length, dtype)
        comm.reduce(tensor, root, getattr(dist.ReduceOp, op), group=group, algorithm=algorithm)
        want = combined(op, [vector(r, length, dtype) for r in world]) if rank == root else vector(rank, length, dtype)
        check(f"reduce {algorithm} {op} {dtype} {length}", tensor, want)
    for (op, dtype, length), algorithm in itertools.product(cases(thorough), algorithms("reduce_scatter")):
        whole = [vector(r, n * length, dtype) for r in world]
        mine, place = whole[world.index(rank)], world.index(rank)
        want = combined(op, whole)[place * length : (place + 1) * length]
        out, before = torch.empty(length, dtype=dtype), mine.clone()
        comm.reduce_scatter_tensor(out, mine, getattr(dist.ReduceOp, op), group=group, algorithm=algorithm)
        check(f"reduce_scatter_tensor {algorithm} {op} {dtype} {length}", out, want)
        assert torch.equal(mine, before), "the input changed"
        out = torch.empty(length, dtype=dtype)
        apart = [part.clone() for part in mine.chunk(n)] if length else [mine] * n
        comm.reduce_scatter(out, apart, getattr(dist.ReduceOp, op), group=group, algorithm=algorithm)
        check(f"reduce_scatter {algorithm} {op} {dtype} {length}", out, want)


def moves(thorough, group=None, world=None):
    """broadcast, all_gather, gather, scatter and all_to_all over a group whose members are the ranks `world`."""
    world = world or list(range(dist.get_world_size()))
    rank, n = dist.get_rank(), len(world)
    place = world.index(rank)
    kinds = [(torch.float32, length) for length in LENGTHS] + [(dtype, 3) for dtype in DTYPES]
    kinds = kinds if thorough else [(torch.float32, 1), (torch.bfloat16, 1001)]
    for (dtype, length), algorithm in itertools.product(kinds, algorithms("broadcast")):
        for root in (world[0], world[-1]):
            tensor = vector(rank, length, dtype)
            comm.broadcast(tensor, root, group=group, algorithm=algorithm)
            check(f"broadcast {algorithm} {dtype} {length}", tensor, vector(root, length, dtype))
    for (dtype, length), algorithm in itertools.product(kinds, algorithms("all_gather")):
        want = torch.stack([vector(r, length, dtype) for r in world])
        out = torch.empty(n, length, dtype=dtype)
        comm.all_gather_into_tensor(out, vector(rank, length, dtype), group=group, algorithm=algorithm)
        check(f"all_gather_into_tensor {algorithm} {dtype} {length}", out, want)
        outs = [torch.empty(length, dtype=dtype) for _ in world]
        comm.all_gather(outs, vector(rank, length, dtype), group=group, algorithm=algorithm)
        check(f"all_gather {algorithm} {dtype} {length}", torch.stack(outs), want)
    for (dtype, length), algorithm in itertools.product(kinds, algorithms("all_to_all")):
        inputs = [vector(10 * rank + r, length, dtype) for r in world]
        want = torch.stack([vector(10 * r + rank, length, dtype) for r in world])
        outs = [torch.empty(length, dtype=dtype) for _ in world]
        comm.all_to_all(outs, inputs, group=group, algorithm=algorithm)
        check(f"all_to_all {algorithm} {dtype} {length}", torch.stack(outs), want)
        out = torch.empty(n * length, dtype=dtype)
        comm.all_to_all_single(out, torch.cat(inputs), group=group, algorithm=algorithm)
        check(f"all_to_all_single {algorithm} {dtype} {length}", out.view(n, length), want)
    for (dtype, length), algorithm in itertools.product(kinds, algorithms("gather")):
        root = world[length % n]
        outs = [torch.empty(length, dtype=dtype) for _ in world] if rank == root else None
        comm.gather(vector(rank, length, dtype), outs, root, group=group, algorithm=algorithm)
        for r, out in zip(world, outs or [], strict=False):
            check(f"gather {algorithm} {dtype} {length}", out, vector(r, length, dtype))
        out = torch.empty(length, dtype=dtype)
        blocks = [vector(r, length, dtype) for r in world] if rank == root else None
        comm.scatter(out, blocks, root, group=group, algorithm=algorithm)
        check(f"scatter {algorithm} {dtype} {length}", out, vector(rank, length, dtype))
    for algorithm in algorithms("barrier"):
        comm.barrier(group, algorithm=algorithm)
    assert 0 <= place < n


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 8])
def test_reductions_are_right_for_every_algorithm(run_ranks, world_size):
    run_ranks(reductions, world_size, world_size in THOROUGH, checked=world_size < 7)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 8])
def test_moves_are_right_for_every_algorithm(run_ranks, world_size):
    run_ranks(moves, world_size, world_size in THOROUGH, checked=world_size < 7)


def in_groups():
    groups = [[1, 3, 4], [0, 2], [4, 1]]
    handles = [dist.new_group(ranks) for ranks in groups]
    for group, ranks in zip(handles, groups, strict=True):
        if dist.get_rank() in ranks:
            ordered = dist.get_process_group_ranks(group)
            reductions(False, group, ordered)
            moves(False, group, ordered)


def test_groups_that_do_not_start_at_rank_0(run_ranks):
    run_ranks(in_groups, 5)
