"""Tensor parallelism against the one-process model: outputs, gradients, steps; the layers by themselves."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import picolib
from picolib.comm.gradcheck import spmd_gradcheck
from picolib.parallel import sequence
from picolib.parallel.full_state import own_part
from picolib.parallel.spec import Partial, Shard, named_specs
from picolib.parallel.tensor import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, parallelize
from tests.parallel.llamas import STEPS, alone, llama, on_a_rank


def assert_equal_to_one_process(world_size: int, sizes: dict, **options) -> None:
    """Losses, outputs, every gradient and parameter, over five steps."""
    losses, right = alone(sizes)
    for found, state in picolib.run(partial(on_a_rank, sizes, **options), world_size):
        assert found == pytest.approx(losses, rel=1e-11)
        assert state.keys() == right.state_dict().keys()
        for name, value in right.state_dict().items():
            assert torch.allclose(state[name], value, rtol=1e-9, atol=1e-12), name


plain_or_sequence = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["plain", "sequence"])


@plain_or_sequence
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_losses_gradients_and_parameters_equal_the_one_process_model(world_size, sequence_parallel):
    assert_equal_to_one_process(world_size, {}, sequence_parallel=sequence_parallel)


@plain_or_sequence
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_tied_embeddings(world_size, sequence_parallel):
    assert_equal_to_one_process(world_size, {"tie_word_embeddings": True}, sequence_parallel=sequence_parallel)


# Grouped-query attention: 12 query heads, and fewer key-value heads


@plain_or_sequence
@pytest.mark.parametrize(
    ("world_size", "heads"),
    [(2, 4), (3, 6), (4, 2), (4, 1), (3, 1)],
    ids=["2 ranks, 4 heads", "3 ranks, 6 heads", "4 ranks, 2 heads", "4 ranks, 1 head", "3 ranks, 1 head"],
)
def test_grouped_query_attention_also_with_fewer_heads_than_ranks(world_size, heads, sequence_parallel):
    assert_equal_to_one_process(world_size, {"num_key_value_heads": heads}, sequence_parallel=sequence_parallel)


def who_shares_heads():
    group = dist.new_group([0, 2, 3, 4])  # of 5 ranks
    if dist.get_rank() == 1:
        return None
    model = parallelize(llama(num_key_value_heads=2), group)
    (spec,) = (spec for name, _, spec in named_specs(model) if name == "model.layers.0.self_attn.k_proj.weight")
    return [(dist.get_process_group_ranks(over), how) for over, how in spec.placements]


def test_the_record_of_a_shared_head_says_where_it_is_cut_and_where_its_gradient_is_summed():
    first, second = ([0, 3], Shard(0)), ([2, 4], Shard(0))
    assert list(picolib.run(who_shares_heads, 5)) == [
        [first, ([0, 2], Partial())], None, [second, ([0, 2], Partial())],
        [first, ([3, 4], Partial())], [second, ([3, 4], Partial())],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 must be divisible by the group's size, 3, or divide it"),
        ({"num_attention_heads": 4}, "num_attention_heads=4 must be divisible by the group's size, 3"),
    ],
)
def test_heads_that_do_not_divide_are_one_sentence_and_nothing_is_changed(sizes, words):
    def fn():
        model = llama(**{"num_key_value_heads": 4, **sizes})
        with pytest.raises(ValueError) as error:
            parallelize(model)
        assert type(model.model.layers[0].self_attn.q_proj) is nn.Linear
        return str(error.value)

    found = list(picolib.run(fn, 3))
    assert words in found[0] and found == found[:1] * 3


# The layers by themselves


def column_then_row(sequence_parallel: bool, bias: bool):
    """Five steps of SGD beside one process: outputs, gradients of input and parameters, parameters."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 7, bias).double(), nn.Linear(7, 5, bias).double()
    one = ColumnParallelLinear.from_linear(first, sequence_parallel=sequence_parallel)
    two = RowParallelLinear.from_linear(second, sequence_parallel=sequence_parallel)
    size, rank = dist.get_world_size(), dist.get_rank()
    cut = (lambda t: t.chunk(size, 1)[rank]) if sequence_parallel else (lambda t: t)
    optimizers = [torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1) for a, b in ((first, second), (one, two))]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x = torch.randn(2, 12, 6, dtype=torch.float64)
        mine, whole = cut(x).clone().requires_grad_(), x.clone().requires_grad_()
        y, right = two(F.gelu(one(mine))), second(F.gelu(first(whole)))
        right.square().mean().backward()
        (y.square().sum() / right.numel()).backward()
        assert torch.allclose(y, cut(right), rtol=1e-10) and torch.allclose(mine.grad, cut(whole.grad), rtol=1e-9)
        for part, plain in ((one, first), (two, second)):
            rights = dict(plain.named_parameters())
            for name, p, spec in named_specs(part):
                assert torch.allclose(p, own_part(rights[name], spec), rtol=1e-10), name
                assert torch.allclose(p.grad, own_part(rights[name].grad, spec), rtol=1e-9, atol=1e-14), name
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("bias", [True, False])
@plain_or_sequence
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_column_then_row(world_size, sequence_parallel, bias):
    picolib.run(column_then_row, world_size, sequence_parallel, bias)


