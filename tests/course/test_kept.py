"""What a rank keeps under each way to share out the model state is what the formula says, to the byte."""

import pytest
import torch

import picolib
from picolib import memory
from picolib.course.kept import WAYS, state_kept
from picolib.model import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2,
)  # fmt: skip


def kept(way):
    tokens = torch.arange(16).view(2, 8)
    return state_kept(way, LlamaForCausalLM(CONFIG), tokens, tokens)


@pytest.mark.parametrize("stage, way", list(enumerate(WAYS)))
def test_each_rank_keeps_what_the_formula_says(stage, way):
    psi, float32 = memory.parameter_count(CONFIG), memory.BytesPerParameter(4, 4, 8)
    wanted = memory.model_state_parts(psi, 2, min(stage, 3), float32)
    assert list(picolib.run(kept, 2, way)) == [wanted, wanted]
