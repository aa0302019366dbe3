"""The divisor of the one loss rule: the valid tokens of the whole global batch, counted once a step.

    loss of a step = sum of all token losses, on all ranks and in all micro-batches ÷ their number

Each rank divides its local *sums* by this global count, before backward. Then the plain sum of the ranks' gradients is
the gradient of that loss, and nobody has to scale anything else: neither the accumulation nor the number of ranks
appears. A mean of the ranks' means is another number whenever they hold different numbers of valid tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from picolib import comm
from picolib.model import Batch, count_valid_tokens


def count_global_tokens(micro_batches: Sequence[Batch], group: dist.ProcessGroup | None = None) -> int:
    """The valid targets of one step, over all micro-batches and all ranks of `group` (None: the world).

    One all-reduce of one number. `group` is everybody who reads other tokens of this step: all data axes together. The
    answer is the same on every rank, so that all of them can skip a step without valid tokens alike.
    """
    count = torch.stack([count_valid_tokens(batch.targets) for batch in micro_batches]).sum()
    comm.all_reduce(count, group=group, label="valid tokens")
    return int(count)
