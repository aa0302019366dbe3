"""Inference: the weights, and the keys and values of every token read or written so far."""

from __future__ import annotations

from typing import Any

from picolib.plan.memory.parameters import parameter_count
from picolib.plan.memory.shape import Shape


def kv_cache_bytes_per_token(config: Any, bytes_per_number: float = 2) -> float:
    """2·L·(key-value heads)·head_dim numbers: a key and a value in every layer (Ainslie et al. 2023: fewer heads).

    Latent attention keeps one narrow vector and the rotary key in place of both (DeepSeek-V2, section 2.1).

    >>> from picolib.plan.memory import PRESETS
    >>> kv_cache_bytes_per_token(PRESETS["Llama 3 70B"])
    327680
    """
    shape = Shape(config)
    if shape.kv_lora_rank is not None:
        numbers = shape.kv_lora_rank + shape.qk_rope_head_dim
    else:
        numbers = 2 * shape.num_key_value_heads * shape.head_dim
    return shape.num_hidden_layers * numbers * bytes_per_number


def kv_cache_bytes(config: Any, batch: int, sequence: int, bytes_per_number: float = 2) -> float:
    """The cache of `batch` texts of `sequence` tokens each."""
    return batch * sequence * kv_cache_bytes_per_token(config, bytes_per_number)


def inference_bytes(
    config: Any, batch: int, sequence: int, *, tensor_parallel: int = 1, bytes_per_number: float = 2,
) -> dict[str, float]:  # fmt: skip
    """The peak of inference on one rank, as named parts in bytes. `tensor_parallel` ranks share weights and cache."""
    shape = Shape(config)
    heads_split = min(tensor_parallel, shape.num_key_value_heads)
    return {
        "weights": parameter_count(config) * bytes_per_number / tensor_parallel,
        "kv cache": kv_cache_bytes(config, batch, sequence, bytes_per_number) / heads_split,
        "logits": shape.vocab_size * batch * bytes_per_number / tensor_parallel,
    }
