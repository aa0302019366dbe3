"""A small Llama in float64 and its training, by one process and by each rank of a tensor-parallel group."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from picolib.model import LlamaConfig, LlamaForCausalLM, init_weights
from picolib.parallel.full_state import full_state_dict, own_part
from picolib.parallel.spec import named_specs
from picolib.parallel.tensor import parallelize, vocab_parallel_cross_entropy

STEPS = 5
BATCH, LENGTH, VOCABULARY = 2, 12, 13


def llama(*, meta: bool = False, **sizes: Any) -> LlamaForCausalLM:
    """12 heads, so that 1, 2, 3 and 4 ranks can share them; a vocabulary and an inner width that don't divide.

    `meta`: the caller builds it on the meta device, without numbers.
    """
    plain = {
        "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 22, "num_hidden_layers": 2,
        "num_attention_heads": 12, "num_key_value_heads": 12, "max_position_embeddings": LENGTH,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**{**plain, **sizes})).double()
    return model if meta else init_weights(model, seed=1, std=0.3)


def tokens(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets [2, 12]; some targets ask for nothing."""
    rows = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    targets = rows[:, 1:].clone()
    targets[0, :3] = -100
    return rows[:, :-1], targets


def train(model: nn.Module, loss_of: Any) -> list[float]:
    """The losses of a few steps of SGD; the gradients of the last one stay."""
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


def whole_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the targets that count."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def alone(sizes: dict) -> tuple[list[float], LlamaForCausalLM]:
    """Losses of the one-process model, and the model with its last gradients."""
    model = llama(**sizes)
    return train(model, whole_loss), model


def on_a_rank(sizes: dict, **options: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and full state by this rank; outputs and every gradient must be the one-process model's."""
    model = parallelize(llama(**sizes), **options)
    assert_logits_close(model(tokens()[0]), llama(**sizes)(tokens()[0]), model.lm_head)
    losses = train(model, vocab_parallel_cross_entropy)
    right = alone(sizes)[1]
    gradients = {name: p.grad for name, p in right.named_parameters()}
    for name, p, spec in named_specs(model):
        assert torch.allclose(p.grad, own_part(gradients[name], spec), rtol=1e-9, atol=1e-12), name
    return losses, full_state_dict(model)


def assert_logits_close(found: torch.Tensor, right: torch.Tensor, head: nn.Module) -> None:
    """This rank's logits, and -inf where it has none."""
    width = head.last - head.first
    assert torch.allclose(found[..., :width], right[..., head.first : head.last], rtol=1e-9, atol=1e-12)
    assert (found[..., width:] == float("-inf")).all()
