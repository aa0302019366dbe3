"""Exercise 1.1: how many parameters a Llama has, from its configuration; and what 1.1 to 1.3 share."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from picolib.course import values
from picolib.course.exercise import Case
from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.data import generator
from picolib.model.config import LlamaConfig
from picolib.plan.memory import PRESETS, parameter_count

LIBRARY = ("picolib.plan", "picolib.model.llama", "transformers")


def by_arithmetic(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: what the function says, and whether the library has said it."""
    with calls_into(*LIBRARY) as called:
        said = fn(*arguments)
    return {"said": of_python(said), "borrowed": called[:1]}


def of_python(value: Any) -> Any:
    """numpy's and torch's numbers as Python's own: who multiplies shapes with np.prod has counted as well."""
    if isinstance(value, (tuple, list)):
        return [of_python(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy" else value


def pick(random: torch.Generator, *choices: int) -> int:
    return choices[int(torch.randint(len(choices), (), generator=random))]


def is_number(value: Any) -> bool:
    """Whether it is a number that can be compared: not True, not infinite, and not NaN, which differs from nothing."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def configuration(random: torch.Generator, kv_heads: int = 0, **fixed: Any) -> LlamaConfig:
    """A Llama of sizes that nobody has seen before; grouped heads, and heads that do not add up to the hidden size.

    `kv_heads`: 0 stands for one to three of them.
    """
    kv_heads = kv_heads or pick(random, 1, 2, 3)
    sizes = {
        "vocab_size": pick(random, 257, 311, 509, 1009),
        "hidden_size": 8 * pick(random, 9, 19, 23),
        "intermediate_size": pick(random, 101, 151, 211, 307),
        "num_hidden_layers": pick(random, 3, 5, 6, 7),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * pick(random, 3, 4, 5),
        "head_dim": pick(random, 22, 26, 34),
    }
    return LlamaConfig(**{**sizes, **fixed})


def shown(config: LlamaConfig) -> str:
    """The sizes that count, as they are written in a configuration."""
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    keys += ("num_key_value_heads", "head_dim", "tie_word_embeddings")
    return ", ".join(f"{key}={getattr(config, key)}" for key in keys)


def count_cases(world_size: int, seed: int) -> list[Case]:
    """A small one, one with a tied output layer, and a published one."""
    random = generator(seed, world_size)
    simple = LlamaConfig(
        vocab_size=311, hidden_size=48, intermediate_size=100, num_hidden_layers=3, num_attention_heads=4
    )
    published = LlamaConfig(**PRESETS["Llama 3 8B"])
    grouped, tied = configuration(random), configuration(random, tie_word_embeddings=True)
    return [Case("count", ((c,),), (parameter_count(c),)) for c in (simple, grouped, tied, published)]


HEAD_DIM = "The heads are head_dim wide: config.head_dim is given, and is not h/num_attention_heads here."
SQUARES = "Attention is counted as 4·h² a layer: heads are head_dim wide, and keys have fewer of them."


def slips(config: LlamaConfig, layers: int) -> list[tuple[str, float]]:
    """What each usual mistake adds to the right number; none that adds 0."""
    h, embedding = config.hidden_size, config.vocab_size * config.hidden_size
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    output = (
        ("The output layer is tied: it is the embedding's own tensor, and counts once.", embedding)
        if config.tie_word_embeddings
        else ("The output layer is missing: another V·h, as it is not tied.", -embedding)
    )
    layer = [
        ("SwiGLU has three matrices: gate, up and down.", -h * config.intermediate_size),
        ("The two norms of each layer are missing.", -2 * h),
        ("A layer has two norms, one before attention and one before SwiGLU.", -h),
        ("A Llama's linear layers have no biases.", 2 * queries + 2 * keys + 2 * config.intermediate_size),
    ]
    found = [
        output,
        *((text, layers * more) for text, more in [*_attention_slips(config), *layer]),
        ("The last norm is missing.", -h),
        ("All norms are missing: two in each layer, and a last one.", -layers * 2 * h - h),
    ]
    return [(text, more) for text, more in found if more]


def _attention_slips(config: LlamaConfig) -> list[tuple[str, float]]:
    """Those of attention, for one layer: what each makes of its four matrices, less what they have."""
    h, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    queries, keys = heads * config.head_dim, kv_heads * config.head_dim
    right = 2 * h * (queries + keys)
    widths = h / heads, h // heads
    made = [
        ("Keys and values have num_key_value_heads heads, fewer than the queries.", 4 * h * queries),
        *((HEAD_DIM, 2 * h * width * (heads + kv_heads)) for width in widths),
        *((SQUARES, 4 * h * width * heads) for width in widths),
        ("q and o are not h·h: queries have num_attention_heads·head_dim features.", right + 2 * h * (h - queries)),
        ("One of q and o is counted as h·h: both have h·(num_attention_heads·head_dim).", right + h * (h - queries)),
        ("The output projection of attention is missing.", right - h * queries),
        ("Keys and values have a projection each.", right - h * keys),
    ]
    return [(text, weights - right) for text, weights in made]


def judge_count(attempt: Any) -> str | None:
    """The very number of parameters."""
    (config,) = attempt.case.inputs[0]
    said, right = attempt.outputs[0]["said"], attempt.case.expected[0]
    if not is_number(said):
        return f"the answer must be a number of parameters, not {values.shown(said)}."
    if said == right:
        return None
    head = f"you say {said:,} parameters; the real model has {right:,}."
    return f"{head} {_why_count(config, said, right)}\n{shown(config)}"


def _why_count(config: LlamaConfig, said: float, right: int) -> str:
    for factor, text in ((2, "in bf16, two for each"), (4, "in float32, four for each")):
        if said == factor * right:
            return f"Those are bytes ({text}); asked is how many parameters."
    for unit, name in ((1e9, "billions"), (1e6, "millions")):
        if abs(said * unit - right) < 1:
            return f"Those are {name}; asked is the number itself."
    if text := _slipped(said - right, config, config.num_hidden_layers):
        return text
    of_one = right - (config.num_hidden_layers - 1) * _one_layer(config)
    if text := said == of_one or _slipped(said - of_one, config, 1):
        return f"Only one layer is counted. {'' if text is True else text}".rstrip()
    return f"The difference is {said - right:+,}. Which tensor has that many numbers, or is counted once a layer?"


def _slipped(off: float, config: LlamaConfig, layers: int) -> str:
    """The one slip, or the two, that make this difference."""
    known = slips(config, layers)
    for many in (1, 2):
        for found in itertools.combinations(known, many):
            if abs(off - sum(more for _, more in found)) < 0.5:
                return " ".join(dict.fromkeys(text for text, _ in found))
    return ""


def _one_layer(config: LlamaConfig) -> int:
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    return config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size + 2)
