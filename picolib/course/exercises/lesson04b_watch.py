"""What the exercises of 04B look at inside a rank: how many bytes are alive that were made in it."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from picolib.course.exercises import traced

PATIENCE, STEP = 0.3, 0.002  # seconds: that all waiting together may take; between two looks


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
        self.patience = PATIENCE

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
