"""Communication beside matrix products: the same values, and the trace shows that both happen at once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import picolib
from picolib.parallel.full_state import own_part
from picolib.parallel.spec import named_specs
from picolib.parallel.tensor import ColumnParallelLinear, RowParallelLinear, parallelize, vocab_parallel_cross_entropy
from tests.parallel.llamas import alone, llama, on_a_rank, tokens

OPTIONS = {
    "plain": {"overlap": True},
    "sequence": {"overlap": True, "sequence_parallel": True},
    "regather": {"overlap": True, "sequence_parallel": True, "regather": True},
    "regather only": {"sequence_parallel": True, "regather": True},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_llama_equals_one_process(world_size, options):
    sizes = {"num_key_value_heads": 2 if world_size in (2, 4) else 3, "tie_word_embeddings": True}
    losses, right = alone(sizes)
    options = OPTIONS[options]
    for found, state in picolib.run(partial(on_a_rank, sizes, **options), world_size):
        assert found == pytest.approx(losses, rel=1e-11)
        for name, value in right.state_dict().items():
            assert torch.allclose(state[name], value, rtol=1e-9, atol=1e-12), name


def column_then_row(sequence_parallel: bool, bias: bool, frozen: bool):
    torch.manual_seed(0)
    first, second = nn.Linear(6, 7, bias).double(), nn.Linear(7, 5, bias).double()
    first.weight.requires_grad_(not frozen)
    x = torch.randn(2, 6, 6, dtype=torch.float64)
    options = {"sequence_parallel": sequence_parallel, "overlap": True}
    one, two = ColumnParallelLinear.from_linear(first, **options), RowParallelLinear.from_linear(second, **options)
    size, rank = dist.get_world_size(), dist.get_rank()
    cut = (lambda t: t.chunk(size, 1)[rank]) if sequence_parallel else (lambda t: t)
    mine, whole = cut(x).clone().requires_grad_(), x.clone().requires_grad_()
    y, right = two(F.gelu(one(mine))), second(F.gelu(first(whole)))
    right.square().sum().backward()
    y.square().sum().backward()
    assert torch.allclose(y, cut(right), rtol=1e-12) and torch.allclose(mine.grad, cut(whole.grad), rtol=1e-10)
    for part, plain in ((one, first), (two, second)):
        gradients = {name: p.grad for name, p in plain.named_parameters()}
        for name, p, spec in named_specs(part):
            if p.requires_grad:
                assert torch.allclose(p.grad, own_part(gradients[name], spec), rtol=1e-10), name
    assert (one.weight.grad is None) == frozen


@pytest.mark.parametrize(("bias", "frozen"), [(True, False), (False, True)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_column_then_row_with_and_without_bias_and_a_frozen_weight(world_size, sequence_parallel, bias, frozen):
    picolib.run(column_then_row, world_size, sequence_parallel, bias, frozen)


def recomputed(sequence_parallel: bool):
    model = parallelize(llama(), sequence_parallel=sequence_parallel, overlap=True)
    for layer in model.model.layers:
        forward = layer.forward
        layer.forward = lambda *args, forward=forward: checkpoint(forward, *args, use_reentrant=False)
    vocab_parallel_cross_entropy(model(tokens()[0]), tokens()[1]).backward()
    right = parallelize(llama(), sequence_parallel=sequence_parallel)
    vocab_parallel_cross_entropy(right(tokens()[0]), tokens()[1]).backward()
    for (name, p), q in zip(model.named_parameters(), right.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-10), name


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_recomputed_layers_have_the_same_gradients(sequence_parallel):
    picolib.run(recomputed, 2, sequence_parallel)


def in_bfloat16(sequence_parallel: bool):
    torch.manual_seed(0)
    linear, x = nn.Linear(8, 8), torch.randn(2, 4, 8)
    found = []
    for overlap in (False, True):
        layer = ColumnParallelLinear.from_linear(linear, sequence_parallel=sequence_parallel, overlap=overlap)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        y.float().sum().backward()
        found.append((y.dtype, layer.weight.grad.dtype, y.float(), layer.weight.grad))
    return found


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_autocast_chooses_the_same_dtypes(sequence_parallel):
    for one, two in picolib.run(in_bfloat16, 2, sequence_parallel):
        assert one[:2] == two[:2] == (torch.bfloat16, torch.float32)
        assert torch.allclose(one[2], two[2], atol=0.05) and torch.allclose(one[3], two[3], atol=0.1)


def odd_inputs():
    """One vector, no vector at all, a gradient that is one number everywhere, and a rank without features."""
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)  # over 4 ranks: 1, 1, 1 and 0 features
    for shape in ((4,), (0, 4), (2, 3, 4)):
        x = torch.randn(shape)
        found = []
        for overlap in (False, True):
            layer, mine = ColumnParallelLinear.from_linear(plain, overlap=overlap), x.clone().requires_grad_()
            layer(mine).sum().backward()
            found.append((mine.grad, layer.weight.grad, layer.bias.grad))
        assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True)), shape


def test_odd_inputs_are_as_without_overlap():
    picolib.run(odd_inputs, 4)


# What the trace shows


def step(overlap: bool, sequence_parallel: bool) -> None:
    torch.manual_seed(0)
    options = {"overlap": overlap, "sequence_parallel": sequence_parallel}
    column = ColumnParallelLinear(64, 64, False, **options)
    x = torch.randn(2, 6 if sequence_parallel else 18, 64, requires_grad=True)
    y = column(x)
    with picolib.mark("backward"):
        y.sum().backward()
    if sequence_parallel:
        RowParallelLinear(64, 64, False, **options)(torch.randn(2, 18, 22 if dist.get_rank() < 2 else 20))


def events(overlap: bool, sequence_parallel: bool):
    trace = picolib.run(step, 3, overlap, sequence_parallel, trace=True).trace
    return [[e for e in trace.events if e.rank == rank] for rank in range(3)]


def test_the_input_gradients_all_reduce_starts_before_the_weights_gradient_ends():
    for mine in events(True, sequence_parallel=False):
        (reduce,) = (e for e in mine if e.kind == "collective" and "input gradient" in e.label)
        (product,) = (e for e in mine if e.kind == "mark" and e.label == "weight gradient")
        sends = [e for e in mine if e.kind == "send" and "all_reduce" in e.call]
        assert reduce.start < product.start and reduce.end > product.end
        assert any(e.start < product.start for e in sends)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_block_is_multiplied_while_the_messages_of_its_step_are_under_way(collective):
    for mine in events(True, sequence_parallel=True):
        rings = [e for e in mine if e.kind == "collective" and e.label.startswith(collective)]
        assert rings and all("ring" in ring.label for ring in rings)
        for ring in rings:
            inside = [e for e in mine if ring.start <= e.start and e.end <= ring.end]
            products = [e for e in inside if e.kind == "mark" and e.label.startswith("block")]
            messages = [e for e in inside if e.kind in ("send", "recv")]
            assert len(products) == 3 and len(messages) == 2 * 2
            beside = products[:2] if collective == "all_gather" else products[1:]
            for number, product in enumerate(beside):
                at_once = [e for e in messages if e.start < product.start and e.end > product.end]
                assert [e.note["step"] for e in at_once] == [number] * 2


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_without_overlap_nothing_is_computed_beside_a_collective(sequence_parallel):
    for mine in events(False, sequence_parallel):
        assert not [e for e in mine if e.kind == "mark" and e.label != "backward"]
