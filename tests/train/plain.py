"""What the trainer is compared with: one process, the whole batch, torch alone, nothing split; and torch's own DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from picolib.model import Batch, LlamaConfig, LlamaForCausalLM, init_weights

VOCAB = 16
TINY = LlamaConfig(
    vocab_size=VOCAB, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=True,
)  # fmt: skip


def tiny_llama(seed: int) -> nn.Module:
    """In float64, with tied embeddings, and a norm that is frozen."""
    model = init_weights(LlamaForCausalLM(TINY), seed=seed, std=0.5).double()
    model.model.norm.weight.requires_grad_(False)
    return model


def documents() -> list[torch.Tensor]:
    """Random tokens, 1 to 13 of them."""
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(VOCAB, (length,), generator=generator) for length in (1, 2, 3, 5, 8, 13)]


class RecordingSGD(torch.optim.SGD):
    """Plain gradient descent that keeps every step's gradients, as it is given them."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr)
        self.seen: list[list[torch.Tensor]] = []

    def step(self, closure: None = None) -> None:
        self.seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        super().step()


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def plain_training(
    model: nn.Module, batches: Callable[[int], Batch], rates: list[float], max_norm: float
) -> tuple[list[float], list[float], list[list[torch.Tensor]]]:
    """Losses, norms before clipping, and the clipped gradients of each step. A batch without targets is left out."""
    optimizer = RecordingSGD(trainable(model), lr=0.0)
    losses, norms = [], []
    for step, rate in enumerate(rates):
        inputs, targets = batches(step)
        if bool((targets == -100).all()):
            continue
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())  # the mean over all valid targets
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trainable(model), max_norm).item())
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, optimizer.seen


def torch_ddp(module: nn.Module, *, process_group: Any, gradient_divide_factor: float) -> nn.Module:
    """PyTorch's own DistributedDataParallel, with a hook that sums and divides by the factor asked for."""
    wrapped = nn.parallel.DistributedDataParallel(module, process_group=process_group)

    def summed(group, bucket):  # torch reads annotations here, and takes no text for one
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / gradient_divide_factor)

    wrapped.register_comm_hook(process_group, summed)
    return wrapped
