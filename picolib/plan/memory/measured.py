"""The real thing: a rank's bytes by owner, counted from live tensor storages.

Resident size is no instrument here (a rank starts at 260 MB of Python and torch). What is counted is what a tensor
holds: each storage once, however many tensors view it, and by its first owner in this order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass
class Measured:
    """Bytes on one rank, by owner. `activations` is the most that autograd held; `held` is what it held, in order:
    after each tensor that it saved, and after each that it let go. `in_files` of all these bytes are in memory-mapped
    files, such as FSDP's FileOffloadPolicy makes, and need no memory of the rank's own."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    activations: int = 0
    in_files: int = 0
    others: dict[str, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list, repr=False)

    @property
    def total(self) -> int:
        """All of it, in memory and in files."""
        state = self.parameters + self.gradients + self.optimizer + self.buffers
        return state + self.activations + sum(self.others.values())


@contextlib.contextmanager
def measure(
    module: nn.Module, optimizer: torch.optim.Optimizer | None = None, **others: Iterable[torch.Tensor]
) -> Iterator[Measured]:
    """Run a training step inside; afterwards the yielded `Measured` is filled.

    Saved activations are counted while the block runs (their largest sum), the rest when it ends.

        with picolib.memory.measure(model, optimizer) as found:
            loss_of(model).backward()
            optimizer.step()
        print(found.activations)

    Args:
        module: owns the parameters, gradients and buffers.
        optimizer: owns its state (all tensors with more than one element, and the step counters).
        others: more owners by name, each some tensors, such as the flat buffers of gradient buckets.
    """
    found = Measured()
    saved = _Saved(_storages([*module.parameters(), *module.buffers()]))
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        yield found
    counted = _Counted()
    found.activations, found.held = saved.most, list(saved.history)
    found.parameters = counted.add(module.parameters())
    found.buffers = counted.add(module.buffers())
    for name, tensors in others.items():
        found.others[name] = counted.add(tensors)
    found.gradients = counted.add(p.grad for p in module.parameters() if p.grad is not None)
    if optimizer is not None:
        found.optimizer = counted.add(_tensors_in(optimizer.state))
    found.in_files = counted.in_files


class _Counted:
    """Counts each storage once, for the first who owns it."""

    def __init__(self) -> None:
        self.places: set[int] = set()
        self.in_files = 0

    def add(self, tensors: Iterable[torch.Tensor]) -> int:
        total = 0
        for tensor in tensors:
            storage = _local(tensor).untyped_storage()
            if storage.data_ptr() not in self.places:
                self.places.add(storage.data_ptr())
                total += storage.nbytes()
                self.in_files += storage.nbytes() if storage.filename else 0
        return total


class _Saved:
    """Counts what autograd saves: each storage once, as long as something holds it; never the model's own."""

    def __init__(self, owned: set[int]) -> None:
        self.owned, self.held, self.now, self.most = owned, {}, 0, 0
        self.history: list[int] = []

    def pack(self, tensor: torch.Tensor) -> _Holder | torch.Tensor:
        storage = _local(tensor).untyped_storage()
        place = storage.data_ptr()
        tensor = tensor.detach()  # an output that its own operation saves would keep that operation, and so itself
        if place in self.owned or not place:
            return _Holder(tensor, None, 0)
        uses = self.held.get(place, 0)
        self.held[place] = uses + 1
        if not uses:
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            self.history.append(self.now)
        return _Holder(tensor, self, place)

    def unpack(self, holder: _Holder) -> torch.Tensor:
        return holder.tensor

    def release(self, place: int, nbytes: int) -> None:
        self.held[place] -= 1
        if not self.held[place]:
            del self.held[place]
            self.now -= nbytes
            self.history.append(self.now)


class _Holder:
    """Stands for a saved tensor in the graph; when the graph lets go of it, so does the count."""

    def __init__(self, tensor: torch.Tensor, saved: _Saved | None, place: int) -> None:
        self.tensor, self.saved, self.place = tensor, saved, place
        self.nbytes = _local(tensor).untyped_storage().nbytes()

    def __del__(self) -> None:
        if self.saved is not None:
            self.saved.release(self.place, self.nbytes)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {_local(tensor).untyped_storage().data_ptr() for tensor in tensors}


def _tensors_in(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors_in(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _tensors_in(value)
