"""What DistributedDataParallel owes its users besides the numbers: no_sync, unused parameters, buffers, errors."""

from __future__ import annotations

from functools import partial

import pytest
import torch.distributed as dist
from torch import nn

import picolib
from tests.parallel.steps import assert_close, backward, gradients, my_data, whole, wrap
from tests.parallel.zoo import Branches, Plain, build, data

# no_sync and several passes


def twice_without_zero_grad(factor):
    model = wrap(build(Plain, dist.get_rank()), gradient_divide_factor=factor)
    scale = factor or dist.get_world_size()
    for seed in (0, 1):
        x, y = my_data(seed=seed)
        ((model(x) - y).square().sum() / 12 * (scale if factor != 1 else 1)).backward()
    return gradients(model)


@pytest.mark.parametrize("factor", [None, 1, 2.0])
def test_a_second_backward_adds_to_the_settled_gradient_once(factor):
    for found in picolib.run(twice_without_zero_grad, 3, factor):
        assert_close(found, whole(Plain, (0, {}), (1, {})))


def two_forwards_one_backward():
    model = wrap(build(Plain, dist.get_rank()), gradient_divide_factor=1)
    losses = [((model(x) - y).square().sum() / 12) for x, y in (my_data(seed=0), my_data(seed=1))]
    sum(losses).backward()
    return gradients(model)


def two_forwards_two_backwards():
    model = wrap(build(Plain, dist.get_rank()), gradient_divide_factor=1)
    losses = [((model(x) - y).square().sum() / 12) for x, y in (my_data(seed=0), my_data(seed=1))]
    for loss in losses:
        loss.backward()
    return gradients(model)


@pytest.mark.parametrize("fn", [two_forwards_one_backward, two_forwards_two_backwards])
def test_several_forwards_before_backward(fn):
    for found in picolib.run(fn, 3):
        assert_close(found, whole(Plain, (0, {}), (1, {})))


def local_then_synchronised(in_place_zero: bool):
    model = wrap(build(Plain, dist.get_rank()), gradient_divide_factor=1)
    backward(model, *my_data(seed=7))
    model.zero_grad(set_to_none=not in_place_zero)
    with model.no_sync():
        backward(model, *my_data(seed=0))
    local = gradients(model)
    backward(model, *my_data(seed=1))
    return local, gradients(model)


@pytest.mark.parametrize("in_place_zero", [False, True])
def test_no_sync_leaves_gradients_local_until_the_next_backward(in_place_zero):
    for rank, (local, found) in enumerate(picolib.run(local_then_synchronised, 3, in_place_zero)):
        x, y = (t.tensor_split(3)[rank] for t in data(12, 0))
        alone = build(Plain, 0)
        backward(alone, x, y)
        assert_close(local, gradients(alone))
        assert_close(found, whole(Plain, (0, {}), (1, {})))


def finalized():
    model = wrap(build(Plain, dist.get_rank()), gradient_divide_factor=1)
    model.set_requires_gradient_sync(False)
    for seed in (0, 1):
        backward(model, *my_data(seed=seed))
    calls = []
    for _ in range(2):
        model.finalize_grads()
        calls.append(gradients(model))
    return calls


def test_finalize_grads_synchronises_what_no_sync_has_left_and_only_once():
    run = picolib.run(finalized, 3, trace=True)
    for calls in run:
        for found in calls:
            assert_close(found, whole(Plain, (0, {}), (1, {})))
    buckets = {e.label for e in run.trace.events if e.kind == "collective" and "bucket" in e.label}
    assert run.trace.calls[0]["all_reduce"] == len(buckets)


# Unused parameters


def unused_here_and_there(find_unused: bool):
    model = wrap(build(Branches, dist.get_rank()), gradient_divide_factor=1, find_unused_parameters=find_unused)
    for seed in (3, 4):  # a second round: nothing of the first one is left
        model.zero_grad()
        backward(model, *my_data(seed=seed), which="left" if dist.get_rank() == 0 else "right")
    return gradients(model)


def test_find_unused_parameters_sums_what_there_is_and_leaves_the_rest_alone():
    right = build(Branches, 0)
    for rank in range(3):
        x, y = (t.tensor_split(3)[rank] for t in data(12, 4))
        backward(right, x, y, which="left" if rank == 0 else "right")
    for found in picolib.run(unused_here_and_there, 3, True):
        assert_close(found, gradients(right))
        assert found["never.weight"] is None


