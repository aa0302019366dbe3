"""Random numbers in a tensor-parallel group: masks that must differ, masks that must agree, first weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import picolib
from picolib.comm import functional
from picolib.model import init_weights
from picolib.parallel.full_state import full_state_dict, own_part
from picolib.parallel.spec import named_specs
from picolib.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    ShardedDropout,
    VocabParallelEmbedding,
    parallelize,
    sharded_region,
)
from tests.parallel.llamas import llama

ONES = torch.ones(64)


def masks(seed: int = 3):
    torch.manual_seed(seed)
    dropout, cut = nn.Dropout(0.5), ShardedDropout(0.5)
    return [dropout(ONES), cut(ONES), dropout(ONES), cut(ONES), dropout(ONES)]


def test_masks_agree_where_activations_are_replicated_and_differ_where_they_are_cut():
    for place, found in enumerate(zip(*picolib.run(masks, 4), strict=True)):
        pairs = [torch.equal(a, b) for i, a in enumerate(found) for b in found[:i]]
        assert all(pairs) if place % 2 == 0 else not any(pairs)


def test_a_rank_never_draws_the_same_mask_twice():
    for found in picolib.run(masks, 2):
        assert len({tuple(mask.tolist()) for mask in found}) == 5


def test_the_same_seed_gives_the_same_masks_and_another_one_others():
    first, again, other = (picolib.run(masks, 2, seed)[1] for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def drawn_unevenly():
    torch.manual_seed(0)
    with sharded_region():
        torch.rand(1 + dist.get_rank())
    try:
        with sharded_region():
            raise KeyError
    except KeyError:
        pass
    return torch.rand(4)


def test_what_is_drawn_in_a_sharded_region_leaves_the_common_stream_alone():
    one, two, three = picolib.run(drawn_unevenly, 3)
    assert torch.equal(one, two) and torch.equal(one, three)


def in_a_group():
    torch.manual_seed(0)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return ShardedDropout(0.5, group=groups[dist.get_rank() // 2])(ONES)


def test_the_rank_in_the_group_counts():
    one, two, three, four = picolib.run(in_a_group, 4)
    assert torch.equal(one, three) and torch.equal(two, four) and not torch.equal(one, two)


def evaluated():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    y = ShardedDropout(0.5).eval()(ONES)
    return torch.equal(y, ONES) and torch.equal(before, torch.get_rng_state())


def test_in_evaluation_nothing_is_dropped_or_drawn():
    assert list(picolib.run(evaluated, 2)) == [True] * 2


def recomputed(use_reentrant: bool):
    torch.manual_seed(dist.get_rank() // 2)  # two groups of data parallelism would have seeds of their own
    cut, dropout = ShardedDropout(0.5), nn.Dropout(0.5)
    x = torch.ones(64, requires_grad=True)
    block = lambda x: dropout(cut(x.square())).square()
    y = checkpoint(block, x, use_reentrant=use_reentrant)
    torch.rand(5)  # what is drawn between forward and backward does not matter
    y.sum().backward()
    return torch.equal(y != 0, x.grad != 0)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_recomputed_block_drops_the_same_numbers(use_reentrant):
    assert list(picolib.run(recomputed, 2, use_reentrant)) == [True] * 2


def mlp_with_dropout(sequence_parallel: bool):
    """Against one process that drops what the ranks have dropped, put together."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8).double(), nn.Linear(8, 6).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    one = ColumnParallelLinear.from_linear(first, sequence_parallel=sequence_parallel)
    two = RowParallelLinear.from_linear(second, sequence_parallel=sequence_parallel)
    inner, outer = ShardedDropout(0.5), ShardedDropout(0.5) if sequence_parallel else nn.Dropout(0.5)
    mine = x.chunk(2, 1)[dist.get_rank()] if sequence_parallel else x

    state = torch.get_rng_state()
    hidden, out = inner(torch.ones(2, 4, 4)), outer(torch.ones_like(mine).float())
    torch.set_rng_state(state)
    hidden = functional.all_gather(hidden, 2)
    out = functional.all_gather(out, 1) if sequence_parallel else out

    y = outer(two(inner(F.gelu(one(mine)))))
    y.square().sum().backward()
    right = second(F.gelu(first(x)) * hidden) * out
    right.square().sum().backward()
    assert torch.allclose(y, right.chunk(2, 1)[dist.get_rank()] if sequence_parallel else right, rtol=1e-12)
    for part, plain in ((one, first), (two, second)):
        gradients = {name: p.grad for name, p in plain.named_parameters()}
        for name, p, spec in named_specs(part):
            assert torch.allclose(p.grad, own_part(gradients[name], spec), rtol=1e-10), name


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_an_mlp_with_dropout_equals_one_process_with_the_same_masks(sequence_parallel):
    picolib.run(mlp_with_dropout, 2, sequence_parallel)


def layers_of_ones_own():
    torch.manual_seed(0)
    parts = [ColumnParallelLinear(6, 7), RowParallelLinear(7, 5), VocabParallelEmbedding(7, 3, padding_idx=4)]
    return [full_state_dict(part) for part in parts], torch.rand(3)


@pytest.mark.parametrize("world_size", [1, 2, 4, 5])
def test_layers_draw_what_whole_layers_draw_and_leave_the_common_stream_alike(world_size):
    torch.manual_seed(0)
    right = [nn.Linear(6, 7), nn.Linear(7, 5), nn.Embedding(7, 3, padding_idx=4)]
    after = torch.rand(3)
    for states, drawn in picolib.run(layers_of_ones_own, world_size):
        assert torch.equal(drawn, after)
        for state, layer in zip(states, right, strict=True):
            assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())


def built_from_whole_layers():
    linear, table = nn.Linear(6, 7), nn.Embedding(7, 3)
    before = torch.get_rng_state()
    ColumnParallelLinear.from_linear(linear), RowParallelLinear.from_linear(linear)
    VocabParallelEmbedding.from_embedding(table)
    return torch.equal(before, torch.get_rng_state())


def test_cutting_whole_layers_draws_nothing():
    assert list(picolib.run(built_from_whole_layers, 3)) == [True] * 3


def first_weights(from_meta: bool, sizes: dict):
    with torch.device("meta" if from_meta else "cpu"):
        model = llama(**sizes, meta=from_meta)
    model = parallelize(model)
    return full_state_dict(init_weights(model, seed=5))


@pytest.mark.parametrize("from_meta", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_first_weights_do_not_depend_on_the_size_of_the_group(world_size, tied, from_meta):
    sizes = {"tie_word_embeddings": tied, "num_key_value_heads": 1}
    right = init_weights(llama(**sizes), seed=5).state_dict()
    for state in picolib.run(first_weights, world_size, from_meta, sizes):
        assert state.keys() == right.keys()
        assert all(torch.equal(state[name], value) for name, value in right.items())
