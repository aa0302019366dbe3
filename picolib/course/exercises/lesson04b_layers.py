"""The layers of exercises 4.3 and 4.5, whose weights are in shards over the ranks.

What a layer computes does not matter here. The layers that the learner's function calls note which weight they were
given, and how many bytes of gathered weights are alive then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.course import digits, observe
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04b_watch import Alive

WIDTH = 4  # numbers of an activation; a rank's part of a layer has a multiple of it
PARTS = (8000, 12000, 16000, 10000, 14000)  # numbers of a part, of layers that differ
PATIENCE_LEFT = 0.05  # seconds, for each layer


def shards_of(world_size: int, seed: int, same: bool) -> list[list[torch.Tensor]]:
    """[rank][layer]: digits in 4 equal layers, or random numbers in 5 to 12 layers of different sizes."""
    random, count = generator(seed, world_size), 4 if same else 5 + seed % 8
    sizes = [24] * count if same else [PARTS[(seed + i) % len(PARTS)] for i in range(count)]
    if not same:
        return [[torch.randn(size, generator=random) / size**0.5 for size in sizes] for _ in range(world_size)]
    part = lambda rank, i: torch.full((sizes[i],), 10.0**rank + i * digits.PLACE, dtype=torch.float64)  # noqa: E731
    return [[part(rank, i) for i in range(count)] for rank in range(world_size)]


def wholes_of(own: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Each layer's whole weight."""
    return [torch.cat([rank[i] for rank in own]) for i in range(len(own[0]))]


def allowed(sizes: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
    """Bytes that may be alive: the largest group of layers, and half of the smallest layer for small change."""
    return max(sum(sizes[i] for i in group) for group in groups) + min(sizes) / 2


def whole_sizes(shards: Sequence[torch.Tensor], ranks: int) -> list[int]:
    """Bytes of each whole layer."""
    return [shard.nbytes * ranks for shard in shards]


class Layers:
    """The layers of a case on this rank: they compute, and note what they were given, and when."""

    def __init__(self, count: int, alive: Alive) -> None:
        self.count, self.alive, self.calls = count, alive, []

    def compute(self, number: int, weight: Any, x: torch.Tensor) -> torch.Tensor:
        """x plus the sum of the weight's rows, squashed: it depends on every number, and on the order of layers."""
        with self.alive.paused():
            self.alive.patience = max(self.alive.patience, PATIENCE_LEFT)
            bytes_alive, objects = self.alive.now(self.alive.limit), self.alive.objects(self.alive.limit)
            observe.note(f"begin {number}")
            kept = weight.detach().clone() if isinstance(weight, torch.Tensor) else weight
            self.calls.append({"layer": number, "weight": kept, "x": x.detach().clone(), "alive": bytes_alive,
                               "objects": objects})  # fmt: skip
            fits = isinstance(weight, torch.Tensor) and weight.numel() % WIDTH == 0 and x.numel() == WIDTH
            result = torch.tanh(x + weight.detach().reshape(-1, WIDTH).sum(0)) if fits else x.clone()
            observe.note(f"end {number}")
            return result
