"""The total norm counts every element once, wherever it is; everyone clips by the same factor."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn

import picolib
from picolib import clip_grad_norm_

NORMS = [1.0, 2.0, 3.5, math.inf]


def model_with_gradients(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two layers with random gradients; the same ones every time."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2)).to(dtype)
    for parameter in model.parameters():
        parameter.grad = (scale * torch.randn(parameter.shape, generator=generator)).to(dtype)
    return model


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients(model)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("max_norm", [0.5, 1e3, 0.0])
def test_where_nothing_is_split_it_is_torch_s_bit_for_bit(norm_type, max_norm, dtype):
    ours, theirs = model_with_gradients(dtype=dtype), model_with_gradients(dtype=dtype)
    norm = clip_grad_norm_(ours, max_norm, norm_type)
    reference = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    assert norm.dtype == reference.dtype and torch.equal(norm, reference)
    assert all(torch.equal(a, b) for a, b in zip(gradients(ours), gradients(theirs), strict=True))


@pytest.mark.parametrize("norm_type", NORMS)
def test_the_norm_is_that_of_one_long_vector_and_the_result_keeps_its_direction(norm_type):
    model = model_with_gradients(scale=10.0)
    before = flat(model)
    norm = clip_grad_norm_(model, 1.5, norm_type)
    right = before.abs().max() if math.isinf(norm_type) else before.abs().pow(norm_type).sum() ** (1 / norm_type)
    torch.testing.assert_close(norm, right)
    torch.testing.assert_close(flat(model), before * 1.5 / right, rtol=1e-6, atol=0.0)


def test_small_gradients_stay_as_they_are():
    model = model_with_gradients(scale=0.001)
    before = flat(model)
    clip_grad_norm_(model, 1.0)
    assert torch.equal(flat(model), before)


def test_infinity_only_measures():
    model = model_with_gradients(scale=100.0)
    before = flat(model)
    torch.testing.assert_close(clip_grad_norm_(model, math.inf), before.norm())
    assert torch.equal(flat(model), before)


def test_modules_lists_of_modules_parameters_and_generators_are_the_same():
    model = model_with_gradients()
    right = clip_grad_norm_(model, math.inf)
    ways = [
        [model],
        [model[0], model[1]],
        model.parameters(),
        list(model.parameters()),
        [model[0], *model[1].parameters()],
    ]
    assert all(torch.equal(clip_grad_norm_(way, math.inf), right) for way in ways)
    weight = model[0].weight
    assert torch.equal(clip_grad_norm_(weight, math.inf), weight.grad.norm())


def test_a_tied_parameter_counts_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).double()
    model[1].weight = model[0].weight
    model[0].weight.grad = torch.full((4, 4), 3.0, dtype=torch.float64)
    for way in (model, [model[0], model[1]], [model[0].weight, model[1].weight]):
        assert clip_grad_norm_(way, math.inf).item() == pytest.approx(12.0)
    clip_grad_norm_([model[0], model[1]], 6.0)
    torch.testing.assert_close(model[0].weight.grad, torch.full((4, 4), 1.5, dtype=torch.float64), rtol=1e-6, atol=0)


def test_parameters_without_a_gradient_are_left_out():
    model = model_with_gradients()
    model[0].weight.grad = None
    right = torch.cat([g.flatten() for g in gradients(model) if g is not None]).norm()
    torch.testing.assert_close(clip_grad_norm_(model, 0.1), right)
    assert clip_grad_norm_([], 1.0) == 0 and clip_grad_norm_(nn.Linear(2, 2), 1.0) == 0


def test_replicated_gradients_are_counted_once_and_nothing_is_sent():
    def clip():
        model = model_with_gradients()
        return clip_grad_norm_(model, 0.5), gradients(model)

    reference = model_with_gradients()
    right = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    run = picolib.run(clip, 4)
    assert run.trace.messages_sent == [0] * 4
    for norm, found in run:
        assert torch.equal(norm, right)
        assert all(torch.equal(a, b) for a, b in zip(found, gradients(reference), strict=True))


@pytest.mark.parametrize("norm_type", NORMS)
def test_stages_of_a_pipeline_clip_by_the_norm_of_the_whole_model(norm_type):
    """Two replicas of two stages: a group of stages spans the model, the two replicas hold the same."""

    def clip():
        model = model_with_gradients(scale=10.0)
        replicas = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        stage = model[dist.get_rank() % 2]
        return clip_grad_norm_(stage, 0.5, norm_type, groups=[replicas[dist.get_rank() // 2]]), gradients(stage)

    whole = model_with_gradients(scale=10.0)
    right = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5, norm_type)
    run = picolib.run(clip, 4)
    for rank, (norm, found) in enumerate(run):
        torch.testing.assert_close(norm, right, rtol=1e-12, atol=0)
        for ours, theirs in zip(found, gradients(whole[rank % 2]), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    assert run.trace.bytes_sent == [8] * 4  # one number


def test_two_groups_one_after_the_other_span_a_grid():
    def clip():
        rank = dist.get_rank()
        rows, columns = (
            [dist.new_group([0, 1]), dist.new_group([2, 3])],
            [dist.new_group([0, 2]), dist.new_group([1, 3])],
        )
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([10.0**rank])
        return clip_grad_norm_(weight, math.inf, 1.0, groups=[rows[rank // 2], columns[rank % 2]]).item()

    assert list(picolib.run(clip, 4)) == pytest.approx([1111.0] * 4)


def test_a_stage_without_gradients_or_of_another_dtype_takes_part():
    def clip():
        dtype = [torch.float64, torch.float32, torch.bfloat16][dist.get_rank()]
        weight = nn.Parameter(torch.zeros(1, dtype=dtype))
        if dist.get_rank() < 2:
            weight.grad = torch.full((1,), 3.0 + dist.get_rank(), dtype=dtype)
        return clip_grad_norm_(weight, math.inf, groups=[dist.group.WORLD]).item()

    assert list(picolib.run(clip, 3)) == pytest.approx([5.0] * 3)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_an_infinite_or_missing_number_on_one_stage_is_seen_by_all(bad, norm_type):
    def clip():
        weight = nn.Parameter(torch.zeros(2))
        weight.grad = torch.tensor([1.0, bad if dist.get_rank() == 1 else 2.0])
        return clip_grad_norm_(weight, 1.0, norm_type, groups=[dist.group.WORLD]).item()

    assert not any(math.isfinite(norm) for norm in picolib.run(clip, 3))


def test_the_norm_carries_no_graph():
    model = copy.deepcopy(model_with_gradients())
    assert not clip_grad_norm_(model, 1.0).requires_grad


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="max_norm=-1.0 must be 0 or more"):
        clip_grad_norm_([], -1.0)
    with pytest.raises(ValueError, match="max_norm=nan must be 0 or more"):
        clip_grad_norm_([], math.nan)
    with pytest.raises(ValueError, match="norm_type=0 must be above 0"):
        clip_grad_norm_([], 1.0, 0)
    with pytest.raises(TypeError, match="'weight' can't be clipped; give modules or parameters"):
        clip_grad_norm_(["weight"], 1.0)
