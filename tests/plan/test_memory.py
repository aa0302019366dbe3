"""The memory formulas: published figures, and the small Llama as measured."""

from __future__ import annotations

import doctest
import importlib
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from picolib.model import LlamaConfig, LlamaForCausalLM, sum_of_token_losses
from picolib.plan import memory

MODULES = ("parameters", "state", "activations", "inference")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings(name):
    module = importlib.import_module(f"picolib.plan.memory.{name}")
    assert doctest.testmod(module).failed == 0


def test_mixtral_8x7b():
    config = memory.PRESETS["Mixtral 8x7B"]
    assert memory.parameter_count(config) == 46_702_792_704
    assert memory.active_parameter_count(config) == 12_879_925_248


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Llama 3 8B", 8_030_261_248),
        ("Llama 3 70B", 70_553_706_496),
        ("Llama 3 405B", 405_853_388_800),
        ("DeepSeek-V3", 671_026_419_200),
    ],
)
def test_published_models(name, parameters):
    assert memory.parameter_count(memory.PRESETS[name]) == parameters


def test_deepseek_v3_activates_37_billion():
    assert round(memory.active_parameter_count(memory.PRESETS["DeepSeek-V3"]) / 1e9) in (37, 38)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_count_is_that_of_the_real_model(kv_heads, tied):
    config = small(num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    assert memory.parameter_count(config) == sum(p.numel() for p in LlamaForCausalLM(config).parameters())
    layer = LlamaForCausalLM(config).model.layers[0]
    assert memory.layer_parameter_count(config) == sum(p.numel() for p in layer.parameters())


def test_mixtral_with_two_layers_has_as_many_as_transformers_says():
    transformers = pytest.importorskip("transformers")
    sizes = {**memory.PRESETS["Mixtral 8x7B"], "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
    sizes.update(num_attention_heads=4, num_key_value_heads=2, vocab_size=128)
    theirs = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, head_dim=16))
    assert memory.parameter_count(sizes) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 1120), (1, 293.125), (2, 155.3125), (3, 17.5)])
def test_70_billion_on_64_ranks(stage, gigabytes):
    assert memory.model_state_bytes(70_000_000_000, 64, stage) == gigabytes * 1e9


def test_on_one_rank_every_stage_is_the_same():
    assert {memory.model_state_bytes(1000, 1, stage) for stage in range(4)} == {16_000}


def test_gpt_3s_activations():
    """Korthikanti et al. 2022: at 175 billion parameters, s = 2048, h = 12288, a = 96, the square term is 80/34."""
    whole = memory.gpt_activation_bytes_per_layer(1, 2048, 12288, 96)
    selective = memory.gpt_activation_bytes_per_layer(1, 2048, 12288, 96, recompute="selective")
    assert whole / selective == pytest.approx((34 + 80) / 34)
    eight = memory.gpt_activation_bytes_per_layer(1, 2048, 12288, 96, tensor_parallel=8, sequence_parallel=True)
    assert eight == pytest.approx(whole / 8)
    plain = memory.gpt_activation_bytes_per_layer(1, 2048, 12288, 96, tensor_parallel=8)
    assert plain == pytest.approx(2048 * 12288 * (10 + 24 / 8 + 80 / 8))


def test_the_key_value_cache_of_70b():
    config = memory.PRESETS["Llama 3 70B"]
    assert memory.kv_cache_bytes_per_token(config) == 327_680
    assert memory.kv_cache_bytes(config, 1, 32_768) == pytest.approx(10.7e9, rel=0.01)


def small(**sizes) -> LlamaConfig:
    plain = {
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    return LlamaConfig(**{**plain, **sizes})


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_measured_model_state_is_the_formula(optimizer):
    config = small()
    model = LlamaForCausalLM(config)
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    tokens = torch.randint(256, (4, 32))
    with memory.measure(model, steps) as found:
        sum_of_token_losses(model(tokens), tokens).backward()
        steps.step()
    each = memory.BytesPerParameter(4, 4, 8 if optimizer == "Adam" else 0)
    parts = memory.model_state_parts(memory.parameter_count(config), each=each)
    counters = 4 * len(list(model.parameters())) if optimizer == "Adam" else 0  # one step counter a tensor
    assert found.parameters == parts["parameters"]
    assert found.gradients == parts["gradients"]
    assert found.optimizer == parts["optimizer"] + counters


@pytest.mark.parametrize(
    "sizes",
    [{}, {"num_hidden_layers": 1}, {"hidden_size": 128}, {"num_attention_heads": 8}, {"intermediate_size": 80}],
    ids=str,
)
def test_measured_activations_are_within_five_percent_of_the_formula(sizes):
    config = small(**sizes)
    model, tokens = LlamaForCausalLM(config), torch.randint(256, (4, 32))
    with memory.measure(model) as found:
        sum_of_token_losses(model(tokens), tokens).backward()
    formula = memory.activation_bytes(config, 4, 32, bytes_per_number=4) + memory.logits_bytes(256, 4, 32, 4)
    assert found.activations == pytest.approx(formula, rel=0.05)


def test_measure_counts_a_storage_once_and_by_its_first_owner():
    model = torch.nn.Linear(8, 8, bias=False)
    flat = torch.zeros(64)
    model.weight.grad = flat.view(8, 8)
    with memory.measure(model, bucket=[flat]) as found:
        pass
    assert (found.parameters, found.others["bucket"], found.gradients) == (256, 256, 0)
    assert found.total == 512


def test_measured_activations_are_the_most_that_was_held_at_once():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 1000, bias=False), torch.nn.Tanh())
    with memory.measure(layers) as once:
        layers(torch.ones(1, 4)).sum().backward()
    with memory.measure(layers) as twice:
        for _ in range(2):
            layers(torch.ones(1, 4)).sum().backward()
    assert once.activations == twice.activations == 4 * (1000 + 4)


def test_a_graph_without_a_backward_pass_is_let_go_with_its_loss():
    layer = torch.nn.Linear(8, 8)
    with memory.measure(layer) as found:
        for _ in range(3):
            layer(torch.ones(4, 8)).tanh().sum().item()
    assert found.activations == 2 * 4 * 8 * 4 and found.held[-1] == 0


def test_what_is_held_is_told_in_order():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 1000, bias=False), torch.nn.Tanh())
    with memory.measure(layers) as found:
        layers(torch.ones(1, 4)).sum().backward()
    assert found.held == [16, 4016, 16, 0] and "held" not in repr(found)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.model_state_bytes(1, 1, 4), "stage must be 0 (DDP), 1, 2 or 3 (FSDP), got 4"),
        (lambda: memory.model_state_bytes(1, 0), "ranks must be at least 1, got 0"),
        (lambda: memory.parameter_count({"hidden_size": 3}), "config has no 'vocab_size'"),
        (lambda: memory.activation_bytes(small(), 1, 1, recompute="some"), "recompute must be one of none"),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def test_the_peak_with_recomputation_is_all_inputs_and_one_whole_layer():
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 8}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model, tokens = LlamaForCausalLM(config), torch.randint(64, (16, 64))
    for layer in model.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=True)
    with memory.measure(model) as found:
        sum_of_token_losses(model(tokens), tokens).backward()
    whole = memory.training_bytes(config, 16, 64, each=memory.BytesPerParameter(4, 4, 8), recompute="full")
    assert found.activations <= whole["activations"] <= 1.2 * found.activations  # the last norm is gone by then