def test_an_unused_parameter_is_an_error_that_names_it():
    with pytest.raises(picolib.RankError) as error:
        picolib.run(unused_here_and_there, 3, False)
    assert "never.weight" in str(error.value)
    assert "find_unused_parameters=True" in str(error.value)


def only_one_rank_leaves_it_out():
    module = build(Branches, dist.get_rank())
    module.never.requires_grad_(False)
    model = wrap(module)
    x, y = my_data()
    out = model(x)
    if dist.get_rank() != 1:
        out = out + model.module.right(x).sum()
    (out - y).square().sum().backward()


def test_where_only_one_rank_leaves_a_parameter_out_that_rank_is_named():
    with pytest.raises(picolib.RankError) as error:
        picolib.run(only_one_rank_leaves_it_out, 3)
    assert error.value.rank == 1
    assert "right.weight" in str(error.value)


def used_only_without_synchronisation():
    model = wrap(build(Branches, dist.get_rank()), gradient_divide_factor=1, find_unused_parameters=True)
    with model.no_sync():
        backward(model, *my_data(seed=0), which="right")
    backward(model, *my_data(seed=1), which="left")
    return gradients(model)


def test_a_parameter_used_only_inside_no_sync_is_synchronised_all_the_same():
    for found in picolib.run(used_only_without_synchronisation, 3):
        assert_close(found, whole(Branches, (0, {"which": "right"}), (1, {"which": "left"})))


def one_rank_has_nothing_to_do():
    model = wrap(build(Plain, dist.get_rank()), gradient_divide_factor=1, find_unused_parameters=True)
    x, y = my_data()
    if dist.get_rank() == 2:
        model(x)
        model.finalize_grads()
    else:
        backward(model, x, y)
    return gradients(model)


def test_a_rank_without_a_loss_takes_part_with_finalize_grads():
    right = build(Plain, 0)
    for rank in range(2):
        backward(right, *(t.tensor_split(3)[rank] for t in data(12)))
    for found in picolib.run(one_rank_has_nothing_to_do, 3):
        assert_close(found, gradients(right))


# Errors before anything else


def construct(**options):
    picolib.DistributedDataParallel(**{"module": build(Plain, 0), **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"module": 3}, "module must be a torch.nn.Module, got int"),
        ({"module": nn.Identity()}, "requires a gradient"),
        ({"module": nn.Linear(2, 2, device="meta")}, "weight is on the meta device"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb must be a number of MiB above 0, got 0"),
        ({"gradient_divide_factor": -1}, "gradient_divide_factor must be above 0, or None for the mean, got -1"),
        ({"algorithm": "rign"}, "algorithm must be one of auto, naive, ring"),
    ],
)
def test_a_wrong_argument_is_one_sentence(options, words):
    with pytest.raises(picolib.RankError, match="ValueError") as error:
        picolib.run(partial(construct, **options), 2)
    assert words in str(error.value)


def one_rank_is_different():
    rank = dist.get_rank()
    module = nn.Linear(4, 5 if rank == 2 else 4)
    try:
        picolib.DistributedDataParallel(module)
    except ValueError as error:
        return str(error)


def test_a_module_that_differs_between_ranks_is_named_alike_on_all():
    told = set(picolib.run(one_rank_is_different, 3))
    assert len(told) == 1
    text = told.pop()
    assert "rank 0 has weight (float32 [4, 4])" in text
    assert "rank 2 has weight (float32 [5, 4])" in text


def fails_in_backward():
    model = wrap(build(Plain, 0), gradient_divide_factor=1)

    def refuse(gradient):
        raise FloatingPointError("no")

    x, y = my_data()
    out = model(x)
    handle = model.module.first.weight.register_hook(refuse)
    try:
        (out - y).square().sum().backward()
    except FloatingPointError:
        handle.remove()
    model.zero_grad()
    backward(model, x, y)
    return gradients(model)


def test_after_a_backward_that_failed_on_all_ranks_the_next_one_is_right():
    for found in picolib.run(fails_in_backward, 3):
        assert_close(found, whole(Plain, (0, {})))
