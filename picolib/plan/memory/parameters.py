"""How many parameters a model has, from its configuration."""

from __future__ import annotations

from typing import Any

from picolib.plan.memory.shape import Shape


def parameter_count(config: Any) -> int:
    """All parameters of a Llama-style model, dense or with experts (a tied output layer counts once).

    Embedding V·h, each layer's attention, MLP or experts and two norms, the last norm, and the output layer V·h.

    >>> parameter_count({"vocab_size": 256, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
    ...                  "num_attention_heads": 4, "num_key_value_heads": 2})
    131392
    """
    return _count(Shape(config), lambda shape: shape.num_experts)


def active_parameter_count(config: Any) -> int:
    """The parameters that one token passes through: of the experts only those that the router picks for it."""
    return _count(Shape(config), lambda shape: shape.num_experts_per_tok)


def layer_parameter_count(config: Any, dense: bool | None = None) -> int:
    """The parameters of one layer. `dense` chooses between the two kinds of a model that has both; None: the last."""
    shape = Shape(config)
    return _layer(shape, shape.num_experts, not shape.num_experts if dense is None else dense)


def _count(shape: Shape, experts: Any) -> int:
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    dense = min(shape.num_dense_layers, shape.num_hidden_layers)
    layers = dense * _layer(shape, 0, True) + (shape.num_hidden_layers - dense) * _layer(shape, experts(shape), False)
    return embeddings + layers + shape.hidden_size


def _layer(shape: Shape, experts: int, dense: bool) -> int:
    norms = 2 * shape.hidden_size
    return _attention(shape) + norms + (_mlp(shape, shape.intermediate_size) if dense else _experts(shape, experts))


def _mlp(shape: Shape, width: int) -> int:
    return 3 * shape.hidden_size * width  # SwiGLU: gate, up and down


def _experts(shape: Shape, counted: int) -> int:
    router = shape.hidden_size * shape.num_experts
    if shape.kv_lora_rank is not None:
        router += shape.num_experts  # DeepSeek-V3 balances its experts with a bias on each
    return router + (counted + shape.num_shared_experts) * _mlp(shape, shape.expert_size)


def _attention(shape: Shape) -> int:
    if shape.kv_lora_rank is not None:
        return _latent_attention(shape)
    queries, keys = (n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads))
    return shape.hidden_size * (2 * queries + 2 * keys)


def _latent_attention(shape: Shape) -> int:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): queries and keys pass through narrow layers, each with
    a norm; the rotary part of the key is shared by all heads."""
    h, heads = shape.hidden_size, shape.num_attention_heads
    query_dim = shape.qk_nope_head_dim + shape.qk_rope_head_dim
    queries = shape.q_lora_rank * (h + 1 + heads * query_dim)
    latent = h * (shape.kv_lora_rank + shape.qk_rope_head_dim) + shape.kv_lora_rank
    keys_and_values = shape.kv_lora_rank * heads * (shape.qk_nope_head_dim + shape.v_head_dim)
    return queries + latent + keys_and_values + heads * shape.v_head_dim * h
