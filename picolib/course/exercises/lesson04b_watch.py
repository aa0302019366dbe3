"""What the exercises of 04B look at inside a rank: bytes that are alive, and ways round the exercise."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from picolib.course.exercise import COLLECTIVES
from picolib.course.exercises import traced

GATHERS = frozenset({"all_gather_into_tensor", "all_gather"})
PATIENCE, STEP = 0.3, 0.002
TORCHS = "torch.distributed.fsdp"
SCATTERS = frozenset({"reduce_scatter_tensor", "reduce_scatter"})


class Alive(TorchDispatchMode):
    """Follows every tensor that is made inside, and counts the bytes of those that something still holds.

    Not counted: what is made while `paused()`, what picolib's collectives make for themselves, views. A thread of
    gloo's may hold a collective's tensors for a moment after it is over: above `limit`, that moment is waited for.
    `given` are copies of what torch's own all-gathers were given. Python's own objects (lists, bytes, numpy's arrays)
    are counted apart.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}  # address of a storage -> a weak reference to it
        self.limit, self.most, self.off = limit, 0, False
        self.given: list[torch.Tensor] = []
        self.patience = PATIENCE  # seconds that all waiting together may take

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports the compiler, which takes seconds

    def __enter__(self) -> Alive:
        super().__enter__()
        traced.begin()
        return self

    def __exit__(self, *error: Any) -> None:
        traced.end()
        super().__exit__(*error)

    def objects(self, limit: float = float("inf")) -> int:
        """Bytes of Python's own objects that were made inside, and are alive; above `limit` without what is garbage."""
        found = traced.now()
        if found > limit:
            gc.collect()
            found = traced.now()
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.name().startswith(("c10d::_allgather_base_", "c10d::allgather_")):
            self.given += [tensor.detach().clone() for tensor in _tensors(args[1])]
        result = func(*args, **(kwargs or {}))
        if not self.off and not _inside_comm():
            old = {_address(t) for t in _tensors((args, kwargs))}
            for tensor in _tensors(result):
                if _address(tensor) not in old:
                    self._follow(tensor.untyped_storage())
            self.most = max(self.most, self.now(self.limit))
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.made[storage._cdata] = StorageWeakRef(storage)

    def now(self, limit: float = float("inf")) -> int:
        """Bytes that are alive; looked at again for a while where they are more than `limit`."""
        found = self._sum()
        while found > limit and self.patience > 0:
            time.sleep(STEP)
            self.patience -= STEP
            found = self._sum()
        return found

    def _sum(self) -> int:
        total = 0
        for address, reference in list(self.made.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.made[address]
            else:
                total += storage.nbytes()
        return total

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is made in here belongs to the exercise, not to the learner."""
        before, self.off = self.off, True
        try:
            yield
        finally:
            self.off = before


def _tensors(values: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _inside_comm() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("picolib.comm"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def no_ready_made_fsdp() -> Iterator[None]:
    """In a rank: whoever uses torch's FSDP in this block is told to build it. (picolib's is known by its collectives.)

    Where it has not been imported yet, which takes a second, its import is what is refused.
    """
    loaded = sys.modules.get(f"{TORCHS}._fully_shard._fsdp_param_group")
    if loaded is None:
        sys.meta_path.insert(0, _NoImport())
        try:
            yield
        finally:
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _NoImport)]
    else:
        owners = (loaded.FSDPParamGroup, sys.modules[TORCHS].FullyShardedDataParallel)
        originals = [owner.__init__ for owner in owners]
        for owner in owners:
            owner.__init__ = _refuse
        try:
            yield
        finally:
            for owner, original in zip(owners, originals, strict=True):
                owner.__init__ = original


def _refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "torch's FSDP does what this exercise asks for (some more of torch's modules load it, too): here you write it "
        "yourself, with the collectives of dist."
    )


class _NoImport:
    def find_spec(self, name: str, *_: Any) -> None:
        if name.startswith(TORCHS):
            _refuse()


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
