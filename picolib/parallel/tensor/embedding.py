"""The vocabulary cut over a group: the table of embeddings by rows, and the output layer that gives the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from picolib.comm import functional
from picolib.parallel.sequence import reduce_scatter_tokens
from picolib.parallel.spec import HasGroup, Shard, ShardSpec, rows_of, set_spec
from picolib.parallel.tensor.linear import ColumnParallelLinear, take_part
from picolib.parallel.tensor.loss import refuse_outside


class VocabParallelEmbedding(HasGroup, nn.Embedding):
    """Token ids [...] -> vectors [..., embedding_dim]. Each rank looks up its own rows and gives zeros for the others.

    The sum over the group (one all-reduce) is then the vector, since every token has one owner. With
    `sequence_parallel` each rank keeps its tokens only (a reduce-scatter). The row `padding_idx` gets no gradient.
    `algorithm` is that of the collective, one of `picolib.comm.algorithms`.

    Raises:
        IndexError: from forward, a token that is not in the vocabulary (told on CPU, as torch does).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        group: Any = None,
        sequence_parallel: bool = False,
        padding_idx: int | None = None,
        algorithm: str = "auto",
    ) -> None:
        first, last = rows_of(num_embeddings, dist.get_world_size(group), dist.get_rank(group))
        super().__init__(max(last - first, 1), embedding_dim, device="meta")  # nn.Embedding has no table without rows
        self.group, self.first, self.last, self.sequence_parallel = group, first, last, sequence_parallel
        self.whole_embeddings, self.algorithm = num_embeddings, algorithm
        if padding_idx is not None and first <= padding_idx < last:
            self.padding_idx = padding_idx - first  # among this rank's rows
        shape = torch.Size([num_embeddings, embedding_dim])
        set_spec(self, "weight", ShardSpec("weight", shape, ((group, Shard(0)),)))
        take_part(self, nn.Embedding(num_embeddings, embedding_dim, padding_idx))

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, *, group: Any = None, **options: Any) -> VocabParallelEmbedding:
        """This rank's rows of a whole table, as copies.

        Raises:
            ValueError: the table has an option that would need to know of the other ranks' rows.
        """
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(embedding, option):
                raise ValueError(f"embedding must not have {option}={getattr(embedding, option)!r} to be cut by rows.")
        options.setdefault("padding_idx", embedding.padding_idx)
        with torch.device("meta"):
            part = cls(embedding.num_embeddings, embedding.embedding_dim, group=group, **options)
        take_part(part, embedding)
        return part

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens' vectors, on every rank."""
        refuse_outside(tokens, self.whole_embeddings, "tokens")
        if self.sequence_parallel and tokens.shape[-1] % dist.get_world_size(self.group):
            raise ValueError(
                f"tokens must have a length that {dist.get_world_size(self.group)} ranks can share equally with "
                f"sequence_parallel, got {tokens.shape[-1]}."
            )
        elsewhere = (tokens < self.first) | (tokens >= self.last)
        if len(self.weight):
            rows = (tokens - self.first).masked_fill(elsewhere, 0)
            found = F.embedding(rows, self.weight, self.padding_idx)
            found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        else:  # no row here; the graph goes on all the same, since the backward pass communicates with every rank
            found = self.weight.sum() * self.weight.new_zeros(*tokens.shape, self.weight.shape[1])
        leave = reduce_scatter_tokens if self.sequence_parallel else functional.reduce_from_group
        return leave(found, group=self.group, algorithm=self.algorithm)


class VocabParallelLinear(ColumnParallelLinear):
    """The output layer: [..., hidden] -> this rank's logits [..., ceil(vocabulary / t)].

    Where the vocabulary does not divide, the last ranks' missing logits are -inf: they take no part in any softmax.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's logits, as many on every rank."""
        logits = super().forward(x)
        missing = rows_of(self.whole_features, dist.get_world_size(self.group), 0)[1] - (self.last - self.first)
        return logits if self.gather_output or not missing else F.pad(logits, (0, missing), value=float("-inf"))
