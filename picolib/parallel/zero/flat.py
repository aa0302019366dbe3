"""A bucket of parameters in one flat buffer, cut into N equal parts, one a rank.

    flat buffer   | a a a a a a | a b b b c c | c c c c c . |      3 ranks, "." is padding
    owner           rank 0        rank 1        rank 2

A part begins and ends wherever it falls. What a rank owns is therefore a few *pieces*: pieces of parameters, each a
view into the buffer. The optimizer steps on the pieces; element-wise, so it does not mind where they were cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from picolib import comm
from picolib.parallel.missing import nobody_had, write_gradient


class Piece(NamedTuple):
    """Elements `start` to `stop` of a parameter (flattened), as a parameter of its own for the optimizer."""

    position: int
    start: int
    stop: int
    shard: nn.Parameter


class FlatBucket:
    """Some of the parameters (`positions` in the optimizer's list). Their `.data` become views into `flat`."""

    def __init__(
        self, number: int, positions: Sequence[int], parameters: Sequence[nn.Parameter], rank: int, size: int
    ) -> None:
        self.number, self.positions, self.rank, self.size = number, list(positions), rank, size
        self.parameters = [parameters[position] for position in positions]
        self.lengths = [p.numel() for p in self.parameters]
        self.part_length = -(-sum(self.lengths) // size)  # rounded up
        first = self.parameters[0]
        self.flat = torch.zeros(self.part_length * size, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters, self.views(self.flat), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.pieces = self._pieces_of(rank)
        self.lacking: set[int] = set()  # positions of parameters that had no gradient on this rank
        self.incoming: torch.Tensor | None = None  # the reduced part that is on its way
        self.work: Any = None

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A flat buffer seen as the bucket's parameters."""
        parts = flat[: sum(self.lengths)].split(self.lengths)
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part of a flat buffer."""
        return flat[self.rank * self.part_length : (self.rank + 1) * self.part_length]

    def spans_of(self, rank: int) -> list[tuple[int, int, int]]:
        """(place in the bucket, start, stop) of each piece that a rank owns, in order."""
        first, last, begin, found = rank * self.part_length, (rank + 1) * self.part_length, 0, []
        for place, length in enumerate(self.lengths):
            start, stop = max(first - begin, 0), max(min(last - begin, length), 0)
            if start < stop or (length == 0 and rank == 0):  # somebody must own what is empty
                found.append((place, start, stop))
            begin += length
        return found

    def _pieces_of(self, rank: int) -> list[Piece]:
        pieces, mine, begin = [], self.own(self.flat), 0
        for place, start, stop in self.spans_of(rank):
            shard = nn.Parameter(mine[begin : begin + stop - start])
            pieces.append(Piece(self.positions[place], start, stop, shard))
            begin += stop - start
        return pieces

    def moved(self) -> list[int]:
        """Positions of parameters that no longer live in the flat buffer, so that a step would not reach them."""
        pairs = zip(self.positions, self.parameters, self.views(self.flat), strict=True)
        return [i for i, p, view in pairs if p.data_ptr() != view.data_ptr() or p.dtype != view.dtype]

    @torch.no_grad()  # hooks run with gradients enabled under create_graph; the buffers must not join that graph
    def start_reduce_scatter(self, group: Any, algorithm: str) -> None:
        """Start to sum the ranks' gradients, each rank its part. A parameter without a gradient adds nothing."""
        gradients = torch.empty_like(self.flat)
        gradients[sum(self.lengths) :].zero_()
        self.lacking = {i for i, p in zip(self.positions, self.parameters, strict=True) if p.grad is None}
        for parameter, view in zip(self.parameters, self.views(gradients), strict=True):
            write_gradient(parameter.grad, view)
        self.incoming = self.flat.new_empty(self.part_length)
        self.work = comm.reduce_scatter_tensor(
            self.incoming, gradients, group=group, async_op=True, algorithm=algorithm
        )

    def take_in(self, divide_by: float) -> None:
        """Wait for the reduced part and add it to the gradients of the pieces, but not where nobody had one."""
        if self.work is None:
            return
        self.work.wait()
        lengths = [piece.stop - piece.start for piece in self.pieces]
        found = [
            (piece.shard, part)
            for piece, part in zip(self.pieces, self.incoming[: sum(lengths)].split(lengths), strict=True)
            if piece.position not in self.lacking or not nobody_had(part)
        ]
        if divide_by != 1:
            self.incoming.div_(divide_by)
        for shard, part in found:
            shard.grad = part if shard.grad is None else shard.grad.add_(part)
        self.work = self.incoming = None

    def start_all_gather(self, group: Any, algorithm: str) -> Any:
        """Start to tell everybody the own part of the parameters, and to hear theirs."""
        return comm.all_gather_into_tensor(self.flat, self.own(self.flat), group, async_op=True, algorithm=algorithm)
