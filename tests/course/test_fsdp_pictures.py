"""The pictures of lesson 04B are drawn from a run, and the formulas behind them hold against runs on slow links."""

import pytest
import torch
from torch import nn

import picolib
from picolib.course.figures.fsdp_life import (
    BACKWARD,
    FORWARD,
    GATHERING,
    REDUCED,
    REDUCING,
    SHARD,
    WHOLE,
    fsdp_frame,
    fsdp_life,
    life_of,
)
from picolib.course.figures.sharding_trade import (
    MODELS,
    break_even_tokens,
    ddp_seconds,
    fsdp_seconds,
    plans,
    sharding_trade,
)
from picolib.course.widgets import fsdp_stepper, trade_explorer

LAYERS, WEIGHTS, AHEAD, BACK = 4, 100_000, 0.06, 0.12
LINKS = picolib.Links(nodes=1, per_node=2, intra=(0.0, 1e7))
ONCE = 4 * WEIGHTS / 2 / 1e7  # seconds of an all-gather or a reduce-scatter: half of the bytes leave each rank


class Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, name):
        ctx.save_for_backward(weight)
        ctx.name = name
        picolib.pretend(AHEAD, f"{name} forward")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        picolib.pretend(BACK, f"{ctx.name} backward")
        return grad, torch.ones_like(ctx.saved_tensors[0]), None


class Layer(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.zeros(WEIGHTS))

    def forward(self, x):
        return Compute.apply(x, self.weight, self.name)


def two_steps(keeps=False):
    model = nn.Sequential(*(Layer(str(number)) for number in range(LAYERS)))
    for layer in model:
        picolib.fully_shard(layer, reshard_after_forward=not keeps)
    picolib.fully_shard(model)
    for _ in range(2):
        picolib.comm.barrier()
        with picolib.mark("step"):
            model(torch.ones(1)).sum().backward()


@pytest.fixture(scope="module")
def trace():
    return picolib.run(two_steps, 2, links=LINKS, trace=True).trace


def states_of(life, layer):
    """The states of one layer, one after the other."""
    states = [moment.states[layer] for moment in life.moments]
    return [state for state, before in zip(states, [None, *states], strict=False) if state != before]


def test_a_layer_is_a_part_on_its_way_whole_computing_freed_and_all_that_again_backward(trace):
    there_and_back = [SHARD, GATHERING, WHOLE, FORWARD, SHARD, GATHERING, WHOLE, BACKWARD, REDUCING, REDUCED]
    assert states_of(life_of(trace), 1) == there_and_back


def test_in_the_first_step_nothing_is_fetched_ahead_and_in_the_second_two_layers_are_whole_at_once(trace):
    first, second = life_of(trace, step=0), life_of(trace, step=1)
    assert WHOLE not in states_of(first, 1)[:3]
    assert max(moment.whole for moment in second.moments) == 2


def test_the_formula_for_a_step_agrees_with_a_run_on_slow_links(trace):
    expected = fsdp_seconds(AHEAD, BACK, ONCE, ONCE, LAYERS, keeps=False)
    assert life_of(trace).seconds == pytest.approx(expected, rel=0.15)


def test_the_pictures_can_be_drawn(trace):
    life = life_of(trace)
    for figure in (fsdp_life(trace, follow=1), fsdp_frame(life, 0), fsdp_frame(life, 5, follow=2)):
        assert figure.varies
        assert len(figure.png(1)) > 1000
    panel = fsdp_stepper(trace).panel
    assert len(panel.children[-1].children) == len(life.moments)


def test_a_trace_without_steps_is_refused(trace):
    with pytest.raises(ValueError, match=r"step=2: rank 0 has 2 spans"):
        life_of(trace, step=2)


def test_hidden_communication_costs_the_first_gather_and_the_last_reduce():
    assert fsdp_seconds(2, 4, 1, 1, layers=5, keeps=False) == 1 + 5 * 2 + 1 + 5 * 4 + 1
    assert fsdp_seconds(2, 4, 1, 1, layers=5, keeps=True) == 1 + 5 * 2 + 5 * 4 + 1
    assert ddp_seconds(2, 4, 2, layers=5) == 5 * 2 + 5 * 4 + 2


def test_bytes_and_state_are_those_of_the_formulas():
    ddp, fsdp, kept = plans(MODELS[1], 8, 4096, 25e9)
    psi = MODELS[1].parameters
    assert (ddp.sent, fsdp.sent, kept.sent) == pytest.approx([k * 7 / 8 * 2 * psi for k in (2, 3, 2)])
    assert ddp.state == 16 * psi
    assert fsdp.state == pytest.approx(16 * psi / 8 + 2 * 2 * psi / 32)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_from_the_break_even_on_fsdp_is_as_fast_as_ddp_whatever_the_model(model):
    tokens = break_even_tokens(8, 25e9)
    for factor, slower in ((1.01, False), (0.5, True)):
        ddp, fsdp, _ = plans(model, 8, factor * tokens, 25e9)
        assert (fsdp.exposed > 0.05 * fsdp.compute + ddp.exposed) is slower


def test_the_trade_can_be_drawn():
    assert "FSDP" in sharding_trade(MODELS[0], 8, [4096], 25e9).alt
    assert len(trade_explorer().picture.png(1)) > 1000
