"""DistributedDataParallel inside programs that do more than one forward and one backward pass of a plain module."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from tests.parallel.steps import assert_close, backward, gradients, my_data, whole, wrap
from tests.parallel.zoo import Plain, WithRunningStatistics, build, data


def summed(module: nn.Module, **options) -> nn.Module:
    return wrap(module, gradient_divide_factor=1, **options)


def loss_of(model, x, y) -> torch.Tensor:
    return (model(x) - y).square().sum() / 12


# Passes that are not about this module's parameters


def penalised(model, x, y) -> dict:
    """A gradient penalty: the gradient of the output by the input is a part of the loss (WGAN-GP)."""
    x = x.clone().requires_grad_(True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (((out - y).square().sum() + slope.square().sum()) / 12).backward()
    return gradients(model)


def test_a_gradient_penalty():
    right = penalised(build(Plain, 0), *data(12))
    for found in picolib.run(lambda: penalised(summed(build(Plain, dist.get_rank())), *my_data()), 3):
        assert_close(found, right)


def asked_for_beside():
    """torch.autograd.grad between backward and the optimizer's step must leave the settled gradients alone."""
    model = summed(build(Plain, 0))
    loss = loss_of(model, *my_data())
    loss.backward(retain_graph=True)
    torch.autograd.grad(loss, [p for p in model.parameters() if p.numel()], allow_unused=True)
    return gradients(model)


def test_autograd_grad_changes_nothing():
    for found in picolib.run(asked_for_beside, 2):
        assert_close(found, whole(Plain, (0, {})))


def critic() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(3, 1).double()


def through_a_critic(how: str):
    generator, judge = summed(build(Plain, 0)), summed(critic())
    judge.requires_grad_(how != "frozen")
    score = judge(generator(my_data()[0])).sum()
    score.backward(inputs=list(generator.parameters()) if how == "inputs" else None)
    judge.requires_grad_(True)
    before = gradients(generator)
    judge(my_data()[1]).sum().backward()
    return before, gradients(judge)


@pytest.mark.parametrize("how", ["frozen", "inputs"])
def test_two_wrapped_modules_one_of_which_only_passes_gradients_on(how):
    generator, judge = build(Plain, 0), critic()
    judge(generator(data(12)[0])).sum().backward(inputs=list(generator.parameters()))
    judge(data(12)[1]).sum().backward()
    for found, judged in picolib.run(through_a_critic, 2, how):
        assert_close(found, gradients(generator))
        assert_close(judged, gradients(judge))


def frozen_in_between():
    model = summed(build(Plain, 0))
    model.module.first.requires_grad_(False)
    backward(model, *my_data())
    frozen = gradients(model)
    model.zero_grad()
    model.module.first.requires_grad_(True)
    backward(model, *my_data())
    return frozen, gradients(model)


def test_a_parameter_may_be_frozen_for_a_while():
    right = whole(Plain, (0, {}))
    for frozen, found in picolib.run(frozen_in_between, 2):
        assert_close(frozen, {name: None if name.startswith("first") else g for name, g in right.items()})
        assert_close(found, right)


def with_a_graph_of_gradients():
    model = summed(build(Plain, 0))
    for _ in range(2):
        model.zero_grad()
        loss_of(model, *my_data()).backward(create_graph=True)
    requires = any(bucket.flat.requires_grad for bucket in model.reducer.buckets)
    return gradients(model), requires


@pytest.mark.filterwarnings("ignore")
def test_create_graph_leaves_the_buckets_out_of_the_graph():
    for found, requires in picolib.run(with_a_graph_of_gradients, 2):
        assert_close(found, whole(Plain, (0, {})))
        assert not requires


# Outputs


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    weight: torch.Tensor


class GivesADataclass(Plain):
    def forward(self, x):
        return Output(super().forward(x), self.first.weight)


