"""picolib: how large models train on many devices, built from real ranks on one machine.

Names are imported at first use (PEP 562), so that `import picolib` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__version__ = "0.1.0"

_HOME = {
    name: "picolib.launch"
    for name in (
        "run",
        "Run",
        "init",
        "mark",
        "Link",
        "Links",
        "pretend",
        "RunError",
        "RankError",
        "DeadlockError",
        "RankTimeout",
        "MismatchError",
        "RunInterrupted",
    )
}
_HOME["clip_grad_norm_"] = "picolib.parallel.clip"
_HOME["DistributedDataParallel"] = "picolib.parallel.ddp"
_HOME["ZeroRedundancyOptimizer"] = "picolib.parallel.zero"
_HOME |= dict.fromkeys(
    ("ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding", "vocab_parallel_cross_entropy"),
    "picolib.parallel.tensor",
)
_HOME["fully_shard"] = "picolib.parallel.fsdp"
_HOME["full_state_dict"] = _HOME["load_full_state_dict"] = "picolib.parallel.full_state"
_PACKAGES = frozenset({"comm", "course", "launch", "model", "parallel", "plan", "serve", "train"})
_SHORT = {"memory": "picolib.plan.memory"}  # modules with a shorter name


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"picolib.{name}")
    if name in _SHORT:
        return importlib.import_module(_SHORT[name])
    raise AttributeError(f"module 'picolib' has no attribute {name!r}")


def _warm_up_in_a_notebook() -> None:
    """A session that imports picolib in a kernel will run ranks: start what they are copied from, in the background."""
    if "ipykernel" in sys.modules:
        importlib.import_module("picolib.launch.forked").warm_up()


_warm_up_in_a_notebook()


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES, *_SHORT})
