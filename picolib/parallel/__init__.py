"""The strategies: each takes the process group it works on (None: all ranks), so that they compose on a mesh."""

from picolib.parallel.ddp import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
