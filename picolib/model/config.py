"""The shape of a Llama: the same keys, with the same meaning and defaults, as Hugging Face's `LlamaConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

# What this model always does. A configuration that asks for something else is refused instead of being half obeyed.
FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "rope_scaling": None,
}


@dataclass
class LlamaConfig:
    """Sizes of a Llama-style decoder.

    Two keys may stay None: `num_key_value_heads` (then every query head has a key-value head of its own) and `head_dim`
    (then `hidden_size // num_attention_heads`). Raises ValueError when the sizes do not fit together.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = heads
        if heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} must divide num_attention_heads={heads}, "
                "so that every key-value head serves the same number of query heads."
            )
        if self.head_dim is None:
            if self.hidden_size % heads:
                raise ValueError(
                    f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={heads}; "
                    "choose one that is, or set head_dim."
                )
            self.head_dim = self.hidden_size // heads
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even, because rotary positions turn pairs of numbers.")

    @classmethod
    def from_dict(cls, settings: Mapping[str, object]) -> LlamaConfig:
        """The configuration in a Hugging Face `config.json` (or `LlamaConfig.to_dict()`), read into a dictionary.

        Keys that do not change the logits (token ids, dtype, …) are left out; those that this plain model does not
        implement (biases, scaled rotary positions, another activation) raise ValueError.
        """
        settings = {**settings}
        rope = settings.pop("rope_parameters", None) or {}
        settings.setdefault("rope_theta", rope.get("rope_theta", cls.rope_theta))
        if rope.get("rope_type", "default") != "default":
            settings["rope_scaling"] = rope["rope_type"]
        for key, value in FIXED.items():
            if settings.get(key, value) != value:
                raise ValueError(f"{key}={settings[key]!r} is not supported; this model always has {key}={value!r}.")
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in settings.items() if key in known})

    def to_dict(self) -> dict[str, object]:
        """All keys and values, ready for `json.dump` or for Hugging Face's `LlamaConfig(**config.to_dict())`."""
        return asdict(self)
