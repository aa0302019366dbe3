"""How a vector is cut into pieces: one a rank, as even as possible, the first ones a single element longer."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def chunk_sizes(length: int, parts: int) -> list[int]:
    """Lengths of `parts` pieces of a vector: 10 elements in 4 parts are 3, 3, 2, 2."""
    shortest, longer = divmod(length, parts)
    return [shortest + 1] * longer + [shortest] * (parts - longer)


def split(vector: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Views of a one-dimensional tensor, one per part, without copying."""
    return list(torch.split_with_sizes(vector, chunk_sizes(vector.numel(), parts)))


def segment_sizes(length: int, itemsize: int, at_most: int) -> list[int]:
    """Lengths of the pieces of at most `at_most` bytes that a vector is cut into; an empty one has none."""
    whole, rest = divmod(length, max(1, at_most // itemsize))
    return [max(1, at_most // itemsize)] * whole + [rest] * (rest > 0)


def segments(vector: torch.Tensor, at_most: int) -> list[torch.Tensor]:
    """Views of at most `at_most` bytes each, without copying."""
    return list(vector.split(segment_sizes(vector.numel(), vector.element_size(), at_most)))


def span(chunks: Sequence[torch.Tensor], first: int, end: int) -> torch.Tensor:
    """One view over chunks `first` to `end - 1`, which lie next to each other in memory."""
    length = sum(chunk.numel() for chunk in chunks[first:end])
    return chunks[first].as_strided((length,), (1,))


def adjacent(chunks: Sequence[torch.Tensor]) -> bool:
    """Whether the chunks lie next to each other in one piece of memory, in order."""
    expected = chunks[0].data_ptr()
    storage = chunks[0].untyped_storage().data_ptr()
    for chunk in chunks:
        if chunk.data_ptr() != expected or chunk.untyped_storage().data_ptr() != storage:
            return False
        expected += chunk.numel() * chunk.element_size()
    return True
