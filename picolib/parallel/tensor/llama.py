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
from picolib.parallel.replicated import groups_of_heads
from picolib.parallel.sequence import gather_tokens, sum_gradient_over
from picolib.parallel.tensor.embedding import VocabParallelEmbedding, VocabParallelLinear
from picolib.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
from picolib.parallel.tensor.overlap import columns


def parallelize(
    model: nn.Module,
    group: Any = None,
    *,
    sequence_parallel: bool = False,
    overlap: bool = False,
    regather: bool = False,
    algorithm: str = "auto",
) -> nn.Module:
    """Keep this rank's part of every matrix of a `LlamaForCausalLM`, in place; return the model.

    Afterwards the model gives this rank's part of the logits, for `vocab_parallel_cross_entropy`, and every rank of the
    group must be given the same tokens. `picolib.full_state_dict(model)` is the plain model's state again.

    A model on the meta device stays there, cut; `init_weights` or `load_full_state_dict` then give each rank its part,
    one full parameter at a time, so that no rank ever holds the whole model.

    Args:
        model: a plain Llama.
        group: None means all ranks. Where it has more ranks than the model has key-value heads, ranks share a head,
            whose gradient they add up.
        sequence_parallel: between the matrices each rank keeps its tokens only. Their number must divide by the
            group's size.
        overlap: communicate beside the matrix products ("async tensor parallelism"), with the same values.
        regather: with `sequence_parallel`, gather a block's input again in backward instead of keeping it: its
            activations are then 1/t everywhere, for one all-gather more a block.
        algorithm: of the collectives, one of `picolib.comm.algorithms` that both the collective and its backward have.

    Raises:
        ValueError: the model is no plain Llama, or the heads do not divide. Nothing has been changed then.
    """
    _check(model)
    size, config = dist.get_world_size(group), model.config
    if config.num_attention_heads % size:
        raise ValueError(
            f"num_attention_heads={config.num_attention_heads} must be divisible by the group's size, {size}."
        )
    cut_over, copies = groups_of_heads(config.num_key_value_heads, group)
    options = {"sequence_parallel": sequence_parallel, "overlap": overlap, "algorithm": algorithm}
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    for layer in model.model.layers:
        heads = {"q_proj": group, "k_proj": cut_over, "v_proj": cut_over}
        _cut_block(layer.self_attn, heads, "o_proj", group, regather, options)
        _cut_block(layer.mlp, {"gate_proj": group, "up_proj": group}, "down_proj", group, regather, options)
        if copies is not None:
            for shared in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                sum_gradient_over(shared, "weight", copies)
    if sequence_parallel:
        _sum_norm_gradients(model, group)
    table = {"sequence_parallel": sequence_parallel, "algorithm": algorithm}
    model.model.embed_tokens = VocabParallelEmbedding.from_embedding(model.model.embed_tokens, group=group, **table)
    model.lm_head = VocabParallelLinear.from_linear(model.lm_head, group=group, regather=regather, **options)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def _check(model: nn.Module) -> None:
    lacks = next((part for part in ("config", "model", "lm_head") if not hasattr(model, part)), None)
    if lacks is not None:
        raise ValueError(f"model must be a plain LlamaForCausalLM, but {type(model).__name__} has no {lacks}.")
    if isinstance(model.lm_head, VocabParallelLinear):
        raise ValueError("model must be whole, but it has been cut already.")


def _sum_norm_gradients(model: nn.Module, group: Any) -> None:
    """Norms are whole on every rank, and see this rank's tokens only: each has a summand of their gradients."""
    norms = [norm for layer in model.model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    for norm in [*norms, model.model.norm]:
        sum_gradient_over(norm, "weight", group)


def _cut_block(
    block: nn.Module, cut_over: dict[str, Any], row: str, group: Any, regather: bool, options: dict[str, Any]
) -> None:
    """f once, before the layers that share the block's input; g inside the last layer."""
    sequence_parallel, how = options["sequence_parallel"], {"group": group, "algorithm": options["algorithm"]}
    for name, own_group in cut_over.items():
        cut = ColumnParallelLinear.from_linear(getattr(block, name), group=own_group, copy_input=False)
        setattr(block, name, cut)
    setattr(block, row, RowParallelLinear.from_linear(getattr(block, row), group=group, **options))

    def enter(module: nn.Module, args: tuple) -> tuple:
        x, *rest = args
        return (gather_tokens if sequence_parallel else functional.copy_to_group)(x, **how), *rest

    def compute_at_once(module: nn.Module, args: tuple) -> None:
        """One communication for all of them: the block calls its layers in turn, and each hands out its `computed`."""
        layers = [getattr(module, name) for name in cut_over]
        outputs = columns(args[0], layers, sequence_parallel=sequence_parallel, regather=regather, **how)
        for layer, output in zip(layers, outputs, strict=True):
            layer.computed = output

    at_once = options["overlap"] or (regather and sequence_parallel)
    block.register_forward_pre_hook(compute_at_once if at_once else enter)
