"""The same as PyTorch's parallelize_module with its styles, and its loss_parallel."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import picolib
from picolib.parallel.spec import named_specs
from picolib.parallel.tensor import ColumnParallelLinear, RowParallelLinear, parallelize, vocab_parallel_cross_entropy
from tests.parallel.llamas import STEPS, llama, tokens

SIZES = {"vocab_size": 24, "intermediate_size": 24}  # what PyTorch's styles can share equally


def plan(sequence_parallel: bool) -> dict:
    """The styles of PyTorch's own tutorial for a Llama."""
    from torch.distributed.tensor import Replicate, Shard, parallel

    between = Shard(1) if sequence_parallel else Replicate()
    found = {
        "model.embed_tokens": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "lm_head": parallel.ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    for layer in ("model.layers.0", "model.layers.1"):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            found[f"{layer}.{name}"] = parallel.ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            found[f"{layer}.{name}"] = parallel.RowwiseParallel(output_layouts=between)
        if sequence_parallel:
            found[f"{layer}.input_layernorm"] = found[f"{layer}.post_attention_layernorm"] = parallel.SequenceParallel()
            found[f"{layer}.self_attn"] = parallel.PrepareModuleInput(
                input_layouts=(between, None), desired_input_layouts=(Replicate(), None)
            )
            found[f"{layer}.mlp"] = parallel.PrepareModuleInput(
                input_layouts=between, desired_input_layouts=Replicate()
            )
    if sequence_parallel:
        found["model.norm"] = parallel.SequenceParallel()
    return found


def theirs(sequence_parallel: bool):
    """Losses, and this rank's part of every gradient, by name."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallel.parallelize_module(llama(**SIZES), mesh, plan(sequence_parallel))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = tokens(step)
        with parallel.loss_parallel():
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
        losses.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
        optimizer.step()
    return losses, {name: local(p) for name, p in model.named_parameters()}


def local(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of the gradient: PyTorch leaves some whole, or as summands, where the parameter is cut."""
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        return parameter.grad
    return parameter.grad.redistribute(placements=parameter.placements).to_local()


def ours(sequence_parallel: bool, overlap: bool):
    model = parallelize(llama(**SIZES), sequence_parallel=sequence_parallel, overlap=overlap)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = tokens(step)
        loss = vocab_parallel_cross_entropy(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, {name: p.grad for name, p, _ in named_specs(model)}


def beside_each_other(sequence_parallel: bool):
    losses, gradients = theirs(sequence_parallel)
    for overlap in (False, True):
        found, mine = ours(sequence_parallel, overlap)
        assert found == pytest.approx(losses, rel=1e-12)
        assert mine.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert torch.allclose(mine[name], gradient, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["plain", "sequence"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_llama_trains_as_with_pytorchs_styles_and_loss_parallel(world_size, sequence_parallel):
    picolib.run(beside_each_other, world_size, sequence_parallel)


def mlp(bias: bool):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 12, bias), nn.GELU(), nn.Linear(12, 8, bias)).double()
    one, two = ColumnParallelLinear.from_linear(plain[0]), RowParallelLinear.from_linear(plain[2])
    styles = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    other = parallel.parallelize_module(plain, init_device_mesh("cpu", (dist.get_world_size(),)), styles)
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, right = two(F.gelu(one(x))), other(x)
    y.square().sum().backward()
    right.square().sum().backward()
    assert torch.allclose(y, right)
    for mine, its in ((one, other[0]), (two, other[2])):
        for name, p in mine.named_parameters():
            assert torch.allclose(p.grad, local(its.get_parameter(name))), name


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_an_mlp_with_colwise_and_rowwise_parallel(world_size, bias):
    picolib.run(mlp, world_size, bias)
