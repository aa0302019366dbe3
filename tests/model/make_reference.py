"""Writes llama_logits.json: a few logits of transformers' own Llama, so that parity is tested without transformers.

    python tests/model/make_reference.py        (needs transformers)

The weights follow a formula rather than a random generator, so that any version of any library can repeat them.
"""

import json
import math
from pathlib import Path

import torch

REFERENCE = Path(__file__).with_name("llama_logits.json")
SIZES = dict(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
)
CASES = {
    "grouped": SIZES,
    "tied": {**SIZES, "tie_word_embeddings": True},
    "one head": {**SIZES, "num_attention_heads": 1, "num_key_value_heads": 1},
    "wide heads": {**SIZES, "head_dim": 10, "num_key_value_heads": 4, "rms_norm_eps": 1e-6},
}


def formula_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Element i is ((i^2 + i * sum of the name's bytes) mod 1009) / 1009 - 1/2, and 1 more for norm scales."""
    values = {}
    for name, tensor in state.items():
        i = torch.arange(tensor.numel())
        mixed = (i * i + i * sum(name.encode())) % 1009 / 1009 - 0.5
        values[name] = (mixed + (tensor.dim() == 1)).reshape(tensor.shape).to(tensor.dtype)
    if "lm_head.weight" in values and state["lm_head.weight"] is state["model.embed_tokens.weight"]:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    return values


def formula_tokens(vocab_size: int) -> torch.Tensor:
    """Two rows of 13 tokens."""
    return (torch.arange(26) * 17 % vocab_size).reshape(2, 13)


def main() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    stored = {}
    for case, sizes in CASES.items():
        sizes = {**sizes, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
        model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="eager")).eval()
        state = model.state_dict(keep_vars=True)
        model.load_state_dict(formula_weights(state))
        with torch.no_grad():
            logits = model(formula_tokens(sizes["vocab_size"])).logits[:, [0, 1, 6, 12], ::12]
        stored[case] = [[round(value, 5) for value in row] for row in logits.flatten(0, 1).tolist()]
    assert all(math.isfinite(value) for rows in stored.values() for row in rows for value in row)
    lines = ",\n".join(
        f'  "{case}": [\n' + ",\n".join(f"    {row}" for row in rows) + "\n  ]" for case, rows in stored.items()
    )
    REFERENCE.write_text(f"{{\n{lines}\n}}\n")
    assert json.loads(REFERENCE.read_text()) == stored


if __name__ == "__main__":
    main()
