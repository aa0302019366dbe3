"""The plain Llama in its tensor-parallel form, by replacing its layers: nothing else in the model knows of it.

    attention    f | q, k, v by columns (whole heads) | attend | o by rows | g
    MLP          f | gate, up by columns              | SwiGLU | down by rows | g

Two all-reduces forward (the g's) and two backward (the f's) in each layer, however many matrices share an input.

With sequence parallelism the stretches between g and f, where the norms are, hold this rank's tokens only: g becomes
a reduce-scatter, f an all-gather. Together they send what the all-reduce sent (Korthikanti et al. 2022, section 4.2).
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from picolib.comm import functional
from picolib.parallel.tensor.embedding import VocabParallelEmbedding, VocabParallelLinear
from picolib.parallel.tensor.linear import SEQUENCE, ColumnParallelLinear, RowParallelLinear, sum_gradient_over


def parallelize(model: nn.Module, group: Any = None, *, sequence_parallel: bool = False) -> nn.Module:
    """Keep this rank's part of every matrix of a `LlamaForCausalLM`, in place; return the model.

    Afterwards the model gives this rank's part of the logits, for `vocab_parallel_cross_entropy`, and every rank of the
    group must be given the same tokens. With `sequence_parallel` their number must divide by the group's size.

    Raises:
        ValueError: the model is no plain Llama, or the heads do not divide. Nothing has been changed then.
    """
    lacks = next((part for part in ("config", "model", "lm_head") if not hasattr(model, part)), None)
    if lacks is not None:
        raise ValueError(f"model must be a plain LlamaForCausalLM, but {type(model).__name__} has no {lacks}.")
    if isinstance(model.lm_head, VocabParallelLinear):
        raise ValueError("model must be whole, but it has been cut already.")
    size = dist.get_world_size(group)
    config = model.config
    for key in ("num_attention_heads", "num_key_value_heads"):
        if getattr(config, key) % size:
            raise ValueError(f"{key}={getattr(config, key)} must be divisible by the group's size, {size}.")
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    for layer in model.model.layers:
        _cut_block(layer.self_attn, ("q_proj", "k_proj", "v_proj"), "o_proj", group, sequence_parallel)
        _cut_block(layer.mlp, ("gate_proj", "up_proj"), "down_proj", group, sequence_parallel)
        if sequence_parallel:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                sum_gradient_over(norm, "weight", group)
    if sequence_parallel:
        sum_gradient_over(model.model.norm, "weight", group)
    options = {"group": group, "sequence_parallel": sequence_parallel}
    model.model.embed_tokens = VocabParallelEmbedding.from_embedding(model.model.embed_tokens, **options)
    model.lm_head = VocabParallelLinear.from_linear(model.lm_head, **options)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def _cut_block(block: nn.Module, columns: tuple[str, ...], row: str, group: Any, sequence_parallel: bool) -> None:
    """f once, before the layers that share the block's input; g inside the last layer."""
    for name in columns:
        cut = ColumnParallelLinear.from_linear(getattr(block, name), group=group, copy_input=False)
        setattr(block, name, cut)
    last = RowParallelLinear.from_linear(getattr(block, row), group=group, sequence_parallel=sequence_parallel)
    setattr(block, row, last)

    def enter(module: nn.Module, args: tuple) -> tuple:
        x, *rest = args
        if sequence_parallel:
            return functional.all_gather(x, SEQUENCE, group=group), *rest
        return functional.copy_to_group(x, group=group), *rest

    block.register_forward_pre_hook(enter)
