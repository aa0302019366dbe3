"""A Llama-style decoder, written plainly: one file, no options that a reader could do without.

    tokens -> embed_tokens -> [ norm -> attention -> +   norm -> SwiGLU -> + ] x L -> norm -> lm_head -> logits

Module and parameter names are Hugging Face's (`model.layers.0.self_attn.q_proj.weight`), so state dicts interchange.
Papers: Llama (Touvron et al. 2023, section 2.2), RMSNorm (Zhang & Sennrich 2019), RoPE (Su et al. 2021, section 3.2),
grouped-query attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020). Shapes below: b batch, s sequence, h hidden.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from picolib.model.config import LlamaConfig

Rotation = tuple[torch.Tensor, torch.Tensor]


class LlamaRMSNorm(nn.Module):
    """Divides each token's vector by its root mean square, then scales every feature: [..., h] -> [..., h]."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # bfloat16 keeps 8 bits: squares are summed in float32 at least (in float64 when x is float64).
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(mean_square + self.eps)).to(x.dtype)


def rotary_angles(position_ids: torch.Tensor, head_dim: int, theta: float) -> Rotation:
    """cos and sin of every position's angles: positions [s] or [b, s] -> two of [s, head_dim] or [b, 1, s, head_dim].

    Pair i of a head turns by position * theta^(-2i / head_dim): early pairs turn fast, late pairs slowly.
    """
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=position_ids.device).float() / head_dim)
    angles = position_ids.unsqueeze(-1).float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    if position_ids.dim() == 2:
        angles = angles.unsqueeze(1)  # the same angles for every head
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Turns each pair of features by its position's angle: [b, heads, s, head_dim] -> the same shape.

    Hugging Face's layout: a pair is (i, i + head_dim/2), not two neighbours as in the paper. A query and a key then
    meet in a product that depends on the distance between them alone.
    """
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q kᵀ / sqrt(head_dim)) v, where a token sees itself and what came before.

    q is [b, heads, s, head_dim]; k and v may have fewer heads: each serves a run of neighbouring query heads.
    """
    queries_per_key = q.shape[1] // k.shape[1]
    if queries_per_key > 1:
        k, v = (x.repeat_interleave(queries_per_key, dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class LlamaAttention(nn.Module):
    """Grouped-query self-attention with rotary positions: [b, s, h] -> [b, s, h]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.attend = causal_attention  # a strategy that splits the sequence puts its own here

    def forward(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        q, k, v = (self.heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = self.attend(rotate(q, rotation), rotate(k, rotation), v)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, heads * head_dim] -> [b, heads, s, head_dim]; as many heads as the projection has on this rank."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class LlamaMLP(nn.Module):
    """SwiGLU: one projection gates another, feature by feature: [b, s, h] -> [b, s, h]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    """Attention, then SwiGLU, each behind a norm and each adding to the stream: [b, s, h] -> [b, s, h]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    """Embedding, the layers, and the last norm: tokens [b, s] -> hidden states [b, s, h]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[-1], device=input_ids.device)
        rotation = rotary_angles(position_ids, self.config.head_dim, self.config.rope_theta)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The whole language model: tokens [b, s] -> logits [b, s, vocab_size].

    `position_ids` ([s] or [b, s]) are the tokens' places in the full sequence; by default 0, 1, …, s-1. A rank that
    holds a part of the sequence passes its own.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        return self.lm_head(self.model(input_ids, position_ids))
