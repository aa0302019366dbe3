"""Differentiable collectives: communication inside a model, with the right gradient.

Each of them is a linear map, so its backward is the adjoint (transpose) of its forward, and the two stand next to
each other. What the adjoint is depends on what is differentiated:

* `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`: the sum of all ranks' losses. Every rank's input is
  a variable of its own, and the gradient that arrives on a rank is that of its own output.
* `copy_to_group`, `reduce_from_group`, `gather_from_group`, `scatter_to_group`: one loss, which every rank of the
  group computes alike ("replicated"), as in Megatron's tensor parallelism. It counts once, not once a rank.

A backward communicates too, so every rank of the group must reach it, in the same order. A rank whose loss does
not need the result still has to touch it (`loss + 0 * output.sum()`), or the others wait for it.

All take any `dim`, any `group` (None means the world), and an `algorithm` that the collective and its adjoint both
have. Where a dimension does not divide by the group's size, pieces are cut as `torch.chunk` cuts them (6 over 5
ranks is 2, 2, 2, 0, 0) and padded on the wire. They may be used while asynchronous collectives are in flight on the
same group: a synchronous call goes behind those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from picolib.comm import api
from picolib.comm.groups import resolve

Map = Callable[[torch.Tensor], torch.Tensor]
ProcessGroup = dist.ProcessGroup | None


class _Linear(torch.autograd.Function):
    """A linear map and its adjoint, given as two functions. Nothing has to be saved for backward."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor, forward: Map, backward: Map) -> torch.Tensor:
        ctx.adjoint = backward
        return forward(tensor)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.adjoint(gradient), None, None


# --- The sum of all ranks' losses is differentiated -----------------------------------------------------------------


def all_reduce(tensor: torch.Tensor, *, group: ProcessGroup = None, algorithm: str = "auto") -> torch.Tensor:
    """Every rank gets the sum of all ranks' tensors. Forward: sum. Backward: sum.

    Incoming gradient: each rank's own. Rank r's input is part of every rank's output with factor 1, so its
    gradient is the sum of the gradients of all outputs.
    """

    def forward(x):
        return _sum(x, group, algorithm)

    def backward(gradient):
        return all_reduce(gradient, group=group, algorithm=algorithm)

    return _Linear.apply(tensor, forward, backward)


