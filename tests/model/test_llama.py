"""The model computes what Hugging Face's Llama computes, from the same configuration and the same state dict."""

import json

import pytest
import torch

from picolib.model import LlamaConfig, LlamaForCausalLM, init_weights
from picolib.model.llama import LlamaRMSNorm, causal_attention, rotary_angles, rotate

from .make_reference import CASES, REFERENCE, formula_tokens, formula_weights

TINY = LlamaConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)


def tiny(**changes) -> LlamaForCausalLM:
    return init_weights(LlamaForCausalLM(LlamaConfig(**{**TINY.to_dict(), **changes})), seed=1, std=0.3)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_stored_ones_of_transformers(case):
    model = LlamaForCausalLM(LlamaConfig(**CASES[case], rope_theta=500.0))
    model.load_state_dict(formula_weights(model.state_dict(keep_vars=True)))
    logits = model(formula_tokens(61))[:, [0, 1, 6, 12], ::12].flatten(0, 1)
    torch.testing.assert_close(logits, torch.tensor(json.loads(REFERENCE.read_text())[case]), atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_and_gradients_equal_those_of_transformers(tied):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: test)")
    ours = tiny(tie_word_embeddings=tied)
    config = transformers.LlamaConfig(**ours.config.to_dict(), attn_implementation="eager")
    theirs = transformers.LlamaForCausalLM(config)
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(61, (3, 17), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)
    ours(tokens).square().sum().backward()
    theirs(tokens).logits.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients.pop(name), rtol=1e-3, atol=1e-3, msg=lambda m: name + m)
    assert not gradients


def test_a_configuration_of_transformers_is_read():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: test)")
    config = LlamaConfig(num_key_value_heads=8, rope_theta=5e5, tie_word_embeddings=True)
    assert LlamaConfig.from_dict(transformers.LlamaConfig(**config.to_dict()).to_dict()) == config


def test_parameters_have_hugging_face_names():
    names = [name for name, _ in tiny().named_parameters()]
    layer = [
        *(f"self_attn.{x}_proj.weight" for x in "qkvo"),
        *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    layers = [f"model.layers.{i}.{name}" for i in (0, 1) for name in layer]
    assert sorted(names) == sorted(["model.embed_tokens.weight", *layers, "model.norm.weight", "lm_head.weight"])


def test_a_token_sees_no_later_token():
    model, tokens = tiny(), formula_tokens(61)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 61
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


def test_only_distances_between_positions_matter():
    model, tokens = tiny(), formula_tokens(61)
    torch.testing.assert_close(model(tokens), model(tokens, torch.arange(13) + 11), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model(tokens), model(tokens, torch.arange(13) * 2), atol=1e-2)


def test_position_ids_may_differ_by_row():
    model, tokens = tiny(), formula_tokens(61)
    positions = torch.stack((torch.arange(13), torch.arange(13) * 2))
    rows = torch.cat([model(tokens[i : i + 1], positions[i]) for i in (0, 1)])
    torch.testing.assert_close(model(tokens, positions), rows)


def test_rotation_keeps_lengths():
    x = torch.randn(2, 3, 5, 8)
    turned = rotate(x, rotary_angles(torch.arange(5), head_dim=8, theta=100.0))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_attention_equals_its_formula_head_by_head():
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    attended = causal_attention(q, k, v)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for head in range(6):
        scores = (q[:, head] @ k[:, head // 2].mT / 2).masked_fill(hidden, -torch.inf)
        torch.testing.assert_close(attended[:, head], scores.softmax(-1) @ v[:, head // 2])


def test_the_norm_sums_squares_in_float32_at_least():
    norm = LlamaRMSNorm(4096, eps=1e-6)
    x = torch.full((4096,), 300.0)
    assert torch.equal(norm.half()(x.half()), torch.ones(4096).half())  # 300² is infinite in float16
    assert norm.double()(x.double()).dtype == torch.float64


def test_the_model_works_in_float64_and_bfloat16():
    tokens, model = formula_tokens(61), tiny()
    logits = model(tokens)
    torch.testing.assert_close(model.double()(tokens).float(), logits, atol=1e-4, rtol=1e-4)
    assert model.bfloat16()(tokens).dtype == torch.bfloat16


def test_tied_embeddings_are_one_parameter():
    model = tiny(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in dict(model.named_parameters())
    assert "lm_head.weight" in model.state_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=4"),
        ({"hidden_size": 26, "head_dim": None}, "hidden_size=26 is not a multiple of num_attention_heads=4"),
        ({"head_dim": 5}, "head_dim=5 must be even"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig(**{**TINY.to_dict(), **changes})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_bias": True}, "attention_bias=True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling=.*llama3.* is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_scaling='llama3' is not supported"),
    ],
)
def test_a_configuration_that_this_model_cannot_obey_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_dict(settings)


def test_a_configuration_survives_the_way_through_a_dictionary():
    assert LlamaConfig.from_dict({**TINY.to_dict(), "bos_token_id": 1, "rope_scaling": None}) == TINY
