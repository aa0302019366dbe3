"""Real text without a download: what `help("topics")` prints, as bytes, in batches that any number of ranks share."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import torch

from picolib.model.seeds import named_generator

VOCAB_SIZE = 256  # one token for each value of a byte


def load_text(path: str | Path | None = None) -> str:
    """The text to train on: the file `path` (UTF-8), or Python's own manual pages (about 465,000 characters).

    The manual pages differ a little between Python versions, so losses do too.
    """
    if path is not None:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return "\n".join(topics.values())


def encode(text: str) -> torch.Tensor:
    """Text -> its UTF-8 bytes as token ids: int64 [number of bytes], values 0-255."""
    return torch.tensor(list(text.encode("utf-8")), dtype=torch.long)


def decode(tokens: torch.Tensor) -> str:
    """Token ids [n] -> text. Bytes that are not UTF-8 (a fresh model writes many) become the sign �."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")


def split_tokens(tokens: torch.Tensor, validation: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """(training tokens, validation tokens): the last `validation` share of the text is never trained on."""
    if not 0 <= validation < 1:
        raise ValueError(f"validation={validation} must be a share from 0 to below 1, for example 0.1.")
    cut = len(tokens) - int(len(tokens) * validation)
    return tokens[:cut], tokens[cut:]


class Batch(NamedTuple):
    """Token ids: `targets[b, s]` is the token that follows `inputs[b, s]` in the text."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def shard(self, rank: int, n: int, dim: int = 0) -> Batch:
        """Rank `rank`'s share of n: whole sequences (dim=0), or a stretch of every sequence (dim=1).

        The n shares in rank order make up the batch. Their sizes differ by one at most when n does not divide it.
        """
        if not 0 <= rank < n:
            raise ValueError(f"rank={rank} must be from 0 to {n - 1}, because there are n={n} shares.")
        return Batch(*(x.tensor_split(n, dim)[rank] for x in self))


class TextBatches:
    """Random stretches of a text, the same for every way of splitting them: the batch depends on (seed, step) only.

    `batches(step)` is the global batch, `batches(step, rank, world_size)` one rank's share of it.
    """

    def __init__(self, tokens: torch.Tensor, batch_size: int, sequence_length: int, seed: int = 0) -> None:
        if len(tokens) <= sequence_length:
            raise ValueError(
                f"sequence_length={sequence_length} needs a text of at least {sequence_length + 1} tokens; "
                f"this one has {len(tokens)}."
            )
        self.tokens, self.seed = tokens, seed
        self.batch_size, self.sequence_length = batch_size, sequence_length

    def __call__(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Step `step`'s batch ([batch_size, sequence_length] twice), or the share of `rank` among `world_size`."""
        generator = named_generator(self.seed, f"batch {step}")
        starts = torch.randint(len(self.tokens) - self.sequence_length, (self.batch_size, 1), generator=generator)
        rows = self.tokens[starts + torch.arange(self.sequence_length + 1)]
        return Batch(rows[:, :-1], rows[:, 1:]).shard(rank, world_size)
