"""A linear layer y = x·Aᵀ + b, cut over a group by the columns or by the rows of Megatron's A (there x·A).

    columns    A = [A₁ A₂]     every rank has all of x and computes its part of y; nothing is sent forward
    rows       A = [A₁; A₂]    every rank has a part of x and computes a summand of y; the sum is one all-reduce

Columns first, then rows: what comes out of the one is cut just as the other takes it in, and whatever stands between
may be non-linear, since it works on each number by itself (Shoeybi et al. 2019, "Megatron-LM", section 3).

First weights are drawn whole, as nn.Linear draws them, and cut: they do not depend on the group's size, and ranks that
draw from equal streams still do so afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from picolib.comm import functional
from picolib.parallel.full_state import own_part
from picolib.parallel.sequence import gather_tokens, reduce_scatter_tokens, sum_gradient_over
from picolib.parallel.spec import HasGroup, Shard, ShardSpec, rows_of, set_spec, spec_of
from picolib.parallel.tensor import overlap as overlapped


class _Cut(HasGroup, nn.Linear):
    """A linear layer of which this rank holds `first` to `last - 1` of dimension `cut` of the weight."""

    cut: int

    def __init__(self, in_features: int, out_features: int, bias: bool, group: Any) -> None:
        whole = torch.Size([out_features, in_features])
        part = list(whole)
        first, last = rows_of(whole[self.cut], dist.get_world_size(group), dist.get_rank(group))
        part[self.cut] = last - first
        super().__init__(part[1], part[0], bias, device="meta")  # draws no random numbers
        self.group, self.first, self.last = group, first, last
        set_spec(self, "weight", ShardSpec("weight", whole, ((group, Shard(self.cut)),)))

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, group: Any = None, **options: Any) -> Any:
        """This rank's part of a whole layer, as copies of its numbers.

        Raises:
            ValueError: the layer has been cut already.
        """
        if isinstance(linear, _Cut):
            raise ValueError(f"linear must be whole, but this {type(linear).__name__} has been cut already.")
        with torch.device("meta"):
            part = cls(linear.in_features, linear.out_features, linear.bias is not None, group=group, **options)
        take_part(part, linear)
        return part


def take_part(part: nn.Module, whole: nn.Module) -> None:
    """This rank's part of every parameter of `whole`, as copies; of one on the meta device, one on the meta device."""
    for name, parameter in whole.named_parameters():
        numbers = own_part(parameter.detach(), spec_of(part, name)).clone(memory_format=torch.contiguous_format)
        setattr(part, name, nn.Parameter(numbers, requires_grad=parameter.requires_grad))


class ColumnParallelLinear(_Cut):
    """y = x·Aᵀ + b with the output features cut: [..., in_features] on all ranks -> [..., this rank's out_features].

    Args:
        in_features, out_features, bias: of the whole layer. Cut as torch.chunk does.
        group: None means all ranks.
        gather_output: return all out_features on every rank (one all-gather).
        copy_input: the input is the same on all ranks, and its gradient must be summed over them (f). False where
            several layers share an input and f has been applied to it once.
        sequence_parallel: the input holds this rank's tokens only: gather them first, and reduce-scatter its gradient.
        overlap: communicate beside the matrix products, with the same values: see `overlap.py`.
        regather: with `sequence_parallel`, keep this rank's tokens only for backward, and gather the others again
            there: 1/t of the memory for one all-gather more (Korthikanti et al. 2022, section 4.2.2).
        algorithm: of the collectives, one of `picolib.comm.algorithms`. Where overlapping cuts them into steps: a ring.
    """

    cut = 0

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Any = None,
        gather_output: bool = False,
        copy_input: bool = True,
        sequence_parallel: bool = False,
        overlap: bool = False,
        regather: bool = False,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features, bias, group)
        self.whole_features, self.overlap, self.algorithm = out_features, overlap, algorithm
        self.regather = regather and sequence_parallel
        self.computed: torch.Tensor | None = None  # the output, where the block has computed it with its neighbours'
        self.gather_output, self.copy_input, self.sequence_parallel = gather_output, copy_input, sequence_parallel
        if bias:
            set_spec(self, "bias", ShardSpec("bias", torch.Size([out_features]), ((group, Shard(0)),)))
        take_part(self, nn.Linear(in_features, out_features, bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's columns of the output."""
        how = {"group": self.group, "algorithm": self.algorithm}
        if self.computed is not None:
            y, self.computed = self.computed, None
        elif self.regather or (self.overlap and (self.sequence_parallel or self.copy_input)):
            kind = {"sequence_parallel": self.sequence_parallel, "regather": self.regather}
            (y,) = overlapped.columns(x, [self], **kind, **how)
        else:
            if self.sequence_parallel:
                x = gather_tokens(x, **how)
            elif self.copy_input:
                x = functional.copy_to_group(x, **how)
            y = F.linear(x, self.weight, self.bias)
        return functional.gather_from_group(y, -1, full_size=self.whole_features, **how) if self.gather_output else y


class RowParallelLinear(_Cut):
    """y = x·Aᵀ + b with the input features cut: [..., this rank's in_features] -> [..., out_features] on all ranks.

    The bias is whole on every rank, and added once, after the sum: inside it would count once a rank.

    Args:
        in_features, out_features, bias: of the whole layer. Cut as torch.chunk does.
        group: None means all ranks.
        input_is_parallel: the input has this rank's features only. False: it is whole, and cut here.
        sequence_parallel: return this rank's tokens only (a reduce-scatter in place of the all-reduce).
        overlap: with `sequence_parallel`, multiply one block of tokens while the sum of another travels.
        algorithm: of the collectives, as in ColumnParallelLinear.
    """

    cut = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Any = None,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        overlap: bool = False,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features, bias, group)
        self.input_is_parallel, self.sequence_parallel = input_is_parallel, sequence_parallel
        self.overlap, self.algorithm = overlap, algorithm
        if bias and sequence_parallel:
            sum_gradient_over(self, "bias", group)
        take_part(self, nn.Linear(in_features, out_features, bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The whole output, on every rank (or this rank's tokens of it)."""
        whole = spec_of(self, "weight").shape[1]
        if x.shape[-1] != (expected := self.in_features if self.input_is_parallel else whole):
            raise ValueError(
                f"The input must have {expected} features where input_is_parallel={self.input_is_parallel}, "
                f"got {x.shape[-1]}."
            )
        how = {"group": self.group, "algorithm": self.algorithm}
        if not self.input_is_parallel:
            x = functional.scatter_to_group(x, -1, **how)
        if self.sequence_parallel and self.overlap:
            y = overlapped.rows(x, self.weight, group=self.group)
        elif self.sequence_parallel:
            y = reduce_scatter_tokens(F.linear(x, self.weight), **how)
        else:
            y = functional.reduce_from_group(F.linear(x, self.weight), **how)
        return y if self.bias is None else y + self.bias
