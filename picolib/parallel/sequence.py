"""Sequence parallelism: between the matrices of tensor parallelism, each rank keeps its own tokens only.

    all tokens, cut features                this rank's tokens, all features
    attention, MLP      -- reduce-scatter ->      norms, dropout, the sum with the residual stream
                        <-- all-gather ------

The two are each other's backward, and together they send what the all-reduce sent that they stand for. What is gained:
norms and dropout do 1/t of the work and keep 1/t of the activations. What must not be forgotten: a norm's weight is
whole on every rank but has seen 1/t of the tokens, so its gradient is a summand (`sum_gradient_over`).
Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section 4.2.
"""

from __future__ import annotations

from typing import Any

import torch

from picolib.comm import functional
from picolib.parallel.replicated import sum_gradient_over

__all__ = ["SEQUENCE", "gather_tokens", "reduce_scatter_tokens", "split_tokens", "sum_gradient_over"]

SEQUENCE = -2  # the dimension of tokens in [..., sequence, features]


def gather_tokens(x: torch.Tensor, *, group: Any = None, algorithm: str = "auto") -> torch.Tensor:
    """[..., s/t, h], this rank's tokens -> [..., s, h], everybody's. Backward: reduce-scatter.

    (What follows is cut by features, so each rank knows its own share of the gradient only.)
    """
    return functional.all_gather(x, SEQUENCE, group=group, algorithm=algorithm)


def reduce_scatter_tokens(x: torch.Tensor, *, group: Any = None, algorithm: str = "auto") -> torch.Tensor:
    """[..., s, h], a summand on each rank -> [..., s/t, h], the sum at this rank's tokens. Backward: all-gather."""
    return functional.reduce_scatter(x, SEQUENCE, group=group, algorithm=algorithm)


def split_tokens(x: torch.Tensor, *, group: Any = None, algorithm: str = "auto") -> torch.Tensor:
    """[..., s, h], the same on each rank -> [..., s/t, h], this rank's tokens. Backward: all-gather.

    Where a model whose first layers are replicated enters sequence parallelism. Nothing is sent forward.
    """
    return functional.scatter_to_group(x, SEQUENCE, group=group, algorithm=algorithm)
