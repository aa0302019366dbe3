"""What lives while a function runs: every tensor that it made, wherever it is kept, and Python's own objects.

`memory.measure` asks autograd what it has saved. Who keeps the same tensors in a list, on `ctx` or as bytes is not seen
there; here he is. And each matrix product with a known weight is counted, however it is written.

Unseen remains what leaves the process, such as a file, and memory that is neither torch's nor Python's.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from picolib.course.exercises import traced


class Live(TorchDispatchMode):
    """Inside `with Live(known, weights) as live:` new storages are counted from the operation that makes them until
    they are gone.

    Args:
        known: tensors that are there before, and whose memory is not the function's: parameters, gradients, inputs.
        weights: how often each of these is multiplied with something, `live.products` tells by position.
    """

    def __init__(self, known: Iterable[torch.Tensor], weights: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.known = [tensor.untyped_storage() for tensor in known]  # kept, so that nobody gets their place
        self.places = {storage._cdata for storage in self.known}
        self.weights = {weight.untyped_storage()._cdata: number for number, weight in enumerate(weights)}
        self.products: Counter[int] = Counter()
        self.now = self.most = self.most_objects = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first operation, which takes seconds

    def __enter__(self) -> Live:
        super().__enter__()
        traced.begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self.most_objects = traced.peak()
        traced.end()
        super().__exit__(*error)

    def not_its_own(self, tensors: Iterable[torch.Tensor]) -> int:
        """Bytes that count here though they are nobody's leak: of tensors that the function made as it should.

        A gradient is such a one: whether .grad is added to in place or is a new tensor is the same to its owner.
        """
        made = {storage._cdata: storage for storage in (t.untyped_storage() for t in tensors)}
        before = {storage._cdata for storage in self.known}
        return sum(storage.nbytes() for place, storage in made.items() if place not in before)

    def objects(self) -> int:
        """Bytes of Python's own objects (numbers, bytes, numpy's arrays) that were made inside, and are alive."""
        gc.collect()
        return traced.now()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if "mm" in function.__name__:
            places = (t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor))
            self.products.update(self.weights[place] for place in places if place in self.weights)
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        place, nbytes = storage._cdata, storage.nbytes()
        if place in self.places:
            return
        self.places.add(place)
        self.now += nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, place, nbytes).atexit = False

    def _gone(self, place: int, nbytes: int) -> None:
        self.places.discard(place)
        self.now -= nbytes
