"""Checks and preparations that several collectives of the front door share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.comm.call import Call
from picolib.comm.chunks import adjacent, split

Tensors = list[torch.Tensor]


def nbytes(*tensors: torch.Tensor) -> int:
    """The size of tensors in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def exchange(call: Call, outgoing: Any, incoming: Any, told: Tensors, even: bool = False) -> Any:
    """Start an all-to-all on its blocks; what a rank sends to itself must be what it expects."""
    if even:
        return call.start(told, outgoing, incoming)
    splits = [t.numel() for t in outgoing], [t.numel() for t in incoming]
    me = call.members.rank
    if splits[0][me] != splits[1][me]:
        call.complain(
            f"rank {call.members.ranks[me]} sends itself {splits[0][me]} elements, but expects {splits[1][me]}"
        )
    return call.start(told, outgoing, incoming, strict_shapes=False, splits=splits)


def settle_uneven(call: Call, tensors: Tensors, algorithm: str, able: tuple[str, ...]) -> bool:
    """Choose the algorithm for a list of one tensor per rank; whether all have one size."""
    even = len({t.numel() for t in tensors}) == 1
    if not even and algorithm not in ("auto", "native", *able):
        call.complain(f"algorithm {algorithm!r} needs tensors of one size: use {' or '.join(able)}")
    call.choose(algorithm, tensors[0].device, nbytes(*tensors), fixed=None if even else able[0])
    return even


def check_multiple(call: Call, whole: torch.Tensor, whole_name: str, part: torch.Tensor, part_name: str) -> None:
    """The whole has room for one part per rank."""
    n = call.members.size
    if whole.numel() != n * part.numel():
        call.complain(
            f"{whole_name} must have {n} times the {part.numel()} elements of {part_name}, one part per rank, "
            f"got {whole.numel()}"
        )


def check_one_size(call: Call, algorithm: str, tensors: Tensors) -> None:
    """All tensors have one size, as the algorithm needs."""
    sizes = sorted({t.numel() for t in tensors})
    if len(sizes) > 1:
        call.complain(f"algorithm {algorithm!r} needs tensors of one size, got {sizes}: use 'direct' or 'pairwise'")


def check_rooted_list(call: Call, root: int, tensors: Tensors | None, argument: str, tensor: torch.Tensor) -> None:
    """The root, and only the root, gives a list of tensors like its own."""
    if call.members.rank != root:
        if tensors:
            call.complain(f"{argument} must be given on rank {call.members.ranks[root]} only")
        return
    call.check_list(tensors, argument)
    call.check_tensors([tensor, *tensors], f"tensor and {argument}")
    if any(t.numel() != tensor.numel() for t in tensors):
        call.complain(f"{argument} must hold tensors of {tensor.numel()} elements, got {[t.numel() for t in tensors]}")


def part_sizes(call: Call, tensor: torch.Tensor, rows: Sequence[int] | None, argument: str) -> list[int]:
    """Elements of each rank's part of a tensor that is split along dimension 0."""
    n, length = call.members.size, tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if length % n:
            call.complain(f"{argument} has {length} rows, not a multiple of {n} ranks: give {argument}_split_sizes")
        return [tensor.numel() // n] * n
    if len(rows) != n or sum(rows) != length:
        call.complain(f"{argument}_split_sizes must be {n} numbers that add up to {length} rows, got {list(rows)}")
    return [r * (tensor.numel() // length if length else 0) for r in rows]


def blocks_of(call: Call, tensors: Tensors) -> Tensors:
    """Where the blocks are gathered: the tensors' own memory, but in one piece where the algorithm needs that."""
    blocks = [call.writes(t) for t in tensors]
    if call.algorithm not in ("naive", "recursive_doubling") or adjacent(blocks):
        return blocks
    together = split(blocks[0].new_empty(len(blocks) * blocks[0].numel()), len(blocks))
    call.moves_back[:0] = zip(blocks, together, strict=True)
    return together