def gathered_and_scattered():
    torch.manual_seed(0)
    linear, x = nn.Linear(6, 7).double(), torch.ones(2, 6, dtype=torch.float64)
    column = ColumnParallelLinear.from_linear(linear, gather_output=True)
    row = RowParallelLinear.from_linear(linear, input_is_parallel=False)
    assert torch.allclose(column(x), linear(x)) and torch.allclose(row(x), linear(x))
    spmd_gradcheck(column, x, replicated_input=True, replicated_output=True)
    spmd_gradcheck(row, x, replicated_input=True, replicated_output=True)


def test_gathered_output_and_whole_input():
    picolib.run(gathered_and_scattered, 3)


def looked_up():
    torch.manual_seed(0)
    table = nn.Embedding(7, 3).double()
    cut = VocabParallelEmbedding.from_embedding(table)
    ids = torch.tensor([[0, 6, 3], [2, 2, 5]])
    assert torch.equal(cut(ids), table(ids))
    table(ids).square().sum().backward()
    cut(ids).square().sum().backward()
    assert torch.allclose(cut.weight.grad, table.weight.grad[cut.first : cut.last])


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_embedding_also_where_a_rank_has_no_row(world_size):
    picolib.run(looked_up, world_size)


class Block(nn.Module):
    """A block of one's own: a norm whose region is cut by tokens, and two matrices that are cut by features."""

    def __init__(self, plain: nn.Sequential) -> None:
        super().__init__()
        self.norm = plain[0]
        self.up = ColumnParallelLinear.from_linear(plain[1], copy_input=False)
        self.down = RowParallelLinear.from_linear(plain[3])
        for name in ("weight", "bias"):
            sequence.sum_gradient_over(self.norm, name, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, s, h] on every rank -> [b, s/t, h]."""
        x = sequence.gather_tokens(self.norm(sequence.split_tokens(x)))
        return sequence.reduce_scatter_tokens(F.linear(F.gelu(self.up(x)), self.down.weight))


def own_block():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6, bias=False)).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    right = plain(x)
    right.square().sum().backward()
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    plain.zero_grad()
    block = Block(plain)
    y = block(x)
    y.square().sum().backward()
    assert torch.allclose(y, right.chunk(2, 1)[dist.get_rank()], rtol=1e-12)
    places = {"norm": "0", "up": "1", "down": "3"}
    for name, p, spec in named_specs(block):
        layer, attribute = name.split(".")
        assert torch.allclose(p.grad, own_part(gradients[f"{places[layer]}.{attribute}"], spec), rtol=1e-10), name


def test_a_block_of_ones_own_with_sequence_parallelism():
    picolib.run(own_block, 2)
