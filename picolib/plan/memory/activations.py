"""Activations: what the forward pass saves for the backward pass."""

from __future__ import annotations

from typing import Any

from picolib.plan.memory.shape import Shape

RECOMPUTE = ("none", "selective", "full")


def gpt_activation_bytes_per_layer(
    batch: int, sequence: int, hidden: int, heads: int, *, tensor_parallel: int = 1, sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:  # fmt: skip
    """One layer of a GPT with GELU, dropout and an MLP of width 4h, in 16 bits (Korthikanti et al. 2022, table 2).

        no parallelism              s·b·h·(34 + 5·a·s/h)
        tensor parallelism          s·b·h·(10 + 24/t + 5·a·s/(h·t))
        with sequence parallelism   s·b·h/t·(34 + 5·a·s/h)
        selective recomputation     the same without the term in 5·a·s/h: attention's inside is computed again
        full recomputation          2·s·b·h: the layer's input alone (/t with sequence parallelism)

    Args:
        batch, sequence, hidden, heads: b, s, h and a. tensor_parallel: t.

    >>> round(gpt_activation_bytes_per_layer(1, 2048, 12288, 96) / 1e9, 2)      # GPT-3, one layer, in GB
    2.87
    """
    _check_recompute(recompute)
    tokens = sequence * batch * hidden
    t = tensor_parallel
    if recompute == "full":
        return 2 * tokens / (t if sequence_parallel else 1)
    inside_attention = 0 if recompute == "selective" else 5 * heads * sequence / hidden
    if sequence_parallel:
        return tokens / t * (34 + inside_attention)
    return tokens * (10 + 24 / t + inside_attention / t)


def activation_bytes_per_layer(
    config: Any, batch: int, sequence: int, *, tensor_parallel: int = 1, sequence_parallel: bool = False,
    recompute: str = "none", bytes_per_number: float = 2,
) -> float:  # fmt: skip
    """One layer of picolib's Llama: the numbers saved for each token, times their size.

    Counted from the operations of `picolib.model`. q is the width of all query heads together, a their number, m the
    width of the MLP (with experts: of those that a token visits). Attention is fused, so nothing of size s·s is kept.

        two norms, each    3h + 1   the input, one number to divide by, the normalised input, and that times the weight
                                    (which is also what q, k and v, or gate and up, take in)
        attention          4q + a   queries, keys and values (repeated for each query head), output; a logarithm a head
        SwiGLU             4m       gate, its SiLU, up, and the product that down takes in

    Tensor parallelism divides attention and SwiGLU by t, sequence parallelism the norms as well. Full recomputation
    keeps the layer's input, h. Selective recomputation changes nothing here: fused attention does it already.
    """
    _check_recompute(recompute)
    shape = Shape(config)
    width = shape.expert_size * shape.num_experts_per_tok if shape.num_experts else shape.intermediate_size
    norms = 2 * (3 * shape.hidden_size + 1)
    heads = shape.num_attention_heads
    split = 4 * heads * shape.head_dim + heads + 4 * width
    if recompute == "full":
        norms, split = shape.hidden_size, 0
    t = tensor_parallel
    return batch * sequence * bytes_per_number * (norms / (t if sequence_parallel else 1) + split / t)


def activation_bytes(config: Any, batch: int, sequence: int, **options: Any) -> float:
    """All layers of picolib's Llama and its last norm (3h + 1 numbers a token), without the logits.

    `options` are those of `activation_bytes_per_layer`.
    """
    shape, size = Shape(config), options.get("bytes_per_number", 2)
    split = options.get("tensor_parallel", 1) if options.get("sequence_parallel") else 1
    last_norm = batch * sequence * (3 * shape.hidden_size + 1) * size / split
    return shape.num_hidden_layers * activation_bytes_per_layer(config, batch, sequence, **options) + last_norm


def logits_bytes(vocab_size: int, batch: int, sequence: int, bytes_per_number: float = 2) -> float:
    """The logits: V numbers a token. The loss in float32 holds a second copy of 4 bytes a number for a moment."""
    return vocab_size * batch * sequence * bytes_per_number


def _check_recompute(recompute: str) -> None:
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute must be one of {', '.join(RECOMPUTE)}, got {recompute!r}.")