def dataclass_of_a_result_and_a_parameter():
    model = summed(build(GivesADataclass, 0))
    for _ in range(5):
        model.zero_grad()
        out = model(my_data()[0])
        ((out.y - my_data()[1]).square().sum() / 12).backward()
    return gradients(model), len(model.module.first.weight._backward_hooks or {})


def test_outputs_may_be_dataclasses_and_parameters_which_gather_no_hooks():
    for found, hooks in picolib.run(dataclass_of_a_result_and_a_parameter, 2):
        assert_close(found, whole(Plain, (0, {})))
        assert hooks == 0


def twice_with_statistics(training: bool):
    model = summed(build(WithRunningStatistics, 0)).train(training)
    (loss_of(model, *my_data(seed=0)) + loss_of(model, *my_data(seed=1))).backward()
    return gradients(model)


@pytest.mark.parametrize("training", [True, False])
def test_two_forward_passes_with_running_statistics_before_one_backward(training):
    right: list[dict] = []
    for rank in range(2):  # each rank normalises by its own part of the batch
        model = build(WithRunningStatistics, 0).train(training)
        parts = [[t.tensor_split(2)[rank] for t in data(12, seed)] for seed in (0, 1)]
        sum(loss_of(model, *part) for part in parts).backward()
        right.append(gradients(model))
    for found in picolib.run(twice_with_statistics, 2, training):
        assert_close(found, {name: right[0][name] + right[1][name] for name in right[0]})


# Copies, other dtypes, other parameters


def copied(in_group: bool):
    group = dist.new_group([0, 1]) if in_group else None
    model = copy.deepcopy(summed(build(Plain, dist.get_rank()), process_group=group))
    backward(model, *my_data())
    return gradients(model)


@pytest.mark.parametrize("in_group", [False, True])
def test_a_deep_copy_synchronises_its_own_gradients(in_group):
    for found in picolib.run(copied, 2, in_group):
        assert_close(found, whole(Plain, (0, {})))


def converted(as_view: bool):
    torch.manual_seed(0)
    model = summed(Plain(), gradient_as_bucket_view=as_view).double()
    for _ in range(2):
        model.zero_grad()
        backward(model, *my_data())
    backward(model, *my_data())  # adds to what is settled
    return gradients(model)


@pytest.mark.parametrize("as_view", [False, True])
def test_after_conversion_to_double_gradients_are_summed_in_double(as_view):
    for found in picolib.run(converted, 2, as_view):
        assert_close(found, {name: 2 * g for name, g in whole(Plain, (0, {})).items()})


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)

    def forward(self, x):
        return self.table(x)


def sparse():
    wrap(Table())(torch.tensor([1, 2])).sum().backward()


def unfrozen_after_wrapping():
    module = build(Plain, 0)
    module.first.requires_grad_(False)
    model = wrap(module)
    module.first.requires_grad_(True)
    model(my_data()[0])


def replaced_after_wrapping():
    module = build(Plain, 0)
    model = wrap(module, find_unused_parameters=True)
    module.second = nn.Linear(7, 3, bias=False).double()
    model(my_data()[0])


def another_factor():
    wrap(build(Plain, 0), gradient_divide_factor=1 + dist.get_rank())


def over_shards():
    wrap(picolib.fully_shard(nn.Linear(4, 4)))


def over_columns():
    wrap(picolib.ColumnParallelLinear(4, 4))


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (sparse, "table.weight has a sparse gradient"),
        (unfrozen_after_wrapping, "first.weight requires a gradient now, and did not"),
        (replaced_after_wrapping, "second.weight requires a gradient now, and did not (or was not there)"),
        (another_factor, "rank 0 has gradient_divide_factor=1 and rank 1 has gradient_divide_factor=2"),
        (over_shards, "module must be plain, but fully_shard has sharded it"),
        (over_columns, "process_group must hold replicas, but ranks 0 and 1 in it hold different parts of weight"),
    ],
)
def test_what_would_go_wrong_in_silence_is_one_sentence(fn, words):
    with pytest.raises(picolib.RankError) as error:
        picolib.run(fn, 2)
    assert words in str(error.value)
