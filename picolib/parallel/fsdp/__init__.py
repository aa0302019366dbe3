"""Fully sharded data parallelism (ZeRO stage 3): parameters, gradients and optimizer state, each rank its part.

Read `naive` first: gather everything, compute, keep one's own part again. `parameter` is one parameter, sharded and
whole. `unit` is the parameters of a module, which travel together, with three steps: unshard, reshard, reduce.
`conductor` says when: before and after each module's forward and backward pass. `offload` says where shards wait
meanwhile. `api` is the front door.
"""

from picolib.parallel.fsdp.api import FSDPModule, fully_shard
from picolib.parallel.fsdp.naive import NaiveFullyShard
from picolib.parallel.fsdp.offload import FileOffloadPolicy

__all__ = ["FSDPModule", "FileOffloadPolicy", "NaiveFullyShard", "fully_shard"]
