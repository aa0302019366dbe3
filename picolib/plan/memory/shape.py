"""The sizes of a model, read from a configuration: an object or a dictionary with Hugging Face's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keys that a configuration may leave out. Mixtral calls its experts "local", DeepSeek-V3 "routed".
_DEFAULTS = {"tie_word_embeddings": False, "num_experts": 0, "num_experts_per_tok": 0, "num_shared_experts": 0}
_OTHER_NAMES = {
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_shared_experts": ("n_shared_experts",),
    "num_dense_layers": ("first_k_dense_replace",),
    "expert_size": ("moe_intermediate_size", "intermediate_size"),
}


class Shape:
    """A configuration whose missing keys are filled in: `shape.head_dim`, `shape.num_experts`, …"""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, key: str) -> Any:
        for name in (key, *_OTHER_NAMES.get(key, ())):
            value = self._config.get(name) if isinstance(self._config, Mapping) else getattr(self._config, name, None)
            if value is not None:
                return value
        return self._missing(key)

    def _missing(self, key: str) -> Any:
        if key in _DEFAULTS:
            return _DEFAULTS[key]
        if key == "num_key_value_heads":
            return self.num_attention_heads
        if key == "head_dim":
            return self.hidden_size // self.num_attention_heads
        if key == "num_dense_layers":
            return 0 if self.num_experts else self.num_hidden_layers
        if key == "kv_lora_rank":
            return None
        raise ValueError(f"config has no {key!r}: it must have the keys of Hugging Face's LlamaConfig.")
