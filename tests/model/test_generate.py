"""Writing text: the seed decides, temperature 0 is greedy, and the window moves on."""

import pytest
import torch
import torch.nn as nn

from picolib.model import LlamaConfig, LlamaForCausalLM, generate, init_weights, sample
from picolib.model.generate import choose

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=8,
)
MODEL = init_weights(LlamaForCausalLM(CONFIG), seed=0, std=0.5)


class Successor(nn.Module):
    """Says that the token after t is t + 1, and notes how much it was shown."""

    config = CONFIG

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.shown = tokens.shape[1]
        return 9.0 * nn.functional.one_hot((tokens + 1) % 256, 256)


def test_equal_seeds_write_equal_text_and_others_other_text():
    text = sample(MODEL, "ab", 20, temperature=1.0, seed=1)
    torch.rand(3)
    assert text == sample(MODEL, "ab", 20, temperature=1.0, seed=1) != sample(MODEL, "ab", 20, temperature=1.0, seed=2)
    assert text.startswith("ab")


def test_temperature_zero_takes_the_likeliest_token_and_the_window_is_bounded():
    model = Successor()
    tokens = generate(model, torch.tensor([[5, 6], [50, 60]]), 12, temperature=0)
    assert tokens[0].tolist() == list(range(5, 19)) and tokens[1, 1:].tolist() == list(range(60, 73))
    assert model.shown == CONFIG.max_position_embeddings


def test_low_temperatures_make_likely_tokens_likelier():
    logits = torch.tensor([[2.0, 0.0]]).repeat(400, 1)
    share = [(choose(logits, t, torch.Generator().manual_seed(0)) == 0).float().mean() for t in (0.5, 1.0, 4.0)]
    assert share[0] > share[1] > share[2]
    assert abs(share[1] - torch.sigmoid(torch.tensor(2.0))) < 0.06


def test_generation_keeps_no_gradients():
    assert not generate(MODEL, torch.tensor([[1]]), 2).requires_grad


def test_a_negative_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature=-1 must be 0"):
        sample(MODEL, "a", 1, temperature=-1)
