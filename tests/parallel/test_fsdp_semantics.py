"""What fully_shard owes its users besides the numbers: checkpoints, branches, full states, clipping, errors."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import picolib
from picolib.parallel.fsdp import NaiveFullyShard
from picolib.parallel.full_state import full_state_dict, load_full_state_dict
from tests.parallel.steps import sharded
from tests.parallel.zoo import Branches, Plain, TiedAndFrozen, UsedInAnotherOrder, WithRunningStatistics, build, data


def with_checkpoints(reentrant: bool):
    model = build(UsedInAnotherOrder, 100 + dist.get_rank())
    layers = [model.first, model.middle, model.last]
    model.forward = lambda x: _checkpointed(layers, x, reentrant)
    sharded(model)
    model.set_gradient_divide_factor(1)
    x, y = (t.tensor_split(3)[dist.get_rank()] for t in data(12))
    x.requires_grad_(True)
    ((model(x) - y).square().sum() / 12).backward()
    return [p.grad for p in model.parameters()]


def _checkpointed(layers, x, reentrant):
    for layer in layers[:-1]:
        x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=reentrant)
    return layers[-1](x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant):
    model, (x, y) = build(UsedInAnotherOrder, 100), data(12)
    ((model(x) - y).square().sum() / 12).backward()
    run = picolib.run(with_checkpoints, 3, reentrant)
    for position, parameter in enumerate(model.parameters()):
        found = torch.cat([run[rank][position] for rank in range(3)])
        assert torch.allclose(found, parameter.grad, rtol=1e-12, atol=1e-14)


def evaluated_between():
    model = sharded(build(Plain, 100))
    model.set_gradient_divide_factor(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (t.tensor_split(2)[dist.get_rank()] for t in data(12))
    outputs = []
    for _ in range(2):
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / 12).backward()
        optimizer.step()
        with torch.no_grad():
            outputs.append(model(x))
        model(x)  # a graph that nobody goes back through
    return outputs


def test_forward_passes_without_backward_see_the_newest_parameters():
    model, (x, y) = build(Plain, 100), data(12)
    optimizer, right = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / 12).backward()
        optimizer.step()
        right.append(model(x).detach())
    run = picolib.run(evaluated_between, 2)
    for step in range(2):
        assert torch.allclose(torch.cat([run[rank][step] for rank in range(2)]), right[step], rtol=1e-10)


def with_a_branch(which: list[str]):
    model = sharded(build(Branches, 0))
    model.set_gradient_divide_factor(1)
    x, y = (t.tensor_split(2)[dist.get_rank()] for t in data(12))
    ((model(x, which[dist.get_rank()]) - y).square().sum() / 12).backward()
    return {name: None if p.grad is None else p.grad for name, p in model.named_parameters()}


def test_a_module_that_no_rank_uses_is_left_alone():
    model, (x, y) = build(Branches, 0), data(12)
    ((model(x) - y).square().sum() / 12).backward()
    run = picolib.run(with_a_branch, 2, ["left", "left"])
    for name, parameter in model.named_parameters():
        parts = [run[rank][name] for rank in range(2)]
        assert (parts[0] is None) == (parameter.grad is None)
        assert parameter.grad is None or torch.allclose(torch.cat(parts), parameter.grad, rtol=1e-12)


def test_a_module_that_one_rank_does_not_use_is_named():
    with pytest.raises(picolib.RunError) as error:
        picolib.run(with_a_branch, 2, ["left", "right"])
    assert "left unshard" in str(error.value) and "right unshard" in str(error.value)


def saved_and_loaded(kind):
    model = sharded(build(kind, 3)) if kind is not TiedAndFrozen else picolib.fully_shard(build(kind, 3))
    load_full_state_dict(model, build(kind, 9).state_dict())
    return full_state_dict(model)


@pytest.mark.parametrize("kind", [Plain, TiedAndFrozen, WithRunningStatistics])
def test_a_full_state_goes_in_and_comes_out(kind):
    right = build(kind, 9).state_dict()
    for found in picolib.run(saved_and_loaded, 3, kind):
        assert found.keys() == right.keys()
        assert all(torch.equal(found[name], right[name]) for name in right)


class Counts(nn.Linear):
    """Has a state that is no tensor."""

    seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def test_a_full_state_has_what_is_no_tensor():
    def fn():
        model, other = picolib.fully_shard(Counts(4, 4)), picolib.fully_shard(Counts(4, 4))
        model.seen = 3
        load_full_state_dict(other, full_state_dict(model))
        return other.seen

    assert list(picolib.run(fn, 2)) == [3, 3]


def dropped():
    model = sharded(build(Plain, 0))
    (model(data(4)[0]) ** 2).sum().backward()
    kept = [weakref.ref(p) for p in model.parameters()] + [weakref.ref(model)]
    del model
    gc.collect()
    return [ref() for ref in kept]


def test_a_module_that_is_dropped_is_gone_with_its_shards():
    assert list(picolib.run(dropped, 2)) == [[None] * 6] * 2


def built_too_early():
    model = build(Plain, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sharded(model)
    x, y = data(4)
    (model(x) - y).square().sum().backward()
    optimizer.step()


def test_an_optimizer_from_before_sharding_is_told_so():
    with pytest.raises(picolib.RankError, match="build the optimizer after sharding"):
        picolib.run(built_too_early, 2)


def construct(make, **options):
    picolib.fully_shard(make(), **options)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (partial(construct, lambda: 3), "module must be a torch.nn.Module, got int"),
        (partial(construct, lambda: nn.Linear(2, 2, device="meta")), "weight is on the meta device"),
        (partial(construct, lambda: sharded(build(Plain, 0))), "module is sharded already"),
        (partial(construct, lambda: picolib.DistributedDataParallel(build(Plain, 0))), "reduces its gradients already"),
        (
            partial(construct, lambda: nn.Linear(2, 2), offload_policy=3),
            "offload_policy must be torch's OffloadPolicy or",
        ),
        (partial(construct, lambda: nn.Linear(2, 2), algorithm="rign"), "algorithm must be one of auto, naive, ring"),
    ],
)
def test_a_wrong_argument_is_one_sentence(fn, words):
    with pytest.raises(picolib.RankError, match="ValueError") as error:
        picolib.run(fn, 2)
    assert words in str(error.value)


def naive():
    rank, model = dist.get_rank(), build(Plain, 1)
    fsdp = NaiveFullyShard(model)
    x, y = (t.tensor_split(3)[rank] for t in data(12))
    fsdp.backward(lambda: (model(x) - y).square().mean())
    return [shard.grad for shard in fsdp.shards]


def test_the_naive_version_gives_each_rank_its_part_of_the_mean():
    model, (x, y) = build(Plain, 1), data(12)
    (model(x) - y).square().mean().backward()
    run = picolib.run(naive, 3)
    for position, parameter in enumerate(model.parameters()):
        found = torch.cat([run[rank][position] for rank in range(3)])[: parameter.numel()]
        assert torch.allclose(found, parameter.grad.flatten(), rtol=1e-12)


def clipped(max_norm: float, norm_type: float):
    model = sharded(build(UsedInAnotherOrder, 100))
    model.set_gradient_divide_factor(1)
    x, y = (t.tensor_split(5)[dist.get_rank()] for t in data(12))
    (model(x) - y).square().sum().backward()
    norm = picolib.clip_grad_norm_(model, max_norm, norm_type)
    return norm, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(("max_norm", "norm_type"), [(0.5, 2.0), (1e6, 2.0), (0.5, float("inf")), (0.5, 1.0)])
def test_clipping_counts_every_element_once(max_norm, norm_type):
    model, (x, y) = build(UsedInAnotherOrder, 100), data(12)
    (model(x) - y).square().sum().backward()
    right = nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
    run = picolib.run(clipped, 5, max_norm, norm_type)
    for position, parameter in enumerate(model.parameters()):
        parts = torch.cat([grads[position] for _, grads in run])
        assert torch.allclose(parts.view(parameter.shape), parameter.grad, rtol=1e-10)
    assert all(torch.allclose(norm, right.double(), rtol=1e-12) for norm, _ in run)


def test_shards_without_their_module_are_not_clipped():
    def fn():
        picolib.clip_grad_norm_(sharded(build(Plain, 0)).parameters(), 1.0)

    with pytest.raises(picolib.RankError, match="give the module that it belongs to"):
        picolib.run(fn, 2)
