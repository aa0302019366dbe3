"""What strategies hook to: the tensors in a module's output, and gradients, by hooks that say whose they are."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


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


def results_with_gradient(output: Any) -> list[torch.Tensor]:
    """The tensors in a module's output that backward comes through first: computed ones that require a gradient.

    A leaf among them (a parameter that the module gives out as it is) was not computed, and would keep every hook that
    it ever got.
    """
    return [tensor for tensor in tensors_in(output) if tensor.requires_grad and tensor.grad_fn is not None]


def tensors_in(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[torch.Tensor]:
    """All tensors in nested lists, tuples, mappings, dataclasses and the attributes of other objects."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif id(leaf) not in seen and not isinstance(leaf, (nn.Module, type)):
            yield from tensors_in(_contents(leaf), seen | {id(leaf)})  # objects may refer to each other


def _contents(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return list(value.values()) if isinstance(value, Mapping) else list(getattr(value, "__dict__", {}).values())


def inside_backward() -> bool:
    """Whether autograd is running a backward pass in this thread: then a forward pass is a checkpoint's second one."""
    return torch._C._current_graph_task_id() != -1


def refuse_what_is_reduced_already(argument: str, parameters: Iterable[nn.Parameter]) -> None:
    """ValueError where another strategy reduces one of these gradients already: two of them would do it twice."""
    for parameter in parameters:
        if getattr(parameter, "picolib_shard", False):  # also: no rank may take another one's part for its own
            raise ValueError(f"{argument} must be plain, but fully_shard has sharded it: use one of the two.")
        owner = who_reduces(parameter)
        if owner is not None:
            raise ValueError(
                f"{argument} must be plain, but {owner} reduces its gradients already: use one of the two."
            )


def who_reduces(parameter: torch.Tensor) -> str | None:
    """The strategy that watches a parameter's gradient."""
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        if isinstance(hook, GradientHook) and hook.strategy() is not None:
            return hook.owner
    return None


def refuse_sparse(gradient: torch.Tensor, name: str) -> None:
    """RuntimeError for a gradient that is no block of memory."""
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"{name} has a sparse gradient, which can't travel with the others: use nn.Embedding(..., sparse=False)."
        )
