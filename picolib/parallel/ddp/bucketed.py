"""Data parallelism, step 2: many gradients travel in one all-reduce, a bucket.

An all-reduce costs a time per message and a time per byte (alpha and beta of lesson 02B). The bytes stay the same;
buckets save messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib import comm


def assign_buckets(tensors: Sequence[torch.Tensor], cap_bytes: float) -> list[list[int]]:
    """Which tensors travel together: lists of positions, in the order in which the backward pass fills them.

    The backward pass comes to the last parameter first, so the tensors are taken in reverse order. A bucket is full as
    soon as it holds `cap_bytes` or more, and all its tensors have one dtype and device (Li et al. 2020, section 4.2;
    PyTorch's rule).

    >>> assign_buckets([torch.empty(10), torch.empty(10), torch.empty(30)], cap_bytes=60)
    [[2], [1, 0]]
    """
    full: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for position in reversed(range(len(tensors))):
        tensor = tensors[position]
        kind = tensor.dtype, tensor.device
        bucket, nbytes = filling.pop(kind, ([], 0))
        bucket.append(position)
        nbytes += tensor.numel() * tensor.element_size()
        if nbytes >= cap_bytes:
            full.append(bucket)
        else:
            filling[kind] = bucket, nbytes
    rest = [bucket for bucket, _ in filling.values()]
    return sorted(full + rest, key=lambda bucket: -bucket[0])


def average_in_buckets(parameters: Sequence[torch.Tensor], cap_bytes: float, group: Any = None) -> None:
    """One all-reduce for each bucket of gradients. Every parameter must have one."""
    for bucket in assign_buckets(parameters, cap_bytes):
        gradients = [parameters[position].grad for position in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        comm.all_reduce(flat, dist.ReduceOp.AVG, group)
        copy_back(flat, gradients)


def copy_back(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Cut a flat tensor up again, in the order in which it was put together."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
