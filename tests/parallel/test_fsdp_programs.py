"""fully_shard inside programs that do more than one forward and one backward pass of a plain module."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.parallel.full_state import full_state_dict, load_full_state_dict
from tests.parallel.steps import assert_close, backward, gradients, my_data, whole, whole_gradients
from tests.parallel.zoo import Shared, build, data


def sharded(model: nn.Module, **options) -> nn.Module:
    for layer in model.children():
        if not isinstance(layer, nn.ParameterList):
            picolib.fully_shard(layer, **options)
    picolib.fully_shard(model, **options)
    model.set_gradient_divide_factor(1)
    return model


RIGHT = (Shared, (0, {}))


def assert_right(fn, times: float = 1.0, ranks: int = 2) -> None:
    for found in picolib.run(lambda: whole_gradients(fn(sharded(build(Shared, 0)))), ranks):
        assert_close(found, {name: times * g for name, g in whole(*RIGHT).items()})


def once(model):
    backward(model, *my_data())
    return model


def two_forwards_one_backward(model):
    losses = [(model(x) - y).square().sum() / 12 for x, y in (my_data(), my_data())]
    sum(losses).backward()
    return model


def the_same_graph_twice(model):
    x, y = my_data()
    loss = (model(x) - y).square().sum() / 12
    loss.backward(retain_graph=True)
    loss.backward()
    return model


def evaluated_before_backward(model):
    x, y = my_data()
    loss = (model(x) - y).square().sum() / 12
    with torch.no_grad():
        model(x)
    loss.backward()
    return model


def failed_in_forward(model):
    handle = model.head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(my_data()[0])
    handle.remove()
    return once(model)


def failed_in_backward(model):
    def refuse(gradient):
        raise FloatingPointError("no")

    x, y = my_data()
    handle = model.layer.register_forward_hook(lambda module, args, out: (out.register_hook(refuse), None)[1])
    with pytest.raises(FloatingPointError):
        backward(model, x, y)
    handle.remove()
    model.zero_grad()
    return once(model)


def thrown_away(model):
    with model.no_sync():
        backward(model, *my_data(seed=3))
    model.zero_grad()
    return once(model)


def sharded_again_by_hand(model):
    model(my_data()[0])  # the root's own parameters stay whole, for a backward pass that never comes
    picolib.clip_grad_norm_(model, 1.0)
    state = full_state_dict(model)
    load_full_state_dict(model, {name: value * 0 for name, value in state.items()})
    load_full_state_dict(model, state)
    return once(model)


def layer_by_layer_without_sync(model):
    for layer in (model.layer, model.head):
        layer.set_requires_gradient_sync(False)
    backward(model, *my_data())
    assert model.layer.weight.grad is None and model.scales[0].grad is not None
    model.finalize_grads()
    return model


PROGRAMS = [
    (once, 1), (two_forwards_one_backward, 2), (the_same_graph_twice, 2), (evaluated_before_backward, 1),
    (failed_in_forward, 1), (failed_in_backward, 1), (thrown_away, 1), (sharded_again_by_hand, 1),
    (layer_by_layer_without_sync, 1),
]  # fmt: skip


@pytest.mark.parametrize(("program", "times"), PROGRAMS, ids=[p.__name__ for p, _ in PROGRAMS])
def test_gradients_are_those_of_one_process(program, times):
    assert_right(program, times)


def penalised(model, x, y):
    """A gradient penalty: the gradient of the output by the input is a part of the loss."""
    x = x.clone().requires_grad_(True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (((out - y).square().sum() + slope.square().sum()) / 12).backward()
    return model


def test_a_gradient_penalty():
    right = gradients(penalised(build(Shared, 0), *data(12)))
    for found in picolib.run(lambda: whole_gradients(penalised(sharded(build(Shared, 0)), *my_data())), 2):
        assert_close(found, right)


def frozen_and_passed_through():
    model = sharded(build(Shared, 0)).requires_grad_(False)
    x = my_data()[0].requires_grad_(True)
    model(x).sum().backward()
    units = [part.__dict__["_picolib_unit"] for part in (model, model.layer, model.head)]
    return x.grad, [unit.is_unsharded for unit in units]


def test_a_frozen_module_passes_gradients_on_and_is_sharded_again():
    x = data(12)[0].requires_grad_(True)
    build(Shared, 0)(x).sum().backward()
    run = picolib.run(frozen_and_passed_through, 2)
    assert torch.allclose(torch.cat([gradient for gradient, _ in run]), x.grad, rtol=1e-12)
    assert all(whole == [False] * 3 for _, whole in run)


def converted_and_frozen():
    torch.manual_seed(0)
    model = Shared()
    model.layer.requires_grad_(False)
    sharded(model).double()
    backward(model, *my_data())
    frozen = whole_gradients(model)
    model.zero_grad()
    model.layer.requires_grad_(True)
    return frozen, whole_gradients(once(model))


def test_a_module_may_be_converted_frozen_and_unfrozen_after_sharding():
    right = whole(*RIGHT)
    for frozen, found in picolib.run(converted_and_frozen, 2):
        assert_close(frozen, {name: None if name.startswith("layer") else g for name, g in right.items()})
        assert_close(found, right)


def alone_in_a_second_step(model, x, y):
    parameters = list(model.parameters())
    backward(model, x, y)
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * parameter.grad
    model.zero_grad()
    model.layer(x).sum().backward()
    return model


def test_a_layer_may_run_without_its_root():
    right = gradients(alone_in_a_second_step(build(Shared, 0), *data(12)))
    assert right["head.weight"] is None
    for found in picolib.run(lambda: whole_gradients(alone_in_a_second_step(sharded(build(Shared, 0)), *my_data())), 2):
        assert_close(found, right)


class LaidOutOddly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.turned, self.strided = nn.Parameter(torch.randn(6, 4).t()), nn.Parameter(torch.randn(12)[::2])

    def forward(self, x):
        return self.conv(x).mean((2, 3)) @ self.turned * self.strided


def odd_layout(model, rank, size):
    images = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model(images.tensor_split(size)[rank]).square().sum().backward()
    return model


def test_parameters_need_not_be_contiguous():
    def fn():
        model = picolib.fully_shard(build(LaidOutOddly, 0))
        model.set_gradient_divide_factor(1)
        return whole_gradients(odd_layout(model, dist.get_rank(), dist.get_world_size()))

    for found in picolib.run(fn, 3):
        assert_close(found, gradients(odd_layout(build(LaidOutOddly, 0), 0, 1)))


class Policy(nn.Linear):
    """Gives a distribution: no tensor, no tuple, no dataclass."""

    def forward(self, x):
        return torch.distributions.Normal(super().forward(x), 1.0, validate_args=False)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy, self.scale = Policy(5, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.policy(x).mean * self.scale


def test_a_layer_may_give_any_object():
    def fn():
        model = build(Agent, 0)
        picolib.fully_shard(model.policy)
        picolib.fully_shard(model).set_gradient_divide_factor(1)
        return whole_gradients(once(model))

    for found in picolib.run(fn, 2):
        assert_close(found, whole(Agent, (0, {})))


def outer_first():
    model = picolib.fully_shard(build(Shared, 0))
    picolib.fully_shard(model.layer)


def copied():
    copy.deepcopy(sharded(build(Shared, 0)))


def replaced():
    model = sharded(build(Shared, 0))
    model.layer.weight = nn.Parameter(torch.ones(5, 5).double())
    once(model)


def sparse():
    model = picolib.fully_shard(nn.Embedding(5, 3, sparse=True))
    model(torch.tensor([1, 2])).sum().backward()


def frozen_on_one_rank():
    model = build(Shared, 0)
    model.layer.requires_grad_(dist.get_rank() == 0)
    sharded(model)


def over_columns():
    picolib.fully_shard(picolib.ColumnParallelLinear(4, 4))


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (outer_first, "belongs to the unit of a module around it: apply fully_shard to the inner modules first"),
        (copied, "A sharded module can't be copied or pickled"),
        (replaced, "weight was replaced after fully_shard"),
        (sparse, "weight has a sparse gradient"),
        (frozen_on_one_rank, "rank 1 has weight (torch.float64 [5, 5]), frozen"),
        (over_columns, "mesh must hold replicas, but ranks 0 and 1 in it hold different parts of weight"),
    ],
)
def test_what_would_go_wrong_in_silence_is_one_sentence(fn, words):
    with pytest.raises(picolib.RankError) as error:
        picolib.run(fn, 2)
    assert words in str(error.value)
