"""What a run gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Run(Sequence):
    """A sequence of what each rank returned.

    Attributes:
        stdout: what each rank printed, one text per rank.
        seconds: from the moment when all ranks were ready to the last one's return.
        peak_memory: for each rank, resident bytes above its own start (indicative).
        trace: who sent how much to whom, and what was called how often.
    """

    results: list[Any]
    stdout: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_memory: list[int] = field(default_factory=list)
    trace: Any = None

    def __getitem__(self, rank: Any) -> Any:
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"Run({self.results!r})"
