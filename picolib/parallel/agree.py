"""Do all ranks mean the same? Asked before a strategy sends anything that depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from picolib import comm
from picolib.comm.groups import resolve


def all_agree(name: str, lines: Sequence[str], group: Any = None) -> None:
    """Compare a description, line by line, over the ranks of a group. Two small collectives more when it differs.

    Raises:
        ValueError: the same sentence on all ranks; it names the first line that differs, and the rank.
    """
    text = "\n".join(lines).encode()
    digest = torch.frombuffer(bytearray(hashlib.sha256(text).digest()[:8]), dtype=torch.int64)
    if len({int(other) for other in _gathered(digest, group)}) == 1:
        return
    length = int(max(_gathered(torch.tensor([len(text)]), group)))
    padded = torch.frombuffer(bytearray(text.ljust(length)), dtype=torch.uint8)
    told = [bytes(other.tolist()).decode().rstrip().split("\n") for other in _gathered(padded, group)]
    ranks = resolve(group)[1].ranks
    rank = next(r for r in range(len(told)) if told[r] != told[0])
    here, there = next(
        pair for pair in zip(_endless(told[0]), _endless(told[rank]), strict=False) if pair[0] != pair[1]
    )
    raise ValueError(
        f"{name} must be the same on all ranks, but rank {ranks[0]} has {here} and rank {ranks[rank]} has {there}."
    )


def _gathered(vector: torch.Tensor, group: Any) -> list[torch.Tensor]:
    everyone = [torch.empty_like(vector) for _ in range(resolve(group)[1].size)]
    comm.all_gather(everyone, vector, group)
    return everyone


def _endless(lines: list[str]) -> Any:
    yield from lines
    while True:
        yield "nothing more"
