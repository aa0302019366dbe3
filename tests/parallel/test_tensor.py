"""Tensor parallelism against the one-process model and against PyTorch's: outputs, gradients, steps, traffic."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import picolib
from picolib import comm
from picolib.comm.auto import choose
from picolib.comm.gradcheck import spmd_gradcheck
from picolib.model import LlamaConfig, LlamaForCausalLM, init_weights
from picolib.parallel.full_state import full_state_dict, own_part
from picolib.parallel.spec import named_specs
from picolib.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    parallelize,
    vocab_parallel_cross_entropy,
)

STEPS = 3


def llama(**sizes) -> nn.Module:
    plain = {
        "vocab_size": 13, "hidden_size": 24, "intermediate_size": 22, "num_hidden_layers": 2,
        "num_attention_heads": 12, "num_key_value_heads": 12, "max_position_embeddings": 12,
    }  # fmt: skip
    return init_weights(LlamaForCausalLM(LlamaConfig(**{**plain, **sizes})).double(), seed=1, std=0.3)


def tokens(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets [2, 12]; some targets ask for nothing."""
    rows = torch.randint(13, (2, 13), generator=torch.Generator().manual_seed(step))
    targets = rows[:, 1:].clone()
    targets[0, :3] = -100
    return rows[:, :-1], targets


