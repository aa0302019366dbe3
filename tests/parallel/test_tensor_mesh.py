"""Tensor parallelism in the rows of a mesh, data parallelism in its columns."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import picolib
from picolib.parallel.full_state import full_state_dict, load_full_state_dict, own_part
from picolib.parallel.spec import named_specs
from picolib.parallel.tensor import parallelize, vocab_parallel_cross_entropy
from tests.parallel.llamas import STEPS, llama, tokens, whole_loss

CLIPPED = 0.5


def alone(sizes: dict):
    """One process: norms before clipping, the clipped gradients of every step, the last parameters."""
    model, norms, gradients = llama(**sizes), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        whole_loss(model(tokens(step)[0]), tokens(step)[1]).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIPPED))
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    return torch.stack(norms), gradients, model.state_dict()


def wrapped(kind: str, model: nn.Module, mesh) -> nn.Module:
    if kind == "ddp":
        return picolib.DistributedDataParallel(model, process_group=mesh.get_group("dp"), gradient_divide_factor=1)
    for layer in model.model.layers:
        picolib.fully_shard(layer, mesh=mesh["dp"])
    picolib.fully_shard(model, mesh=mesh["dp"]).set_gradient_divide_factor(1)
    state = full_state_dict(model)
    load_full_state_dict(model, {name: torch.zeros_like(value) for name, value in state.items()})
    load_full_state_dict(model, state)
    return model


def on_a_mesh(shape: tuple[int, int], kind: str, sizes: dict, options: dict) -> torch.Tensor:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    right_norms, right_gradients, right_state = alone(sizes)
    model = wrapped(kind, parallelize(llama(**sizes), mesh.get_group("tp"), **options), mesh)
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = (t.chunk(shape[0])[mesh.get_local_rank("dp")] for t in tokens(step))
        loss = vocab_parallel_cross_entropy(model(inputs), targets, group=mesh.get_group("tp"), reduction="sum")
        (loss / (tokens(step)[1] != -100).sum()).backward()
        norms.append(picolib.clip_grad_norm_(model, CLIPPED))
        for name, p, spec in named_specs(getattr(model, "module", model)):
            wanted = own_part(right_gradients[step][name], spec)
            assert torch.allclose(p.grad, wanted, rtol=1e-8, atol=1e-12), (step, name)
        optimizer.step()
    assert torch.allclose(torch.stack(norms), right_norms, rtol=1e-10)
    assert right_norms.min() > CLIPPED  # each step really is clipped
    state = full_state_dict(model)
    assert state.keys() == right_state.keys()
    for name, value in right_state.items():
        assert torch.allclose(state[name], value, rtol=1e-9, atol=1e-12), name
    return torch.cat([state[name].flatten() for name in sorted(state)])


OPTIONS = {
    "plain": {},
    "sequence": {"sequence_parallel": True},
    "overlap": {"overlap": True},
    "sequence and overlap": {"sequence_parallel": True, "overlap": True, "regather": True},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("shape", [(2, 2), (2, 3)], ids=["2x2", "2x3"])
def test_gradients_clipped_norm_and_parameters_equal_one_process(shape, kind, options):
    found = list(picolib.run(on_a_mesh, shape[0] * shape[1], shape, kind, {}, OPTIONS[options]))
    assert all(torch.equal(state, found[0]) for state in found)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_with_shared_key_value_heads_and_tied_embeddings(kind):
    sizes = {"num_key_value_heads": 1, "tie_word_embeddings": True}
    picolib.run(on_a_mesh, 4, (2, 2), kind, sizes, {"sequence_parallel": True})
