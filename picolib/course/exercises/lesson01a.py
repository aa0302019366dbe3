"""Exercises of sitting 01A: parameters from a configuration, model state by ZeRO stage, the key-value cache.

All three are formulas, so an answer is a number, and a wrong one is compared with what the usual mistakes give.
How 1.1 is judged stands in `lesson01a_count`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import values
from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson01a_count import (
    LIBRARY,
    by_arithmetic,
    configuration,
    count_cases,
    is_number,
    judge_count,
    of_python,
    pick,
    shown,
)
from picolib.course.words import number_of, times
from picolib.model.config import LlamaConfig
from picolib.plan.memory import PRESETS, kv_cache_bytes, model_state_parts

LESSON = "01A_budgets"


# 1.2 ----------------------------------------------------------------------------------------------------------

PARTS = ("parameters", "gradients", "optimizer")
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the stage that begins to share this part out
STAGES = {0: "DDP (stage 0)", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}


def state_cases(world_size: int, seed: int) -> list[Case]:
    """Some model on 8 ranks; on one; on another number; 70 billion parameters on 64."""
    random = generator(seed, world_size)
    some = 840 * int(torch.randint(1_000, 9_000_000, (), generator=random))
    sizes = [(some, 8), (some, 1), (some, pick(random, 3, 5, 7, 12)), (70_000_000_000, 64)]
    return [Case("state", (size,), None) for size in sizes]


def all_stages(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: what the function says for each stage."""
    with calls_into(*LIBRARY) as called:
        said = [of_python(fn(*arguments, stage)) for stage in STAGES]
    return {"said": said, "borrowed": called[:1]}


def judge_state(attempt: Any) -> str | None:
    """Three numbers of bytes for each stage."""
    parameters, ranks = attempt.case.inputs[0]
    for stage, said in zip(STAGES, attempt.outputs[0]["said"], strict=True):
        if not isinstance(said, list) or len(said) != 3 or not all(map(is_number, said)):
            return f"model_state(…, stage={stage}) must return three numbers, {', '.join(PARTS)}; not {_listed(said)}."
        right = list(model_state_parts(parameters, ranks, stage).values())
        wrong = [i for i in range(3) if abs(said[i] - right[i]) > 1e-9 * right[i]]
        if wrong:
            part = PARTS[wrong[0]]
            where = number_of(ranks, "rank")
            told = f"{STAGES[stage]}, {parameters:,} parameters on {where}: {part} {said[wrong[0]]:,.0f} bytes, "
            told += f"where {right[wrong[0]]:,.0f} are right. "
            return told + _why_state(said, right, part, stage, parameters, ranks)
    return None


def _listed(said: Any) -> str:
    return f"{len(said)} numbers" if isinstance(said, list) else values.shown(said)


def _why_state(said: Sequence[float], right: Sequence[float], part: str, stage: int, psi: int, ranks: int) -> str:
    index = PARTS.index(part)
    factor = said[index] / right[index]
    close = lambda other: abs(factor - other) < 1e-9 * other  # noqa: E731
    if not said[index]:
        return f"The {part} take memory on every rank, in every stage."
    if close(1e-9):
        return "Asked are bytes, not GB."
    if ranks > 1 and close(ranks):
        return f"{STAGES[stage]} shares the {part} out: each of the {ranks} ranks keeps 1/N of them."
    if ranks > 1 and close(1 / ranks):
        whole = f"{STAGES[stage]} keeps the {part} whole on every rank"
        return f"{whole}; they are shared out from stage {SHARDED_FROM[part]} on."
    over = ranks / factor
    if stage >= SHARDED_FROM[part] and over > 1 and abs(over - round(over)) < 1e-9:
        return f"They are shared out over {over:.0f}; the number of ranks is the argument, {ranks}."
    if sorted(said) == sorted(right):
        return f"The order is {', '.join(PARTS)}."
    if part == "optimizer" and close(8 / 12):
        return "Adam keeps two moments of 4 bytes, and with bf16 parameters a float32 copy of each as well: 4 + 4 + 4."
    if part == "optimizer" and close(4 / 12):
        return "Adam keeps three float32 numbers for each parameter: two moments, and the master copy."
    if part == "gradients" and close(2):
        return "Gradients have the dtype of the parameters here, bf16: 2 bytes."
    if part == "parameters" and close(2):
        return "The parameters that compute are in bf16: 2 bytes. (The float32 copy belongs to the optimizer's part.)"
    if part == "parameters" and close(3):
        return "The float32 copy belongs to the optimizer's part: it is shared out with it."
    if close(1 / 2) or close(1 / 12):
        return "Asked are bytes, not numbers: 2, 2 and 12 for each parameter."
    return f"It is {times(factor)} as much." if factor > 0 else ""


# 1.3 ----------------------------------------------------------------------------------------------------------

HEAD_DIM = "head_dim is given: it is not h/heads."


def cache_cases(world_size: int, seed: int) -> list[Case]:
    """Grouped heads, in one byte a number and in four; Llama 3 70B with a long text."""
    random = generator(seed, world_size)
    texts, tokens = pick(random, 19, 23), pick(random, 130, 210, 370)
    published = LlamaConfig(**PRESETS["Llama 3 70B"])
    wide = {"kv_heads": 8, "hidden_size": 8 * pick(random, 29, 31, 37)}  # so that no two slips give the same factor
    some, others = (configuration(random, **wide) for _ in range(2))
    made = [(some, texts, tokens, 1), (others, texts + 4, tokens + 1, 4)]
    made.append((published, 1, 32_768, 2))
    return [Case("cache", (arguments,), (kv_cache_bytes(*arguments),)) for arguments in made]


