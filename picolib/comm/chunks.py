"""How a vector is cut into pieces: one a rank, as even as possible, the first ones a single element longer."""

from __future__ import annotations

import torch


def chunk_sizes(length: int, parts: int) -> list[int]:
    """Lengths of `parts` pieces of a vector: 10 elements in 4 parts are 3, 3, 2, 2."""
    shortest, longer = divmod(length, parts)
    return [shortest + 1] * longer + [shortest] * (parts - longer)


def split(vector: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Views of a one-dimensional tensor, one per part, without copying."""
    return list(vector.split(chunk_sizes(vector.numel(), parts)))


def segments(vector: torch.Tensor, at_most: int) -> list[torch.Tensor]:
    """Views of at most `at_most` bytes each; an empty vector has no segments."""
    if vector.numel() == 0:
        return []
    return list(vector.split(max(1, at_most // vector.element_size())))
