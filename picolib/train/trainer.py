"""A training loop to read from top to bottom. It knows neither how many ranks there are nor how the model is split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn

from picolib.model import Batch, sum_of_token_losses
from picolib.parallel.clip import clip_grad_norm_
from picolib.parallel.ddp import DistributedDataParallel
from picolib.train.batches import micro_batches
from picolib.train.history import History
from picolib.train.loss import count_global_tokens
from picolib.train.progress import Progress
from picolib.train.schedule import learning_rate


@dataclass
class TrainConfig:
    """Everything that can be tuned. (The size of a batch belongs to the batches.)"""

    steps: int = 200
    log_every: int = 10  # steps from one line of progress, and one all-reduce of the losses, to the next

    accumulation: int = 1  # micro-batches of a step: less memory for activations, the same gradients
    max_norm: float = 1.0  # of all gradients together; infinity: never clip

    learning_rate: float = 5e-3  # at the peak
    warm_up: int = 20  # steps to the peak
    final_learning_rate: float = 5e-4  # at the end of the cosine

    beta1: float = 0.9  # AdamW's memory of gradients ...
    beta2: float = 0.95  # ... and of their squares
    weight_decay: float = 0.1  # of matrices only

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        if not 0 <= self.warm_up <= self.steps:
            raise ValueError(f"warm_up={self.warm_up} must be from 0 to steps={self.steps}.")

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return learning_rate(
            step, steps=self.steps, peak=self.learning_rate, warm_up=self.warm_up, final=self.final_learning_rate
        )


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019). Matrices decay; norm scales and biases, which are vectors, do not."""
    parameters = list(model.parameters())
    kinds = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(kinds, lr=config.learning_rate, betas=(config.beta1, config.beta2))


def train(
    model: nn.Module,
    batches: Callable[[int], Batch],
    config: TrainConfig,
    *,
    group: dist.ProcessGroup | None = None,
    wrap: Callable[..., Any] = DistributedDataParallel,
    make_optimizer: Callable[[nn.Module, TrainConfig], torch.optim.Optimizer] = adamw,
) -> History:
    """Trains `model` in place on the ranks of `group` (None: the world), each with its share of every batch.

    The losses, gradients and parameters are those of one process with the whole batch, for every number of ranks and
    every accumulation, also where ranks have different numbers of valid tokens, or none.

    Args:
        model: tokens [b, s] -> logits [b, s, vocab], on the device to train on.
        batches: step -> the global batch, the same on every rank (`TextBatches`, `DocumentBatches`).
        wrap: the strategy, called as wrap(model, process_group=group, gradient_divide_factor=1). It must sum gradients
            over the ranks by the end of a backward pass, and offer `no_sync()`.
        make_optimizer: called with the wrapped model and the config; the loop sets its learning rate.

    Returns:
        The same history on every rank.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    device = next(model.parameters()).device
    # The factor 1 asks for the plain sum of gradients: the loss below is divided already, and nothing is divided twice.
    model = wrap(model, process_group=group, gradient_divide_factor=1)
    optimizer = make_optimizer(model, config)
    history, progress = History(), Progress(speaks=rank == 0)
    model.train()

    for step in range(config.steps):
        # What this rank reads, and how many tokens everybody reads. All ranks skip a step without any alike.
        shares = micro_batches(batches(step), rank, world_size, config.accumulation)
        tokens = count_global_tokens(shares, group)
        if tokens == 0:
            history.skipped.append(step)
            continue

        # Gradients add up from micro-batch to micro-batch; they are sent in the last backward pass only.
        step_loss = torch.zeros((), device=device)
        for number, (inputs, targets) in enumerate(shares, start=1):
            with nullcontext() if number == config.accumulation else model.no_sync():
                loss = sum_of_token_losses(model(inputs.to(device)), targets.to(device)) / tokens
                loss.backward()
            step_loss = step_loss + loss.detach()

        # Every rank has the same gradients now, and does the same with them.
        grad_norm = clip_grad_norm_(model, config.max_norm)
        for parameters in optimizer.param_groups:
            parameters["lr"] = config.rate(step)
        optimizer.step()
        optimizer.zero_grad()

        history.record(step, step_loss, grad_norm, config.rate(step), tokens)
        if history.waiting == config.log_every:
            history.gather(group)
            progress.show(newest_line(history, config))

    history.gather(group)
    progress.close(last_line(history))
    return history


def newest_line(history: History, config: TrainConfig) -> str:
    """The state of a run, for people."""
    return (
        f"step {history.steps[-1] + 1} of {config.steps}  loss {history.losses[-1]:.4f}  "
        f"gradient norm {history.grad_norms[-1]:.2f}  learning rate {history.learning_rates[-1]:.1e}  "
        f"{history.tokens_per_second(config.log_every):,.0f} tokens/s"
    )


def last_line(history: History) -> str:
    """The outcome of a run, as far as it is the same every time."""
    skipped = f", {len(history.skipped)} skipped for want of tokens" if history.skipped else ""
    return f"{len(history.steps)} steps, {sum(history.tokens):,} tokens{skipped}"
