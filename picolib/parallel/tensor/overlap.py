"""Communication beside matrix products ("async tensor parallelism"): the same numbers, with less waiting.

    backward of columns        g·W | all-reduce of the input's gradient ------> |
                                   | gᵀ·x, the weight's gradient, meanwhile     |

    sequence parallelism       all-gather, then x·Wᵀ: a ring; while a block is passed on, it is multiplied
                               y·W, then reduce-scatter: a ring; while a block's sum travels, the next is multiplied

The gathering and the scattering ring are each other's backward (Wang et al. 2023, "Overlap communication with dependent
computation via decomposition"). Matrix products bear the marks "input gradient", "weight gradient" and "block r".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from picolib import comm
from picolib.comm.fused import all_gather_and_use, make_and_reduce_scatter
from picolib.launch.marks import mark
from picolib.parallel.sequence import SEQUENCE

Tensors = Sequence[torch.Tensor]


def columns(
    x: torch.Tensor, layers: Sequence[nn.Linear], *, group: Any, sequence_parallel: bool, regather: bool = False,
    algorithm: str = "auto",
) -> list[torch.Tensor]:  # fmt: skip
    """What column-parallel layers make of one input, f or its all-gather included: one communication for all of them.

    x: [..., s, h] replicated, or [..., s/t, h] with `sequence_parallel`. Returns [..., s, this rank's features] each.
    `algorithm` is the all-reduce's; with `sequence_parallel` there are rings, and `regather` keeps this rank's tokens
    only for backward.
    """
    x, *weights = _in_one_dtype(x, *(layer.weight for layer in layers))
    if sequence_parallel:
        outputs = _GatheredColumns.apply(x, group, regather, *weights)
    else:
        outputs = _Columns.apply(x, {"group": group, "algorithm": algorithm}, *weights)
    return [y if m.bias is None else y + m.bias.to(y.dtype) for y, m in zip(outputs, layers, strict=True)]


def rows(x: torch.Tensor, weight: torch.Tensor, *, group: Any) -> torch.Tensor:
    """x·Wᵀ summed over the group and split by tokens: [..., s, this rank's features] -> [..., s/t, out_features].

    Raises:
        ValueError: the tokens do not divide.
    """
    size = dist.get_world_size(group)
    if x.shape[SEQUENCE] % size:
        raise ValueError(f"The input must have tokens that {size} ranks can share equally, got {x.shape[SEQUENCE]}.")
    return _ScatteredRows.apply(*_in_one_dtype(x, weight), group)


class _Columns(torch.autograd.Function):
    """[..., h] -> [..., features] for each weight. Incoming gradients: each rank's own columns'."""

    @staticmethod
    def forward(ctx, x, how, *weights):
        ctx.how = how
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        """The all-reduce of the input's gradient travels while the weights' gradients are computed."""
        x, *weights = ctx.saved_tensors
        dx = work = None
        if ctx.needs_input_grad[0]:
            with mark("input gradient"):
                dx = _sum_of_products(gradients, weights)
            work = comm.all_reduce(dx, **ctx.how, async_op=True, label="input gradient")
        found = _weight_gradients(gradients, x, ctx.needs_input_grad[2:])
        if work is not None:
            work.wait()
        return dx, None, *found


class _GatheredColumns(torch.autograd.Function):
    """[..., s/t, h] -> [..., s, features] for each weight."""

    @staticmethod
    def forward(ctx, x, group, regather, *weights):
        blocks, outputs = _gather_and_multiply(x, [weight.T for weight in weights], group)
        ctx.group, ctx.regather = group, regather
        ctx.save_for_backward(x if regather else blocks, *weights)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        kept, *weights = ctx.saved_tensors
        dx = _multiply_and_scatter(gradients, weights, ctx.group) if ctx.needs_input_grad[0] else None
        blocks = _gather_and_multiply(kept, [], ctx.group)[0] if ctx.regather else kept
        return dx, None, None, *_weight_gradients(gradients, _joined(blocks), ctx.needs_input_grad[3:])


class _ScatteredRows(torch.autograd.Function):
    """[..., s, features] -> [..., s/t, out]."""

    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.group = group
        ctx.save_for_backward(x, weight)
        return _multiply_and_scatter([x], [weight.T], group)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        blocks, (dx,) = _gather_and_multiply(gradient, [weight], ctx.group)
        (dw,) = _weight_gradients([_joined(blocks)], x, ctx.needs_input_grad[1:2])
        return dx, dw, None


def _gather_and_multiply(x: torch.Tensor, matrices: Tensors, group: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All ranks' x as [t, ..., s/t, k], and their products [..., s, n] with each matrix [k, n]."""
    blocks = x.new_empty(dist.get_world_size(group), *x.shape)
    products = [[None] * len(blocks) for _ in matrices]

    def use(rank: int) -> None:
        with mark(f"block {rank}"):
            for product, matrix in zip(products, matrices, strict=True):
                product[rank] = blocks[rank] @ matrix

    all_gather_and_use(blocks, x, use, group=group, label="input of columns")
    return blocks, [torch.cat(product, SEQUENCE) for product in products]


def _multiply_and_scatter(inputs: Tensors, matrices: Tensors, group: Any) -> torch.Tensor:
    """Σ input [..., s, k] · matrix [k, n], summed over the group too: this rank's tokens of it, [..., s/t, n]."""
    size = dist.get_world_size(group)
    cut = [x.chunk(size, SEQUENCE) for x in inputs]
    blocks = inputs[0].new_empty(size, *cut[0][0].shape[:-1], matrices[0].shape[1])

    def make(rank: int) -> None:
        with mark(f"block {rank}"):
            blocks[rank] = _sum_of_products([pieces[rank] for pieces in cut], matrices)

    own = torch.empty_like(blocks[0])
    make_and_reduce_scatter(own, blocks, make, group=group, label="output of rows")
    return own


def _sum_of_products(inputs: Tensors, matrices: Tensors) -> torch.Tensor:
    """Σ input [..., k] · matrix [k, n], each with a k of its own."""
    total = inputs[0] @ matrices[0]
    for x, matrix in zip(inputs[1:], matrices[1:], strict=True):
        total += x @ matrix
    return total


def _weight_gradients(gradients: Tensors, x: torch.Tensor, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    """gᵀ·x [features, h] for each g [..., features], over all tokens of x [..., h]; None where it is not wanted.

    Collectives under way get a look in between.
    """
    found: list[torch.Tensor | None] = []
    for gradient, is_wanted in zip(gradients, wanted, strict=True):
        with mark("weight gradient"):
            found.append(_vectors(gradient).T @ _vectors(x) if is_wanted else None)
        comm.poll()
    return found


def _vectors(x: torch.Tensor) -> torch.Tensor:
    """[..., features] -> [all tokens, features]."""
    return torch.atleast_2d(x).flatten(0, -2)


def _joined(blocks: torch.Tensor) -> torch.Tensor:
    """[t, ..., s/t, h] -> [..., s, h]."""
    return torch.cat(list(blocks), SEQUENCE)


def _in_one_dtype(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Under autocast its dtype, which it would otherwise choose for the forward pass alone."""
    kind = tensors[0].device.type
    return [t.to(torch.get_autocast_dtype(kind)) for t in tensors] if torch.is_autocast_enabled(kind) else list(tensors)
