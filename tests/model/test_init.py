"""First weights depend on the seed and the full name, and on nothing else."""

import pytest
import torch
import torch.nn as nn

from picolib.model import LlamaConfig, LlamaForCausalLM, init_weights, initial_value


def llama(layers: int = 2, tied: bool = False) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=layers,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    state = other.state_dict()
    assert one.state_dict().keys() == state.keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_the_same_seed_gives_the_same_model_whatever_was_drawn_before():
    one = init_weights(llama(), seed=3)
    torch.randn(7)
    assert_equal(one, init_weights(llama(), seed=3))


def test_another_seed_or_another_name_gives_other_weights():
    weight = initial_value("a.weight", (4, 4), seed=0)
    assert not torch.equal(weight, initial_value("a.weight", (4, 4), seed=1))
    assert not torch.equal(weight, initial_value("b.weight", (4, 4), seed=0))


def test_a_shallow_model_is_the_beginning_of_a_deep_one():
    deep, shallow = init_weights(llama(layers=3), seed=0), init_weights(llama(layers=1), seed=0)
    assert_equal(shallow.model.layers[0], deep.model.layers[0])
    assert_equal(shallow.lm_head, deep.lm_head)


def test_a_part_with_its_prefix_equals_the_same_part_of_the_whole():
    whole, part = init_weights(llama(), seed=0), llama().model.layers[1]
    assert_equal(init_weights(part, seed=0, prefix="model.layers.1."), whole.model.layers[1])


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    init_weights(llama(), seed=0)  # the constructor draws; filling does not
    torch.set_rng_state(state)
    model = llama()
    after_construction = torch.get_rng_state()
    init_weights(model, seed=0)
    assert torch.equal(torch.get_rng_state(), after_construction)


@pytest.mark.parametrize("tied", [False, True])
def test_a_meta_model_is_filled_with_the_same_values(tied):
    with torch.device("meta"):
        meta = llama(tied=tied)
    meta.model.norm.weight.requires_grad_(False)
    init_weights(meta, seed=5)
    assert_equal(meta, init_weights(llama(tied=tied), seed=5))
    assert (meta.lm_head.weight is meta.model.embed_tokens.weight) == tied
    assert not meta.model.norm.weight.requires_grad
    meta(torch.zeros(1, 3, dtype=torch.long)).sum().backward()


def test_a_tie_uses_its_first_name():
    model = init_weights(llama(tied=True), seed=0)
    assert torch.equal(model.lm_head.weight, initial_value("model.embed_tokens.weight", (32, 16), seed=0))


def test_the_dtype_rounds_the_values_and_changes_nothing_else():
    double, single = init_weights(llama().double(), seed=0), init_weights(llama(), seed=0)
    for (name, one), other in zip(double.named_parameters(), single.parameters(), strict=True):
        assert one.dtype == torch.float64 and torch.equal(one.float(), other), name


def test_matrices_are_normal_norms_one_and_biases_zero():
    matrix = initial_value("x.weight", (200, 300), seed=0, std=0.05)
    assert abs(matrix.std() - 0.05) < 1e-3 and abs(matrix.mean()) < 1e-3
    assert torch.equal(initial_value("norm.weight", (5,), seed=0), torch.ones(5))
    assert torch.equal(initial_value("x.bias", (5,), seed=0), torch.zeros(5))
