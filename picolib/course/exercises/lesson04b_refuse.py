"""Which collectives the exercises of 04B are done with, and what is refused: torch's FSDP, and picolib's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from picolib.course.exercise import COLLECTIVES
from picolib.course.exercises.lesson03a_refuse import refused

GATHERS = frozenset({"all_gather_into_tensor", "all_gather"})
SCATTERS = frozenset({"reduce_scatter_tensor", "reduce_scatter"})
TORCHS = "torch.distributed.fsdp"
WHY = (
    "torch's FSDP does what this exercise asks for (some more of torch's modules load it, too): here you write it "
    "yourself, with the collectives of dist."
)


@contextlib.contextmanager
def no_ready_made_fsdp() -> Iterator[None]:
    """In a rank: whoever uses torch's FSDP in this block is told to build it. (picolib's is known by its collectives.)

    Where it has not been imported yet, which takes a second, its import is what is refused.
    """
    loaded = sys.modules.get(f"{TORCHS}._fully_shard._fsdp_param_group")
    if loaded is not None:
        with refused(WHY, loaded.FSDPParamGroup, sys.modules[TORCHS].FullyShardedDataParallel):
            yield
        return
    sys.meta_path.insert(0, _NoImport())
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _NoImport)]


class _NoImport:
    """A finder of modules that refuses torch's FSDP, and finds none."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.startswith(TORCHS):
            raise RuntimeError(WHY)


def only(*allowed: frozenset[str], enough: str) -> Callable[[Any], str | None]:
    """A rule: of all collectives only these. `enough` says which, in words. (`Exercise.allows` must hold all.)"""
    names = frozenset().union(*allowed)

    def rule(attempt: Any) -> str | None:
        for rank, record in enumerate(attempt.ranks):
            called = [name for name, *_ in record.collectives]
            ready_made = next((name for name in called if name.startswith("parallel.")), None)
            if ready_made:
                return f"rank {rank} called picolib's own {ready_made}. Here you write it yourself, with collectives."
            other = next((name for name in called if name in COLLECTIVES - names), None)
            if other:
                return f"rank {rank} called {other}; here {enough}."
            if record.sends:
                return f"rank {rank} sent messages of its own; here {enough}."
        return None

    return rule
