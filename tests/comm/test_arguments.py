"""What tensors and arguments are taken, and the one sentence for those that are not: the same on all ranks."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
import torch.distributed as dist

from picolib import comm

MORE = {"algorithm", "ranks_per_node", "label"}  # what our signatures have beyond torch's


@pytest.mark.parametrize("name", sorted(set(comm.__all__) & set(dir(dist)) - {"P2POp", "Work", "algorithms"}))
def test_parameters_are_torchs_own_in_the_same_order(name):
    ours = [p for p in inspect.signature(getattr(comm, name)).parameters if p not in MORE]
    assert ours == list(inspect.signature(getattr(dist, name)).parameters)


def strided():
    """Views with gaps: torch's own would read or write their neighbours."""
    n = dist.get_world_size()
    for algorithm in comm.algorithms("all_reduce")[:-1]:
        whole = torch.zeros(6, 3)
        whole[:, 0] = dist.get_rank() + 1.0
        comm.all_reduce(whole[:, 0], algorithm=algorithm)
        assert torch.all(whole[:, 0] == n * (n + 1) / 2) and torch.all(whole[:, 1:] == 0), algorithm
    whole = torch.zeros(4, 2)
    comm.broadcast(whole[:, 1] if dist.get_rank() else torch.arange(4.0), 0)
    assert dist.get_rank() == 0 or whole[:, 1].tolist() == [0, 1, 2, 3]
    out = torch.zeros(n, 2, 2)
    comm.all_gather([out[r].t() for r in range(n)], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), algorithm="ring")
    assert torch.all(out[0] == torch.tensor([[1.0, 3.0], [2.0, 4.0]]))
    parameter = torch.nn.Parameter(torch.ones(3))
    comm.all_reduce(parameter)
    assert torch.all(parameter == n) and parameter.requires_grad


def test_non_contiguous_tensors_and_parameters_work(run_ranks):
    run_ranks(strided, 3)


def uneven():
    rank, n = dist.get_rank(), dist.get_world_size()
    for algorithm in ("auto", "direct", "ring"):
        out = [torch.zeros(r) for r in range(n)]
        comm.all_gather(out, torch.full((rank,), float(rank)), algorithm=algorithm)
        assert all(torch.all(t == r) for r, t in enumerate(out))
        mine = torch.zeros(rank)
        comm.reduce_scatter(mine, [torch.full((r,), float(r)) for r in range(n)], algorithm=algorithm)
        assert torch.all(mine == rank * n)
    for algorithm in ("auto", "direct", "pairwise"):
        rows = [(rank + d) % n for d in range(n)]  # rank r sends (r + d) % n rows to rank d
        out = torch.zeros(sum(rows), 2)
        comm.all_to_all_single(out, torch.full((sum(rows), 2), float(rank)), rows, rows, algorithm=algorithm)
        assert out[:, 0].tolist() == [float(s) for s in range(n) for _ in range((rank + s) % n)]


def test_sizes_may_differ_by_rank(run_ranks):
    run_ranks(uneven, 4)


def to_oneself():
    me = dist.get_rank()
    handle = comm.isend(torch.arange(3.0), me, tag=5)
    got = torch.zeros(3)
    assert comm.recv(got, me, tag=5) == me
    handle.wait()
    assert got.tolist() == [0, 1, 2]
    everyone = dist.get_world_size()
    got = torch.zeros(2)
    ops = [
        comm.P2POp(comm.isend, torch.full((2,), float(me)), (me + 1) % everyone),
        comm.P2POp(comm.irecv, got, (me - 1) % everyone),
    ]
    for request in comm.batch_isend_irecv(ops):
        request.wait()
    assert torch.all(got == (me - 1) % everyone)
    if me == 0:
        senders = {comm.recv(torch.zeros(1), tag=9) for _ in range(everyone - 1)}
        assert senders == set(range(1, everyone))
    else:
        comm.send(torch.ones(1), 0, tag=9)


@pytest.mark.parametrize("world_size", [1, 3])
def test_messages_to_oneself_in_batches_and_from_anyone(run_ranks, world_size):
    run_ranks(to_oneself, world_size)


WRONG = {
    "algorithm must be one of auto, naive, ring": lambda: comm.all_reduce(torch.ones(1), algorithm="rings"),
    "ReduceOp.AVG needs a floating-point tensor, got torch.int64": lambda: comm.all_reduce(
        torch.ones(1, dtype=torch.int64), dist.ReduceOp.AVG
    ),
    "ReduceOp.BAND does not exist for tensors of torch.float32": lambda: comm.all_reduce(
        torch.ones(1), dist.ReduceOp.BAND
    ),
    "src: rank 7 is not in the group [0, 1]": lambda: comm.broadcast(torch.ones(1), 7),
    "Give src (a global rank) or group_src": lambda: comm.broadcast(torch.ones(1)),
    "tensor_list must be a list of 2 tensors, one per rank, got 1 tensors": lambda: comm.all_gather(
        [torch.ones(1)], torch.ones(1)
    ),
    "the output tensors in tensor_list share memory": lambda: comm.all_gather([torch.ones(1)] * 2, torch.ones(1)),
    "output_tensor must have 2 times the 3 elements": lambda: comm.all_gather_single(torch.ones(5), torch.ones(3)),
    "must all have one dtype": lambda: comm.all_gather_single(torch.ones(2), torch.ones(1, dtype=torch.int64)),
    "input has 3 rows, not a multiple of 2 ranks": lambda: comm.all_to_all_single(torch.ones(3), torch.ones(3)),
    "ranks_per_node goes with algorithm='hierarchical'": lambda: comm.all_reduce(torch.ones(1), ranks_per_node=2),
    "tag must be from 0 to": lambda: comm.send(torch.ones(1), 1 - dist.get_rank(), tag=1 << 30),
}


def complaints():
    found = []
    for call in WRONG.values():
        try:
            call()
            found.append("no complaint")
        except (ValueError, TypeError) as error:
            found.append(str(error))
    return found


def test_wrong_arguments_are_named_in_one_sentence_on_all_ranks_alike(run_ranks):
    first, second = run_ranks(complaints, 2)
    for want, got in zip(WRONG, first, strict=True):
        assert want in got and got.endswith(".") and "\n" not in got
    assert first == second


def outside_the_group():
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        comm.all_reduce(torch.ones(1), group=group)
    return str(caught[0].message)


def test_a_rank_outside_the_group_is_told_so(run_ranks):
    assert run_ranks(outside_the_group, 2)[1] == "all_reduce: this rank is not in the group, so it does nothing."


def test_without_a_process_group_the_way_in_is_named():
    with pytest.raises(ValueError, match=r"picolib.run\(...\), or call picolib.init\(\)"):
        comm.all_reduce(torch.ones(1))


def hierarchical_by_hand():
    tensor = torch.full((10,), float(dist.get_rank()))
    comm.all_reduce(tensor, algorithm="hierarchical", ranks_per_node=3)
    assert torch.all(tensor == 15)


def test_nodes_can_be_given(run_ranks):
    run_ranks(hierarchical_by_hand, 6)


def native():
    tensor = torch.ones(3)
    comm.all_reduce(tensor, algorithm="native")
    out = torch.zeros(2)
    comm.all_gather_single(out, torch.ones(1), algorithm="native")
    return tensor.tolist() + out.tolist()


def test_native_is_torchs_own(run_ranks):
    run = run_ranks(native, 2)
    assert run[0] == [2, 2, 2, 1, 1]
    assert run.trace.bytes_sent == [0, 0]
