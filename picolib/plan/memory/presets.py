"""Configurations of published models: the keys of their `config.json` that count for memory."""

from __future__ import annotations

from typing import Any


def _llama_3(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, Any]:
    """The Llama 3 Herd of Models (2024), table 3; the intermediate size is from the published configuration."""
    return {
        "vocab_size": 128256, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8,
    }  # fmt: skip


PRESETS: dict[str, dict[str, Any]] = {
    "Llama 3 8B": _llama_3(4096, 14336, 32, 32),
    "Llama 3 70B": _llama_3(8192, 28672, 80, 64),
    "Llama 3 405B": _llama_3(16384, 53248, 126, 128),
    # Mixtral of Experts (2024), table 1.
    "Mixtral 8x7B": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    # DeepSeek-V3 Technical Report (2024), section 4.2; without the layer for multi-token prediction.
    "DeepSeek-V3": {
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    },
}  # fmt: skip