def judge_cache(attempt: Any) -> str | None:
    """The very number of bytes."""
    config, texts, tokens, size = attempt.case.inputs[0]
    said, right = attempt.outputs[0]["said"], attempt.case.expected[0]
    if not is_number(said):
        return f"the answer must be a number of bytes, not {values.shown(said)}."
    if abs(said - right) <= 1e-9 * right:
        return None
    what = f"{texts} texts of {tokens:,} tokens, {size} bytes a number"
    factor = said / right
    return (
        f"{what}: you say {said:,.0f} bytes; the tensors have {right:,.0f}. "
        f"{_why_cache(config, texts, tokens, size, factor)}\n{shown(config)}"
    )


def _why_cache(config: LlamaConfig, texts: int, tokens: int, size: int, factor: float) -> str:
    groups = config.num_attention_heads / config.num_key_value_heads
    width = config.num_key_value_heads * config.head_dim
    guesses = [
        (groups, f"It is {times(groups)} too big: only the num_key_value_heads heads of keys and values are kept."),
        (0.5, "Half of it: a key and a value are kept for each token."),
        (1 / config.num_hidden_layers, "That is one layer; each of them has a cache of its own."),
        (1 / size, "Those are numbers; asked are bytes."),
        (1e-9, "Those are GB; asked are bytes."),
        (1 / config.num_key_value_heads, "That is one head; each of the num_key_value_heads keeps a key and a value."),
        (1 + groups / 2, "Queries are not kept: a token's query is used once, when that token is there."),
        (8, "Those are bits; asked are bytes."),
        (config.hidden_size / width, "Keys and values are num_key_value_heads·head_dim wide, not h."),
        (1 / texts, "That is one text; each of them has a cache of its own."),
        (1 / tokens, "That is one token; every token so far is kept."),
        (1 / config.head_dim, "A head's key is a vector of head_dim numbers."),
        (2 / size, "The numbers have bytes_per_number bytes, not always 2."),
        (tokens, "The cache grows with the tokens, not with their square: what is kept is keys and values, no scores."),
        (tokens / 2, "The cache grows with the tokens, not with their square: what is kept is keys and values."),
        (config.hidden_size / config.num_attention_heads / config.head_dim, HEAD_DIM),
        (config.hidden_size // config.num_attention_heads / config.head_dim, HEAD_DIM),
    ]
    for wrong, text in guesses:
        if wrong != 1 and abs(factor - wrong) < 1e-9 * wrong:
            return text
    for (one, text), (other, more) in itertools.combinations(guesses, 2):
        if abs(factor - one * other) < 1e-9 * one * other:
            return f"{text} And: {more}"
    return f"It is {times(factor)} as much. A key and a value, in every layer, for every token of every text."


EXERCISES = (
    Exercise(
        id="1.1",
        function="count_parameters",
        title="count the parameters",
        lesson=LESSON,
        sitting="01A",
        difficulty=2,
        minutes=10,
        task="The number of parameters of a Llama from its configuration, without building it.",
        cases=count_cases,
        call=by_arithmetic,
        judge=judge_count,
        rules=(borrowed,),
        sizes=(1,),
        verified="4 models to the last parameter: grouped heads, a tied output layer, Llama 3 8B",
        hints=(
            "Print (name, list(p.shape)) for name, p in model.named_parameters() of a small model.",
            "A layer: q and o have h·(heads·head_dim) each, k and v h·(kv heads·head_dim), gate, up and down h·m, "
            "two norms h.",
            "L times that, plus the embedding V·h, the last norm h, and the output layer V·h unless it is tied.",
        ),
    ),
    Exercise(
        id="1.2",
        function="model_state",
        title="what each rank keeps",
        lesson=LESSON,
        sitting="01A",
        difficulty=2,
        minutes=8,
        task="Bytes of parameters, gradients and optimizer state on one rank: DDP, ZeRO-1, ZeRO-2 and ZeRO-3.",
        cases=state_cases,
        call=all_stages,
        judge=judge_state,
        rules=(borrowed,),
        sizes=(1,),
        verified="three parts at four stages for 4 sizes, 70 billion parameters on 64 ranks among them",
        hints=(
            "First stage 0: 2 + 2 + 12 bytes for each parameter. What does each stage change?",
            "Stage 1 shares out the optimizer's 12 bytes, stage 2 the gradients too, stage 3 everything.",
            "optimizer = 12 * parameters / (ranks if stage >= 1 else 1); the other two alike, from stages 2 and 3 on.",
        ),
    ),
    Exercise(
        id="1.3",
        function="cache_bytes",
        title="the key-value cache",
        lesson=LESSON,
        sitting="01A",
        difficulty=1,
        minutes=5,
        task="Bytes of the keys and values that are kept while text is generated, with grouped heads.",
        cases=cache_cases,
        call=by_arithmetic,
        judge=judge_cache,
        rules=(borrowed,),
        sizes=(1,),
        verified="three models to the byte, 70 billion parameters with a text of 32,768 tokens among them",
        hints=(
            "What does attention need again of the tokens before, and what of them does it never need again?",
            "One key and one value for each token, in each layer, for each key-value head: head_dim numbers each.",
            "2 · layers · num_key_value_heads · head_dim · texts · tokens · bytes_per_number.",
        ),
    ),
)
