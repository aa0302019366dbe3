"""Tensor parallelism: every matrix is cut over a group of ranks, and each token passes through all of them.

`linear` cuts by columns and by rows, `embedding` and `loss` cut the vocabulary, `llama` puts them into the model,
`overlap` communicates beside the products, `random` draws masks. Megatron's letters: f is `copy_to_group` (identity,
then sum), g is `reduce_from_group` (sum, then identity). With `picolib.parallel.sequence` they become an all-gather and
a reduce-scatter.
"""

from picolib.parallel.tensor.embedding import VocabParallelEmbedding, VocabParallelLinear
from picolib.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
from picolib.parallel.tensor.llama import parallelize
from picolib.parallel.tensor.loss import vocab_parallel_cross_entropy
from picolib.parallel.tensor.random import ShardedDropout, sharded_region

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "ShardedDropout",
    "VocabParallelEmbedding",
    "VocabParallelLinear",
    "parallelize",
    "sharded_region",
    "vocab_parallel_cross_entropy",
]
