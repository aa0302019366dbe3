"""Training on any number of ranks: who reads which tokens, the loss, the learning rate, and the loop around them."""

from picolib.train.batches import DocumentBatches, micro_batches, pad
from picolib.train.history import History
from picolib.train.loss import count_global_tokens
from picolib.train.schedule import learning_rate
from picolib.train.trainer import TrainConfig, adamw, train

__all__ = [
    "DocumentBatches",
    "History",
    "TrainConfig",
    "adamw",
    "count_global_tokens",
    "learning_rate",
    "micro_batches",
    "pad",
    "train",
]
