"""The optimizer of exercise 4.1: an Adam that keeps its state where it is told to, and remembers its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch


@dataclass
class Adam:
    """The update that the learner is given: `update(part, gradient, state)`. It remembers what it was called with.

    `calls` is one list for all: whoever makes a copy of the update, or another one, is seen as well.
    """

    lr: float
    betas: tuple[float, float]
    calls: ClassVar[list[dict[str, Any]]] = []

    @torch.no_grad()
    def __call__(self, part: torch.Tensor, gradient: torch.Tensor, state: dict) -> None:
        """One step of Adam on `part`, in place; two moments and a count of steps are kept in `state`."""
        if part.shape != gradient.shape:
            raise ValueError(f"update: part has shape {list(part.shape)}, and gradient {list(gradient.shape)}.")
        fresh = not state
        self.calls.append({"part": part.detach().clone(), "gradient": gradient.detach().clone(), "fresh": fresh})
        if fresh:
            state |= {"steps": 0, "mean": torch.zeros_like(part), "square": torch.zeros_like(part)}
        if state["mean"].shape != part.shape:
            raise ValueError(
                f"update: state holds moments of shape {list(state['mean'].shape)}, and part has {list(part.shape)}: "
                "a part needs the same dict in each step, and one of its own."
            )
        state["steps"] += 1
        one, two = self.betas
        state["mean"] += (1 - one) * (gradient - state["mean"])
        state["square"] += (1 - two) * (gradient**2 - state["square"])
        mean, square = state["mean"] / (1 - one ** state["steps"]), state["square"] / (1 - two ** state["steps"])
        part -= self.lr * mean / (square.sqrt() + 1e-8)
