"""What gloo lets pass in silence is flagged, with ranks, shapes and the learner's line."""

import inspect

import pytest
import torch
import torch.distributed as dist

import picolib
from picolib.launch.errors import MismatchError
from tests.launch.both import BOTH, calls


def flagged(fn, world_size, *args):
    """The text of the MismatchError that a run ends with."""
    with pytest.raises(MismatchError) as caught:
        picolib.run(fn, world_size, *args, timeout=30)
    return str(caught.value)


def line_of(fn, text):
    """The line number in this file on which `text` stands in `fn`, as an explanation gives it."""
    lines, start = inspect.getsourcelines(fn)
    (number,) = [start + i for i, line in enumerate(lines) if text in line]
    return f"test_silent_errors.py, line {number}"


def another_shape(api):
    x = torch.ones(2, 3) if dist.get_rank() == 1 else torch.ones(3, 2)
    calls(api).all_reduce(x)


@pytest.mark.parametrize("api", BOTH)
def test_another_shape_with_the_same_number_of_elements(api):
    text = flagged(another_shape, 3, api)
    assert "The shape differs under all_reduce" in text and "[2, 3]" in text and "[3, 2]" in text
    assert "ranks 0 and 2" in text and line_of(another_shape, "all_reduce") in text


def another_dtype(api):
    calls(api).all_reduce(torch.ones(4, dtype=torch.int32 if dist.get_rank() else torch.float32))


@pytest.mark.parametrize("api", BOTH)
def test_float32_meets_int32(api):
    text = flagged(another_dtype, 2, api)
    assert "The dtype differs under all_reduce: rank 0 has float32 and rank 1 has int32" in text


def another_operation(api):
    op = dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM
    calls(api).all_reduce(torch.ones(4), op=op)


@pytest.mark.parametrize("api", BOTH)
def test_another_operation(api):
    text = flagged(another_operation, 2, api)
    assert "The operation differs under all_reduce: rank 0 has SUM and rank 1 has MAX" in text


def another_root(api):
    calls(api).broadcast(torch.ones(4), src=dist.get_rank())


@pytest.mark.parametrize("api", BOTH)
def test_another_root(api):
    text = flagged(another_root, 2, api)
    assert "The root differs under broadcast: rank 0 has 0 and rank 1 has 1" in text


def another_collective(api):
    x = torch.ones(4)
    if dist.get_rank() == 2:
        calls(api).all_gather([torch.empty(4) for _ in range(3)], x)
    else:
        calls(api).all_reduce(x)


@pytest.mark.parametrize("api", BOTH)
def test_one_rank_calls_another_collective(api):
    text = flagged(another_collective, 3, api)
    assert "Rank 2 called all_gather where rank" in text and "called all_reduce (call number 1 of the world" in text
    assert "ranks 0 and 1: all_reduce" in text


def swapped(api):
    a, b = torch.ones(4), torch.zeros(4)

    def sum_a():
        calls(api).all_reduce(a)

    def sum_b():
        calls(api).all_reduce(b)

    for step in (sum_a, sum_b) if dist.get_rank() == 0 else (sum_b, sum_a):
        step()
    return a, b


@pytest.mark.parametrize("api", BOTH)
def test_swapped_collectives_of_the_same_shape(api):
    text = flagged(swapped, 2, api)
    assert "two all_reduce calls in opposite orders" in text and "calls number 1 and 2" in text
    assert line_of(swapped, "all_reduce(a)") in text and line_of(swapped, "all_reduce(b)") in text


def receive_into(api, size, dtype):
    if dist.get_rank() == 0:
        calls(api).send(torch.ones(4), 1)
    else:
        calls(api).recv(torch.zeros(size, dtype=dtype), 0)


@pytest.mark.parametrize("api", BOTH)
@pytest.mark.parametrize("size", [2, 8])
def test_a_receive_buffer_of_another_size(api, size):
    text = flagged(receive_into, 2, api, size, torch.float32)
    assert f"rank 1: the message from rank 0 has 16 bytes, the buffer {4 * size}" in text
    assert line_of(receive_into, ".send(") in text and line_of(receive_into, ".recv(") in text


@pytest.mark.parametrize("api", BOTH)
def test_a_receive_buffer_of_another_dtype(api):
    text = flagged(receive_into, 2, api, 4, torch.int32)
    assert "rank 1: the message from rank 0 is float32, the buffer int32" in text


