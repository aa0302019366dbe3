"""Distributed data parallelism: every rank has the whole model and a share of the batch.

Read the modules in this order; each differs a little from the one before:

1. `naive`: after the backward pass, one all-reduce for each parameter.
2. `bucketed`: a few large all-reduces in place of many small ones.
3. `overlapped`: each bucket's all-reduce starts while the backward pass goes on.
4. `reducer` and `wrapper`: the same with gradients that live in their buckets, and with what a library owes its users:
   `no_sync`, unused parameters, buffers, errors in words.
"""

from picolib.parallel.ddp.bucketed import assign_buckets, average_in_buckets
from picolib.parallel.ddp.naive import average_gradients
from picolib.parallel.ddp.overlapped import OverlappedAverage
from picolib.parallel.ddp.wrapper import DistributedDataParallel

__all__ = [
    "DistributedDataParallel",
    "OverlappedAverage",
    "assign_buckets",
    "average_gradients",
    "average_in_buckets",
]
