"""Tensor-parallel models that are copied, or given what they can't take."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import picolib
from picolib.model import LlamaConfig, LlamaForCausalLM, init_weights
from picolib.parallel.full_state import full_state_dict, load_full_state_dict
from picolib.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    parallelize,
    vocab_parallel_cross_entropy,
)


def llama(seed: int = 1) -> nn.Module:
    config = LlamaConfig(
        vocab_size=14, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=8,
    )  # fmt: skip
    return init_weights(LlamaForCausalLM(config).double(), seed=seed, std=0.3)


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(14, (4, 9), generator=torch.Generator().manual_seed(3))
    return rows[:, :-1], rows[:, 1:].contiguous()


def alone() -> dict[str, torch.Tensor]:
    """Two steps with clipped gradients: the parameters, and the norms."""
    return two_steps(llama(), lambda model, x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum"))


def two_steps(model, loss_of, batch=tokens, state=nn.Module.state_dict) -> dict[str, torch.Tensor]:
    parameters, norms = list(model.parameters()), []
    for _ in range(2):
        model.zero_grad()
        loss_of(model, *batch()).backward()
        norms.append(picolib.clip_grad_norm_(model, 5.0))
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
    return {**state(model), "norms": torch.stack(norms)}


def split_loss(model, x, y, group=None):
    return vocab_parallel_cross_entropy(model(x), y, group=group, reduction="sum")


def copied(in_group: bool, overlap: bool):
    group = dist.new_group([0, 1]) if in_group else None
    model = copy.deepcopy(parallelize(llama(), group, sequence_parallel=True, overlap=overlap))
    return two_steps(model, partial(split_loss, group=group), state=full_state_dict)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("in_group", [False, True])
def test_a_deep_copy_works_in_the_same_group(in_group, overlap):
    right = alone()
    for found in picolib.run(copied, 2, in_group, overlap):
        for name, value in right.items():
            assert torch.allclose(found[name], value, rtol=1e-9, atol=1e-11), name


def test_a_frozen_bias_stays_frozen():
    def fn():
        linear = nn.Linear(4, 4)
        linear.bias.requires_grad_(False)
        return [kind.from_linear(linear).bias.requires_grad for kind in (ColumnParallelLinear, RowParallelLinear)]

    assert list(picolib.run(fn, 2)) == [[False, False]] * 2


def test_the_row_for_padding_gets_no_gradient():
    def fn(padding: int):
        table = nn.Embedding.from_pretrained(torch.ones(5, 2), freeze=False, padding_idx=padding)
        part = VocabParallelEmbedding.from_embedding(table)
        part(torch.arange(5)).sum().backward()
        return part.weight.grad

    for padding in (1, 3):
        found = torch.cat(list(picolib.run(fn, 2, padding)))
        assert torch.equal(found[:, 0], torch.tensor([float(row != padding) for row in range(5)]))


def embed(token: int):
    VocabParallelEmbedding(6, 3)(torch.tensor([0, token]))


def judge(target: int):
    vocab_parallel_cross_entropy(torch.zeros(2, 3), torch.tensor([0, target]))


def cut_with(**option):
    VocabParallelEmbedding.from_embedding(nn.Embedding(6, 3, **option))


def cut_twice():
    parallelize(parallelize(llama()))


def cut_a_cut_layer():
    RowParallelLinear.from_linear(ColumnParallelLinear(4, 4))


def cut_something_else():
    parallelize(nn.Linear(4, 4))


def odd_sequence():
    parallelize(llama(), sequence_parallel=True)(tokens()[0][:, :7])


def odd_rows():
    RowParallelLinear(4, 4, sequence_parallel=True, overlap=True)(torch.ones(1, 3, 2))


def unknown_algorithm():
    parallelize(llama(), algorithm="rign")(tokens()[0])


def overlap_differentiated_twice():
    x = torch.ones(2, 4, requires_grad=True)
    y = ColumnParallelLinear(4, 4, overlap=True)(x).square().sum()
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    slope.sum().backward()


def whole_where_a_part_should_be():
    RowParallelLinear(4, 4)(torch.ones(2, 4))


def twice_differentiated():
    logits = torch.zeros(2, 3, requires_grad=True)
    loss = vocab_parallel_cross_entropy(logits.exp(), torch.tensor([0, 1]))
    (slope,) = torch.autograd.grad(loss, logits, create_graph=True)
    slope.square().sum().backward()


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (partial(embed, 6), "tokens must be numbers from 0 to 5, got 6"),
        (partial(embed, -1), "tokens must be numbers from 0 to 5, got -1"),
        (partial(judge, 6), "target must be numbers from 0 to 5, got 6"),
        (partial(judge, -1), "target must be numbers from 0 to 5, got -1"),
        (partial(cut_with, max_norm=1.0), "embedding must not have max_norm=1.0"),
        (partial(cut_with, sparse=True), "embedding must not have sparse=True"),
        (cut_twice, "model must be whole, but it has been cut already"),
        (cut_a_cut_layer, "this ColumnParallelLinear has been cut already"),
        (cut_something_else, "model must be a plain LlamaForCausalLM, but Linear has no config"),
        (odd_sequence, "tokens must have a length that 2 ranks can share equally with sequence_parallel, got 7"),
        (whole_where_a_part_should_be, "must have 2 features where input_is_parallel=True, got 4"),
        (odd_rows, "The input must have tokens that 2 ranks can share equally, got 3"),
        (unknown_algorithm, "algorithm must be one of auto, naive, ring"),
        (overlap_differentiated_twice, "once_differentiable"),
        (twice_differentiated, "can't be differentiated twice"),
    ],
)
def test_what_would_go_wrong_in_silence_is_one_sentence(fn, words):
    with pytest.raises(picolib.RankError) as error:
        picolib.run(fn, 2)
    assert words in str(error.value)


def test_a_buffer_of_another_shape_is_refused_before_anything_changes():
    model = nn.BatchNorm1d(6)
    state = {name: value + 1 for name, value in model.state_dict().items()} | {"running_mean": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"state\['running_mean'\] must have shape \[6\], got \[1\]"):
        load_full_state_dict(model, state)
    assert torch.equal(model.weight, torch.ones(6))
