"""ZeroRedundancyOptimizer in programs that do more than backward, step, zero_grad."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from tests.parallel.steps import SMALL, my_data
from tests.parallel.zoo import Plain, build, data


def optimizer_for(model: nn.Module, stage: int | None, **options):
    """AdamW, whose step depends on whether a gradient is zero or missing; alone where there is no stage."""
    settings = {"lr": 0.1, "weight_decay": 0.3, **options}
    if stage is None:
        return torch.optim.AdamW(model.parameters(), **settings)
    return picolib.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, stage=stage, gradient_divide_factor=1, bucket_cap_mb=SMALL, **settings
    )


def backward(model, stage, seed: int = 0, **options) -> None:
    x, y = data(12, seed) if stage is None else my_data(seed=seed)
    ((model(x) - y).square().sum() / 12).backward(**options)


def cycled(model, stage):
    """A scheduler that also changes beta1, and refuses an optimizer without one."""
    optimizer = optimizer_for(model, stage)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=10)
    for step in range(4):
        optimizer.zero_grad()
        backward(model, stage, step)
        optimizer.step()
        scheduler.step()


def frozen_for_a_step(model, stage):
    """AdamW must not decay what has no gradient."""
    optimizer = optimizer_for(model, stage)
    for step in range(3):
        model.first.requires_grad_(step != 1)
        optimizer.zero_grad()
        backward(model, stage, step)
        optimizer.step()


def stepped_again(model, stage):
    optimizer = optimizer_for(model, stage)
    optimizer.step()  # nothing to do yet
    backward(model, stage)
    optimizer.step()
    optimizer.step()
    backward(model, stage, 1)  # adds to what is there
    optimizer.step()


def failed_once(model, stage):
    def refuse(gradient):
        raise FloatingPointError("no")

    optimizer = optimizer_for(model, stage)
    handle = model.first.bias.register_hook(refuse)
    with pytest.raises(FloatingPointError):
        backward(model, stage)
    handle.remove()
    optimizer.zero_grad()
    backward(model, stage)
    optimizer.step()


def with_a_graph_of_gradients(model, stage):
    optimizer = optimizer_for(model, stage)
    backward(model, stage, create_graph=True)
    optimizer.step()
    optimizer.zero_grad()


def in_a_closure(model, stage):
    optimizer = optimizer_for(model, stage)

    def closure():
        optimizer.zero_grad()
        backward(model, stage)
        return 0.0

    optimizer.step(closure)


PROGRAMS = [cycled, frozen_for_a_step, stepped_again, failed_once, with_a_graph_of_gradients, in_a_closure]


def parameters_after(program, stage: int | None):
    model = build(Plain, 0)
    program(model, stage)
    return [p.detach() for p in model.parameters()]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_parameters_are_those_of_one_process(program, stage):
    right = parameters_after(program, None)
    for found in picolib.run(parameters_after, 2, program, stage):
        for one, two in zip(found, right, strict=True):
            assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)


def continued(stage: int | None):
    """NAdam keeps a product of betas for each parameter, in the shape of a scalar parameter's own state."""
    model, state = build(Plain, 0), None
    for step in range(2):
        optimizer = None  # the one before must be gone
        if stage is None:
            optimizer = torch.optim.NAdam(model.parameters(), lr=0.1)
        else:
            options = {"stage": stage, "gradient_divide_factor": 1, "lr": 0.1}
            optimizer = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.NAdam, **options)
        if state is not None:
            optimizer.load_state_dict(state)
        backward(model, stage, step)
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.state_dict()
    return model.scale.detach()


def test_a_scalar_parameter_s_state_is_saved_and_loaded():
    assert all(torch.allclose(found, continued(None), rtol=1e-13) for found in picolib.run(continued, 2, 1))


def groups_added():
    model = build(Plain, 0)
    optimizer_for(model.first, 1).add_param_group({"params": list(model.second.parameters())})


def copied():
    copy.deepcopy(optimizer_for(build(Plain, 0), 1))


def converted():
    model = Plain()
    optimizer = optimizer_for(model, 1)
    model.double()
    backward(model, 1)
    optimizer.step()


def unfrozen():
    model = build(Plain, 0)
    model.first.requires_grad_(False)
    optimizer = optimizer_for(model, 2)
    model.first.requires_grad_(True)
    backward(model, 2)
    optimizer.step()


def all_frozen():
    optimizer_for(build(Plain, 0).requires_grad_(False), 1)


def sparse():
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = picolib.ZeroRedundancyOptimizer(table.parameters(), torch.optim.SGD, lr=0.1)
    table(torch.tensor([dist.get_rank()])).sum().backward()
    optimizer.step()


def clipped_by_what_each_rank_has(by_module: bool):
    model = build(Plain, 0)
    optimizer = optimizer_for(model, 1)
    backward(model, 1)
    picolib.clip_grad_norm_(model if by_module else model.parameters(), 1.0)
    optimizer.step()


def another_rate():
    optimizer_for(build(Plain, 0), 1, lr=0.1 * (1 + dist.get_rank()))


def over_shards():
    optimizer_for(picolib.fully_shard(nn.Linear(4, 4)), 1)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (groups_added, "can't add_param_group: give all groups to it when it is built"),
        (copied, "can't be copied or pickled: take its state_dict()"),
        (converted, "has moved to other memory since this optimizer was built"),
        (unfrozen, "requires a gradient now, and did not when this optimizer was built"),
        (all_frozen, "params must have one that requires a gradient"),
        (sparse, "Parameter number 0 has a sparse gradient"),
        (partial(clipped_by_what_each_rank_has, True), "call its clip_grad_norm_(max_norm) instead"),
        (partial(clipped_by_what_each_rank_has, False), "call its clip_grad_norm_(max_norm) instead"),
        (another_rate, "rank 0 has lr=0.1 and rank 1 has lr=0.2"),
        (over_shards, "params must be plain, but fully_shard has sharded it"),
    ],
)
def test_what_would_go_wrong_in_silence_is_one_sentence(fn, words):
    with pytest.raises(picolib.RankError) as error:
        picolib.run(fn, 2)
    assert words in str(error.value)
