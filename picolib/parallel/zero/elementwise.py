"""Is an optimizer element-wise? Asked of the optimizer itself, on six numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def refuse_unless_elementwise(optimizer_class: type[torch.optim.Optimizer], defaults: dict[str, Any]) -> None:
    """Step a matrix whole and in two flat pieces; an element-wise optimizer cannot tell the difference.

    Raises:
        ValueError: the results differ, or the optimizer refuses pieces (LBFGS, Adafactor, Muon, SparseAdam, …).
    """
    try:
        optimizer_class([nn.Parameter(torch.ones(2, 3))], **defaults)
    except TypeError as error:
        raise ValueError(f"defaults do not fit {optimizer_class.__name__}: {error}.") from None
    try:
        same = torch.equal(_stepped(optimizer_class, defaults, [6]), _stepped(optimizer_class, defaults, [2, 4]))
    except (TypeError, RuntimeError, ValueError):  # it wants a closure, a matrix, sparse gradients
        same = False
    if not same:
        raise ValueError(
            f"optimizer_class must be element-wise, such as torch.optim.AdamW or SGD, and {optimizer_class.__name__} "
            "is not: its step on a number depends on other numbers, which another rank may hold."
        )


def _stepped(optimizer_class: type[torch.optim.Optimizer], defaults: dict[str, Any], cuts: list[int]) -> torch.Tensor:
    numbers = torch.tensor([0.5, -1.0, 2.0, 0.25, -3.0, 1.5], dtype=torch.float64)
    whole = len(cuts) == 1
    pieces = [nn.Parameter(part.view(2, 3) if whole else part.clone()) for part in numbers.clone().split(cuts)]
    optimizer = optimizer_class(pieces, **defaults)
    for _ in range(2):
        for piece in pieces:
            piece.grad = piece.detach().sin() + 0.1
        optimizer.step()
    return torch.cat([piece.detach().flatten() for piece in pieces])
