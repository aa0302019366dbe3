"""Which bytes a tensor occupies, and whether they have changed.

A tensor that is being sent must not change before the send is complete. `_version` can't tell (views
share it, so every chunked ring would be accused; fused optimizers and c10d's own writes don't bump
it), hence the exact byte range and a sample of its contents.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

_EDGE = 256  # bytes looked at in full at both ends
_SAMPLES = 256  # words looked at in between


class Range(NamedTuple):
    """Bytes `start` to `end` (exclusive) of this process's memory (or of a device's)."""

    start: int
    end: int
    device: str

    def overlaps(self, other: Range) -> bool:
        """Whether the two share a byte."""
        return self.start < other.end and other.start < self.end and self.device == other.device


def range_of(tensor: torch.Tensor) -> Range:
    """From the tensor's first to its last byte (a strided view counts with its gaps)."""
    if tensor.numel() == 0 or tensor.layout != torch.strided:
        return Range(0, 0, "")
    start, size = tensor.data_ptr(), tensor.element_size()
    if tensor.is_contiguous():
        return Range(start, start + size * tensor.numel(), str(tensor.device))
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return Range(start, start + size * (span + 1), str(tensor.device))


def fingerprint(where: Range) -> bytes | None:
    """A sample of the bytes; None for memory that the processor can't read."""
    size = where.end - where.start
    if where.device != "cpu":
        return None
    if size <= 2 * _EDGE + 8 * _SAMPLES:
        return ctypes.string_at(where.start, size)
    words = (size - 2 * _EDGE) // 8
    middle = memoryview((ctypes.c_uint64 * words).from_address(where.start + _EDGE))
    sampled = middle[:: max(1, words // _SAMPLES)].tobytes()
    return ctypes.string_at(where.start, _EDGE) + sampled + ctypes.string_at(where.end - _EDGE, _EDGE)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill the tensor's range without gaps or repeats (a transpose does, a column doesn't)."""
    if tensor.is_contiguous() or tensor.layout != torch.strided:
        return True
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def sharing(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Positions of two tensors in the list that share memory, or None."""
    ranges = sorted((range_of(t), i) for i, t in enumerate(tensors) if t.numel())
    for (a, i), (b, j) in zip(ranges, ranges[1:], strict=False):
        if a.overlaps(b):
            return min(i, j), max(i, j)
    return None
