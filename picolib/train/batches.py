"""Who reads which tokens: a global batch, cut into the same rows for any number of ranks and micro-batches.

    global batch (a function of seed and step)  ->  one share a rank  ->  micro-batches, one a backward pass

The batch is drawn first and cut afterwards. So it holds the same tokens for every world size and every accumulation,
and no rank needs to ask another what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from picolib.model import Batch
from picolib.model.loss import IGNORE
from picolib.model.seeds import named_generator


def micro_batches(batch: Batch, rank: int = 0, world_size: int = 1, accumulation: int = 1) -> list[Batch]:
    """Rank `rank`'s rows of the global `batch` [b, s], as `accumulation` micro-batches in the order of the rows.

    Every rank gets `accumulation` of them, because every rank must take part in every backward pass. Where the rows
    don't suffice, some micro-batches have none: their loss is 0, and so are their gradients.
    """
    if accumulation < 1:
        raise ValueError(f"accumulation={accumulation} must be at least 1, the number of micro-batches of a step.")
    share = batch.shard(rank, world_size)
    return [share.shard(number, accumulation) for number in range(accumulation)]


def pad(documents: Sequence[torch.Tensor]) -> Batch:
    """Token sequences of any lengths as one batch, as wide as the longest needs: -> [documents, longest - 1] twice.

    Where a document has ended, the input is 0 and the target -100, which no loss counts. A document of one token (or
    none) has nothing to predict, so all its targets are -100.
    """
    longest = max([2, *map(len, documents)])
    inputs = torch.zeros(len(documents), longest - 1, dtype=torch.long)
    targets = torch.full_like(inputs, IGNORE)
    for row, document in enumerate(documents):
        steps = max(len(document) - 1, 0)
        inputs[row, :steps] = document[:steps]
        targets[row, :steps] = document[1:]
    return Batch(inputs, targets)


class DocumentBatches:
    """Ragged batches: each row is one document, drawn at random. `batches(step)` depends on (seed, step) only.

    A document longer than sequence_length + 1 tokens is cut to a stretch of that length, at a random place.
    """

    def __init__(self, documents: Sequence[torch.Tensor], batch_size: int, sequence_length: int, seed: int = 0) -> None:
        if not len(documents):
            raise ValueError("documents is empty; give at least one tensor of token ids.")
        if sequence_length < 1:
            raise ValueError(f"sequence_length={sequence_length} must be at least 1 token.")
        self.documents, self.seed = documents, seed
        self.batch_size, self.sequence_length = batch_size, sequence_length

    def __call__(self, step: int) -> Batch:
        """Step `step`'s global batch: [batch_size, s] twice, where s is at most sequence_length."""
        generator = named_generator(self.seed, f"batch {step}")
        chosen = torch.randint(len(self.documents), (self.batch_size,), generator=generator)
        return pad([self._stretch(self.documents[index], generator) for index in chosen.tolist()])

    def _stretch(self, document: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        spare = len(document) - (self.sequence_length + 1)
        start = int(torch.randint(spare + 1, (), generator=generator)) if spare > 0 else 0
        return document[start : start + self.sequence_length + 1]
