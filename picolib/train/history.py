"""What a training run was like, step by step; the same on every rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from picolib import comm


@dataclass
class History:
    """One entry a step in each list, for the steps that were taken; `skipped` has the others.

    `figures.loss_curves({"two ranks": history.losses})` draws it.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of the whole global batch, by the one loss rule
    grad_norms: list[float] = field(default_factory=list)  # before clipping
    learning_rates: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # valid targets of the whole global batch
    seconds: list[float] = field(default_factory=list)  # from the start of the run to the end of the step
    skipped: list[int] = field(default_factory=list)  # steps in which no rank had a valid target

    def __post_init__(self) -> None:
        self._start = time.perf_counter()
        self._shares: list[torch.Tensor] = []  # this rank's part of the losses that are not summed yet
        self._norms: list[torch.Tensor] = []

    def record(
        self, step: int, share: torch.Tensor, grad_norm: torch.Tensor, learning_rate: float, tokens: int
    ) -> None:
        """A step was taken. `share`: this rank's token losses, divided by the `tokens` of all ranks."""
        self._shares.append(share)
        self._norms.append(grad_norm)
        self.steps.append(step)
        self.learning_rates.append(learning_rate)
        self.tokens.append(tokens)
        self.seconds.append(time.perf_counter() - self._start)

    @property
    def waiting(self) -> int:
        """How many steps have no entry in `losses` and `grad_norms` yet."""
        return len(self._shares)

    def gather(self, group: dist.ProcessGroup | None = None) -> None:
        """Add up the shares of the losses over the ranks, those of all waiting steps in one all-reduce.

        The sum, not the mean: each share was divided by the global number of tokens already.
        """
        if not self._shares:
            return
        losses = torch.stack(self._shares)
        comm.all_reduce(losses, group=group, label="losses")
        self.losses += losses.tolist()
        self.grad_norms += torch.stack(self._norms).tolist()
        self._shares.clear()
        self._norms.clear()

    def tokens_per_second(self, steps: int | None = None) -> float:
        """Over the last `steps` steps (None: over the whole run); 0 before the first."""
        count = len(self.steps) if steps is None else min(steps, len(self.steps))
        if count == 0:
            return 0.0
        before = self.seconds[-count - 1] if count < len(self.seconds) else 0.0
        return sum(self.tokens[-count:]) / (self.seconds[-1] - before)
