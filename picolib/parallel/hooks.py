"""Hooks on gradients that say whose they are, so that no gradient is reduced by two strategies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class GradientHook:
    """A hook of autograd's that calls `act(strategy, tensor)` as long as the strategy lives.

    A parameter outlives the wrapper around its module, for example when a cell of a notebook is run again; a hook that
    kept the old wrapper alive would go on reducing.
    """

    def __init__(self, owner: str, strategy: Any, act: Callable[[Any, torch.Tensor], None]) -> None:
        self.owner, self.strategy, self.act = owner, weakref.ref(strategy), act

    def __call__(self, tensor: torch.Tensor) -> None:
        """Called by autograd, with a gradient or with the parameter that has got it."""
        strategy = self.strategy()
        if strategy is not None:
            self.act(strategy, tensor)


def refuse_what_is_reduced_already(argument: str, parameters: Iterable[nn.Parameter]) -> None:
    """ValueError where another strategy reduces one of these gradients already: two of them would do it twice."""
    for parameter in parameters:
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            if isinstance(hook, GradientHook) and hook.strategy() is not None:
                raise ValueError(
                    f"{argument} must be plain, but {hook.owner} reduces its gradients already: use one of the two."
                )