def forgotten_wait(api):
    if dist.get_rank() == 0:
        calls(api).isend(torch.ones(4), 1)
    else:
        calls(api).recv(torch.zeros(4), 0)


@pytest.mark.parametrize("api", BOTH)
def test_an_isend_that_is_not_waited_for(api):
    text = flagged(forgotten_wait, 2, api)
    assert "rank 0: the handle of isend was never waited for" in text and line_of(forgotten_wait, ".isend(") in text


def forgotten_under_a_mode():
    with torch.device("cpu"):  # torch's functions are then called through torch/overrides.py
        forgotten_wait("torch")


def test_an_isend_that_is_not_waited_for_under_a_torch_function_mode():
    assert "the handle of isend was never waited for" in flagged(forgotten_under_a_mode, 2)


def early_change(api, how):
    peer, x = 1 - dist.get_rank(), torch.arange(100_000.0)
    handle = calls(api).isend(x, peer)
    if how == "in place":
        x += 1
    elif how == "one element":
        x[-1] = 7
    elif how == "data":
        x.data.mul_(2)
    calls(api).recv(torch.empty(100_000), peer)
    handle.wait()


@pytest.mark.parametrize("api", BOTH)
@pytest.mark.parametrize("how", ["in place", "one element", "data"])
def test_a_tensor_that_changes_before_it_was_sent(api, how):
    text = flagged(early_change, 2, api, how)
    assert "the tensor was changed after isend to rank" in text and line_of(early_change, ".isend(") in text


def same_memory(api):
    peer, x = 1 - dist.get_rank(), torch.ones(8)
    handle = calls(api).isend(x[:6], peer)
    calls(api).recv(x[2:], peer)
    handle.wait()


@pytest.mark.parametrize("api", BOTH)
def test_a_receive_into_memory_that_is_being_sent(api):
    text = flagged(same_memory, 2, api)
    assert "recv from rank" in text and "uses memory that the isend to rank" in text


def repeated_outputs():
    n = dist.get_world_size()
    dist.all_gather([torch.empty(3)] * n, torch.ones(3))


def test_output_tensors_that_share_memory():
    text = flagged(repeated_outputs, 2)
    assert "output tensors share memory" in text and "[t] * world_size" in text


def strided_view(name):
    x = torch.ones(4, 3)
    if name == "all_reduce":
        dist.all_reduce(x[:, 0])
    elif name == "broadcast":
        dist.broadcast(x[:, 1], 0)
    elif name == "reduce":
        dist.reduce(x[::2], 0)
    else:
        dist.all_gather([x[:, 0], x[:, 1]], torch.ones(4))


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "reduce", "all_gather"])
def test_a_strided_view_that_gloo_would_read_wrongly(name):
    text = flagged(strided_view, 2, name)
    assert f"{name} got" in text and "strided view" in text and "x.contiguous()" in text


def to_oneself(name):
    rank = dist.get_rank()
    (dist.isend if name == "isend" else dist.irecv)(torch.ones(1), rank).wait()


@pytest.mark.parametrize("name", ["isend", "irecv"])
def test_a_message_to_oneself(name):
    text = flagged(to_oneself, 2, name)
    assert "itself" in text and line_of(to_oneself, "dist.isend") in text


def unequal_splits():
    rank = dist.get_rank()
    sent, received = ([1, 3], [1, 1]) if rank == 0 else ([1, 1], [2, 1])
    dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent)


def test_all_to_all_splits_that_do_not_fit():
    text = flagged(unequal_splits, 2)
    assert "rank 0 sends 3 rows to rank 1, which expects 2" in text


def groups_in_branches():
    dist.new_group([0, 1] if dist.get_rank() < 2 else [2, 3])


def test_ranks_that_make_different_groups():
    text = flagged(groups_in_branches, 4)
    assert "new_group" in text and "[0, 1]" in text and "[2, 3]" in text and "also for groups it isn't in" in text


def wrong_kind_of_rank():
    group = dist.new_group([1, 2])
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), 0, group=group)


def test_a_group_rank_where_a_global_rank_is_meant():
    with pytest.raises(picolib.RankError, match=r"rank 0 is not in the group \[1, 2\]"):
        picolib.run(wrong_kind_of_rank, 3)
