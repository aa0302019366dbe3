"""A Llama-style transformer written plainly, its first weights, its loss, and real text to train it on."""

from picolib.model.config import LlamaConfig
from picolib.model.generate import generate, sample
from picolib.model.init import init_weights, initial_value
from picolib.model.llama import LlamaForCausalLM
from picolib.model.loss import count_valid_tokens, sum_of_token_losses
from picolib.model.text import Batch, TextBatches, decode, encode, load_text, split_tokens

__all__ = [
    "Batch",
    "LlamaConfig",
    "LlamaForCausalLM",
    "TextBatches",
    "count_valid_tokens",
    "decode",
    "encode",
    "generate",
    "init_weights",
    "initial_value",
    "load_text",
    "sample",
    "split_tokens",
    "sum_of_token_losses",
]