def train(model, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = tokens(step)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def on_a_rank(sequence_parallel: bool, sizes: dict):
    model = parallelize(llama(**sizes), sequence_parallel=sequence_parallel)
    losses = train(model, vocab_parallel_cross_entropy)
    gradients = {name: p.grad for name, p, _ in named_specs(model)}
    specs = {name: spec for name, _, spec in named_specs(model)}
    right = llama(**sizes)
    train(right, whole_loss)
    for name, p in right.named_parameters():
        part = p.grad if specs[name] is None else own_part(p.grad, specs[name])
        assert torch.allclose(gradients[name], part, rtol=1e-9, atol=1e-12), name
    return losses, full_state_dict(model)


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["plain", "sequence"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_losses_gradients_and_parameters_equal_the_one_process_model(world_size, sequence_parallel):
    right = llama()
    losses = train(right, whole_loss)
    for found, state in picolib.run(on_a_rank, world_size, sequence_parallel, {}):
        assert found == pytest.approx(losses, rel=1e-11)
        for name, value in right.state_dict().items():
            assert torch.allclose(state[name], value, rtol=1e-9, atol=1e-12), name


def test_tied_embeddings_and_grouped_query_attention():
    sizes = {"tie_word_embeddings": True, "num_attention_heads": 12, "num_key_value_heads": 4}
    right = llama(**sizes)
    losses = train(right, whole_loss)
    for found, _ in picolib.run(on_a_rank, 2, False, sizes):
        assert found == pytest.approx(losses, rel=1e-11)


def test_heads_that_do_not_divide_are_one_sentence():
    with pytest.raises(picolib.RankError) as error:
        picolib.run(on_a_rank, 3, False, {"num_key_value_heads": 4})
    assert "num_key_value_heads=4 must be divisible by the group's size, 3" in str(error.value)


def forward_backward(layers: int, sequence_parallel: bool, whole: bool) -> None:
    model = parallelize(llama(num_hidden_layers=layers), sequence_parallel=sequence_parallel)
    inputs, targets = tokens()
    loss = vocab_parallel_cross_entropy(model(inputs), targets)
    if whole:
        loss.backward()


def calls_of_a_layer(sequence_parallel: bool, whole: bool) -> tuple[dict[str, int], list[int]]:
    """What one layer more costs: collectives of rank 0, and bytes of every rank."""
    one, two = (picolib.run(forward_backward, 2, n, sequence_parallel, whole).trace for n in (1, 2))
    more = {name: two.calls[0][name] - one.calls[0].get(name, 0) for name in two.calls[0]}
    sent = [b - a for a, b in zip(one.bytes_sent, two.bytes_sent, strict=True)]
    return {name: count for name, count in more.items() if count}, sent


ACTIVATIONS = 2 * 12 * 24 * 8  # b·s·h numbers of 8 bytes


def test_a_layer_makes_two_all_reduces_forward_and_two_backward():
    assert calls_of_a_layer(False, whole=False) == ({"all_reduce": 2}, [2 * ACTIVATIONS] * 2)
    assert calls_of_a_layer(False, whole=True) == ({"all_reduce": 4}, [4 * ACTIVATIONS] * 2)


def test_sequence_parallelism_sends_the_same_bytes_and_the_norms_gradients():
    calls, sent = calls_of_a_layer(True, whole=True)
    assert calls == {"all_gather_into_tensor": 4, "reduce_scatter_tensor": 4, "all_reduce": 2}
    assert sent == [4 * (wire("all_gather", rank) + wire("reduce_scatter", rank)) + 2 * 24 * 8 for rank in range(2)]
    halves = [wire(name, 0, "direct") for name in ("all_gather", "reduce_scatter")]
    assert sum(halves) == comm.bytes_sent("all_reduce", "direct", 2 * 12 * 24, size=2, rank=0, itemsize=8)


def wire(name: str, rank: int, algorithm: str | None = None) -> int:
    """What a rank of two sends in the collective of one layer's activations: a half is each rank's block."""
    algorithm = algorithm or choose(name, ACTIVATIONS, 2)
    return comm.bytes_sent(name, algorithm, 12 * 24, size=2, rank=rank, itemsize=8)


# The layers by themselves


def column_then_row(sequence_parallel: bool, bias: bool):
    torch.manual_seed(0)
    first, second = nn.Linear(6, 7, bias).double(), nn.Linear(7, 5, bias).double()
    torch.manual_seed(3)
    x = torch.randn(2, 6, 6, dtype=torch.float64)
    one = ColumnParallelLinear.from_linear(first, sequence_parallel=sequence_parallel)
    two = RowParallelLinear.from_linear(second, sequence_parallel=sequence_parallel)
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = (x.chunk(size, 1)[rank] if sequence_parallel else x).clone().requires_grad_()
    whole = x.clone().requires_grad_()
    y, right = two(F.gelu(one(mine))), second(F.gelu(first(whole)))
    right.square().sum().backward()
    y.square().sum().backward()
    cut = (lambda t: t.chunk(size, 1)[rank]) if sequence_parallel else (lambda t: t)
    assert torch.allclose(y, cut(right), rtol=1e-12)
    assert torch.allclose(mine.grad, cut(whole.grad), rtol=1e-10)
    for part, plain in ((one, first), (two, second)):
        specs = {name: (p, spec) for name, p, spec in named_specs(part)}
        for name, p in plain.named_parameters():
            found, spec = specs[name]
            assert torch.allclose(found.grad, own_part(p.grad, spec) if spec else p.grad, rtol=1e-10), name


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
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


# Together with data parallelism, and beside PyTorch's


def tensor_and_data():
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize(llama(), mesh.get_group("tp"))
    model = picolib.DistributedDataParallel(model, process_group=mesh.get_group("dp"), gradient_divide_factor=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = (t.chunk(2)[mesh.get_local_rank("dp")] for t in tokens(step))
        logits = model(inputs)
        loss = vocab_parallel_cross_entropy(logits, targets, group=mesh.get_group("tp"), reduction="sum")
        (loss / (tokens(step)[1] != -100).sum()).backward()
        norms.append(picolib.clip_grad_norm_(model, 0.5))
        optimizer.step()
    return norms, full_state_dict(model)


def test_with_data_parallelism_on_a_mesh_and_the_clipped_norm():
    right, norms = llama(), []
    optimizer = torch.optim.SGD(right.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        whole_loss(right(tokens(step)[0]), tokens(step)[1]).backward()
        norms.append(nn.utils.clip_grad_norm_(right.parameters(), 0.5))
        optimizer.step()
    for found, state in picolib.run(tensor_and_data, 4):
        assert torch.allclose(torch.stack(found), torch.stack(norms), rtol=1e-10)
        for name, value in right.state_dict().items():
            assert torch.allclose(state[name], value, rtol=1e-9, atol=1e-12), name


def beside_pytorch():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)).double()
    one, two = ColumnParallelLinear.from_linear(mlp[0]), RowParallelLinear.from_linear(mlp[2])
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    theirs = parallelize_module(mlp, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = two(F.gelu(one(x)))
    ours.square().sum().backward()
    right = theirs(x)
    right.square().sum().backward()
    pairs = ((one.weight, theirs[0].weight), (one.bias, theirs[0].bias), (two.weight, theirs[2].weight))
    return torch.allclose(ours, right), [torch.allclose(a.grad, b.grad.to_local()) for a, b in pairs]


def test_the_same_as_pytorchs_colwise_and_rowwise_parallel():
    assert list(picolib.run(beside_pytorch, 2)) == [(True, [True] * 3)] * 2
