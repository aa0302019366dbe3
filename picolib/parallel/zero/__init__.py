"""ZeRO stages 1 and 2: every rank has all parameters, and a part of the optimizer's state.

Read `naive` first: the three lines that turn data parallelism into ZeRO-1. `flat` is one bucket of parameters and the
part of it that this rank owns; `optimizer` is what a training loop uses.
"""

from picolib.parallel.zero.naive import zero_1_step
from picolib.parallel.zero.optimizer import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer", "zero_1_step"]