def all_gather(
    tensor: torch.Tensor,
    dim: int = 0,
    *,
    full_size: int | None = None,
    group: ProcessGroup = None,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Every rank gets all ranks' tensors, joined along `dim`. Forward: gather. Backward: reduce-scatter.

    Incoming gradient: each rank's own, of the whole. Rank r's piece is part of every rank's output, so its
    gradient is the sum over ranks of the gradients of that piece. (g in Megatron's sequence parallelism.)

    `full_size` is the length of `dim` in the result, to be given where it does not divide by the group's size:
    each rank then holds its `torch.chunk` piece. Without it all ranks hold tensors of one shape.
    """

    def forward(x):
        return _gather(x, dim, full_size, group, algorithm)

    def backward(gradient):
        return reduce_scatter(gradient, dim, group=group, algorithm=algorithm)

    return _Linear.apply(tensor, forward, backward)


def reduce_scatter(
    tensor: torch.Tensor, dim: int = 0, *, group: ProcessGroup = None, algorithm: str = "auto"
) -> torch.Tensor:
    """Rank r gets piece r, along `dim`, of the sum of all ranks' tensors. Forward: sum and split. Backward: gather.

    Incoming gradient: each rank's own, of its piece. Piece r of every rank's input went into rank r's output with
    factor 1, so every rank's gradient is all pieces' gradients joined. (ḡ in Megatron's sequence parallelism.)
    """

    def forward(x):
        return _sum_and_split(x, dim, group, algorithm)

    def backward(gradient):
        return all_gather(gradient, dim, full_size=tensor_size, group=group, algorithm=algorithm)

    tensor_size = tensor.size(dim)
    return _Linear.apply(tensor, forward, backward)


def all_to_all(
    tensor: torch.Tensor,
    split_dim: int = 0,
    concat_dim: int | None = None,
    *,
    input_split_sizes: Sequence[int] | None = None,
    output_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup = None,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Piece j of `split_dim` goes to rank j; what arrives is joined along `concat_dim` in the order of ranks.

    Forward: exchange. Backward: exchange back. Incoming gradient: each rank's own. The collective only moves
    elements, and what undoes a permutation is its transpose: each element's gradient returns to where it came from.

    `concat_dim` is `split_dim` unless given. (1, 2) turns [batch, heads, sequence/n, ...] with all heads into
    [batch, heads/n, sequence, ...]: Ulysses' exchange. The sizes say how many rows of `split_dim` go to each rank,
    and how many rows of `concat_dim` come from each; without them pieces are torch.chunk's, and all ranks hold
    tensors of one shape.
    """
    _, members = resolve(group)
    split_dim = split_dim % tensor.dim()
    concat_dim = split_dim if concat_dim is None else concat_dim % tensor.dim()
    outgoing = list(input_split_sizes or chunk_lengths(tensor.size(split_dim), members.size))
    same_from_all = outgoing[members.rank] if split_dim == concat_dim else tensor.size(concat_dim)
    arriving = list(output_split_sizes or [same_from_all] * members.size)

    def forward(x):
        pieces = [piece.contiguous() for piece in x.split(outgoing, split_dim)]
        arrived = [_empty_piece(pieces[members.rank], concat_dim, length) for length in arriving]
        api.all_to_all(arrived, pieces, group=group, algorithm=algorithm)
        return torch.cat(arrived, concat_dim)

    def backward(gradient):
        back = {"input_split_sizes": arriving, "output_split_sizes": outgoing}
        return all_to_all(gradient, concat_dim, split_dim, **back, group=group, algorithm=algorithm)

    return _Linear.apply(tensor, forward, backward)


# --- One loss, computed alike on every rank, is differentiated ------------------------------------------------------


def copy_to_group(tensor: torch.Tensor, *, group: ProcessGroup = None, algorithm: str = "auto") -> torch.Tensor:
    """Megatron's f: where a replicated tensor enters a split layer. Forward: identity. Backward: sum.

    Incoming gradient: partial. Each rank's part of the layer uses the same tensor, and knows only its own share
    of the gradient; the shares add up.
    """

    def forward(x):
        return x.view_as(x)

    def backward(gradient):
        return reduce_from_group(gradient, group=group, algorithm=algorithm)

    return _Linear.apply(tensor, forward, backward)


def reduce_from_group(tensor: torch.Tensor, *, group: ProcessGroup = None, algorithm: str = "auto") -> torch.Tensor:
    """Megatron's g: where the partial results of a split layer become one. Forward: sum. Backward: identity.

    Incoming gradient: replicated. All ranks continue alike with the sum, to one loss, so each already has the
    sum's gradient; and each rank's share is in the sum with factor 1. Summing here again would count the loss
    once a rank: gradients n times too big.
    """

    def forward(x):
        return _sum(x, group, algorithm)

    def backward(gradient):
        return copy_to_group(gradient, group=group, algorithm=algorithm)

    return _Linear.apply(tensor, forward, backward)


def gather_from_group(
    tensor: torch.Tensor,
    dim: int = 0,
    *,
    full_size: int | None = None,
    group: ProcessGroup = None,
    algorithm: str = "auto",
) -> torch.Tensor:
    """The pieces of a split tensor become one replicated tensor. Forward: gather. Backward: own slice.

    Incoming gradient: replicated. Every rank has the whole tensor's gradient; the own piece's is a slice of it.
    `full_size` as in `all_gather`.
    """

    def forward(x):
        return _gather(x, dim, full_size, group, algorithm)

    def backward(gradient):
        return scatter_to_group(gradient, dim, group=group, algorithm=algorithm)

    return _Linear.apply(tensor, forward, backward)


def scatter_to_group(
    tensor: torch.Tensor, dim: int = 0, *, group: ProcessGroup = None, algorithm: str = "auto"
) -> torch.Tensor:
    """A replicated tensor is split: each rank keeps its slice along `dim`. Forward: own slice. Backward: gather.

    Nothing travels forward. Incoming gradient: that of the own slice; the replicated tensor's gradient is all of
    them joined, the same on every rank.
    """

    def forward(x):
        return _own_slice(x, dim, group)

    def backward(gradient):
        return gather_from_group(gradient, dim, full_size=tensor_size, group=group, algorithm=algorithm)

    tensor_size = tensor.size(dim)
    return _Linear.apply(tensor, forward, backward)


# --- The maps themselves, without gradients -------------------------------------------------------------------------


def chunk_lengths(length: int, parts: int) -> list[int]:
    """How `torch.chunk` cuts `length` rows, with the empty pieces it leaves out: 6 over 5 is [2, 2, 2, 0, 0]."""
    longest = -(-length // parts)
    return [min(longest, max(0, length - part * longest)) for part in range(parts)]


def _sum(tensor: torch.Tensor, group: ProcessGroup, algorithm: str) -> torch.Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    api.all_reduce(total, group=group, algorithm=algorithm)
    return total


def _gather(tensor, dim: int, full_size: int | None, group: ProcessGroup, algorithm: str) -> torch.Tensor:
    """All pieces joined along `dim`. torch.chunk leaves only the last rows out, so padding is all at the end."""
    _, members = resolve(group)
    rows = tensor.movedim(dim, 0)
    full_size = rows.size(0) * members.size if full_size is None else full_size
    lengths = chunk_lengths(full_size, members.size)
    if rows.size(0) != lengths[members.rank]:
        raise ValueError(
            f"full_size={full_size} over {members.size} ranks leaves {lengths[members.rank]} rows for rank "
            f"{members.rank}, but its tensor has {rows.size(0)} in dimension {dim}."
        )
    whole = rows.new_empty(lengths[0] * members.size, *rows.shape[1:])
    api.all_gather_into_tensor(whole, _padded(rows, lengths[0]), group=group, algorithm=algorithm)
    return whole[:full_size].movedim(0, dim).contiguous()


def _sum_and_split(tensor: torch.Tensor, dim: int, group: ProcessGroup, algorithm: str) -> torch.Tensor:
    _, members = resolve(group)
    rows = tensor.movedim(dim, 0)
    lengths = chunk_lengths(rows.size(0), members.size)
    own = rows.new_empty(lengths[0], *rows.shape[1:])
    api.reduce_scatter_tensor(own, _padded(rows, lengths[0] * members.size), group=group, algorithm=algorithm)
    return own[: lengths[members.rank]].movedim(0, dim).contiguous()


def _own_slice(tensor: torch.Tensor, dim: int, group: ProcessGroup) -> torch.Tensor:
    _, members = resolve(group)
    lengths = chunk_lengths(tensor.size(dim), members.size)
    return tensor.narrow(dim, sum(lengths[: members.rank]), lengths[members.rank]).clone()


def _padded(rows: torch.Tensor, length: int) -> torch.Tensor:
    """`rows`, contiguous, with zeros below it up to `length` rows."""
    if rows.size(0) == length:
        return rows.contiguous()
    return torch.cat([rows, rows.new_zeros(length - rows.size(0), *rows.shape[1:])])


def _empty_piece(like: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    return like.new_empty(*like.shape[:dim], length, *like.shape[dim + 1 :])
