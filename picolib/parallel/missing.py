"""A gradient that a rank has not got: told from one of zeros, by every rank, without a message of its own.

A step of AdamW shrinks a parameter whose gradient is zero, and leaves alone one that has none. So after summing, ranks
must know whether nobody had a gradient. The sum itself tells them, since floating-point numbers have two zeros:

    -0.0 + -0.0 = -0.0        -0.0 + 0.0 = 0.0        -0.0 + x = x        x + -x = 0.0        (IEEE 754)

Who has no gradient adds -0.0; who has one adds it with its zeros made positive. The sum is -0.0 only where nobody had.
"""

from __future__ import annotations

import torch


def write_gradient(gradient: torch.Tensor | None, out: torch.Tensor) -> None:
    """What a rank adds to the sum, in one pass: its gradient, or -0.0 where it has none."""
    if gradient is None:
        out.fill_(-0.0)
    else:
        torch.add(gradient, 0.0, out=out)  # -0.0 + 0.0 = 0.0


def nobody_had(total: torch.Tensor) -> bool:
    """Whether a sum over the ranks, or any part of it, is one of no gradients at all. Ask before it is divided."""
    if not total.numel():
        return True
    first = total.flatten()[0].real
    return bool(first == 0 and torch.signbit(first))
