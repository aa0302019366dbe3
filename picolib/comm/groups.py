"""What picolib.comm knows about a process group: who is in it, the next call's number, the work in flight.

This is the only module-level state of the package, and it is keyed weakly: it goes when the process group goes.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections import defaultdict, deque
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm import gloo_thread
from picolib.launch import nodes

# Tags from here on belong to collectives: one tag a call, so that the messages of a collective never
# meet those of the user's own send and recv, nor those of another collective in flight.
FIRST_RESERVED_TAG = 1 << 30

SPARE_BYTES = 32 << 20  # a group keeps at most so much of buffers that are not in use


class Group:
    """The members of one process group and what picolib.comm has under way in it (group ranks throughout)."""

    __slots__ = ("rank", "size", "ranks", "calls", "in_flight", "mailbox", "sentinel", "ranks_per_node",
                 "_backends", "_spare")  # fmt: skip

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.rank: int = process_group.rank()
        self.size: int = process_group.size()
        self.ranks: list[int] = dist.get_process_group_ranks(process_group)  # group rank -> global rank
        self.ranks_per_node = nodes.ranks_per_node(self.ranks)  # None: nobody has told
        self.calls = 0
        self.in_flight: deque[Any] = deque()  # asynchronous collectives, oldest first
        self.mailbox: dict[int, deque[torch.Tensor]] = defaultdict(deque)  # messages to oneself, by tag
        self.sentinel = bytes(2 + byte % 254 for byte in os.urandom(8))  # no byte of a bool tensor is above 1
        self._backends: dict[str, Any] = {}
        self._spare: dict[tuple, list[torch.Tensor]] = defaultdict(list)  # buffers that nobody uses, by shape and dtype
        gloo_thread.make_polite()  # every group has a thread of its own

    def next_tag(self) -> int:
        """The tag of the next collective: the same on every rank, as calls of a group come in one order."""
        self.calls += 1
        return FIRST_RESERVED_TAG + self.calls % FIRST_RESERVED_TAG

    def borrow(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        """A buffer of `rows` rows like the vector `like`; its contents are undefined.

        The system must fill every page of new memory with zeros; of memory that is used again it need not.
        """
        spare = self._spare[rows, like.numel(), like.dtype, like.device]
        return spare.pop() if spare else like.new_empty(rows, like.numel())

    def give_back(self, buffer: torch.Tensor) -> None:
        """Keep a borrowed buffer for the next call, where there is room for it."""
        kept = [b for buffers in self._spare.values() for b in buffers]
        if sum(b.nbytes for b in [*kept, buffer]) > SPARE_BYTES:
            self._spare.clear()
        if buffer.nbytes <= SPARE_BYTES:
            self._spare[(*buffer.shape, buffer.dtype, buffer.device)].append(buffer)

    def backend(self, process_group: dist.ProcessGroup, device: torch.device) -> Any:
        """What carries tensors of this device. Asked directly, it takes a third less time per message."""
        kind = device.type
        if kind not in self._backends:
            try:
                self._backends[kind] = process_group._get_backend(device)
            except RuntimeError:  # torch's way to say that the group has none for this device
                self._backends[kind] = None
        return self._backends[kind]

    def carries(self, process_group: dist.ProcessGroup, device: torch.device) -> bool:
        """Whether tensors of this device can be sent as they are (gloo sends from host memory only)."""
        if device.type == "cpu":
            return True
        backend = self.backend(process_group, device)
        return backend is not None and backend.name() != "gloo"


_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, Group] = weakref.WeakKeyDictionary()


def groups_in_flight() -> list[Group]:
    """The groups of this process in which asynchronous collectives are under way."""
    return [group for group in list(_groups.data.values()) if group.in_flight]  # past the guards of weak dictionaries


def works_in_flight() -> int:
    """How many asynchronous collectives are under way in all groups of this process. Every call asks this."""
    return sum([len(group.in_flight) for group in list(_groups.data.values())])


def resolve(group: dist.ProcessGroup | None) -> tuple[dist.ProcessGroup, Group]:
    """The process group (None means the world) and its record; ValueError where there is none."""
    process_group = dist.group.WORLD if group is None else group
    known = _groups.get(process_group) if process_group is not None else None
    if known is None:
        _refuse_what_is_no_group(process_group)
        known = _groups[process_group] = Group(process_group)
    return process_group, known


def is_member(group: Any) -> bool:
    """False for what torch.distributed.new_group returns to ranks outside the new group."""
    return group is not dist.GroupMember.NON_GROUP_MEMBER


def warn_not_member(name: str) -> None:
    """What torch does too: a rank outside the group does nothing, and says so."""
    warnings.warn(f"{name}: this rank is not in the group, so it does nothing.", stacklevel=3)


def _refuse_what_is_no_group(process_group: Any) -> None:
    if process_group is None:
        raise ValueError("There is no process group yet: run this inside picolib.run(...), or call picolib.init().")
    if not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(f"group must be a process group or None, got {process_group!r}.")


def group_rank(known: Group, global_rank: int, name: str) -> int:
    """The group rank of a global rank, or one sentence that says who is in the group."""
    try:
        return known.ranks.index(global_rank)
    except ValueError:
        raise ValueError(f"{name}: rank {global_rank} is not in the group {known.ranks}.") from None


def peer_rank(known: Group, global_rank: int | None, in_group: int | None, name: str) -> int:
    """The group rank of a peer given in one of torch's two ways: `{name}` (global) or `group_{name}`."""
    if global_rank is not None and in_group is not None:
        raise ValueError(f"Give either {name} or group_{name}, not both (got {global_rank} and {in_group}).")
    if in_group is not None:
        if not 0 <= in_group < known.size:
            raise ValueError(f"group_{name} must be between 0 and {known.size - 1}, got {in_group}.")
        return in_group
    if global_rank is None:
        raise ValueError(f"Give {name} (a global rank) or group_{name} (a rank inside the group).")
    return group_rank(known, global_rank, name)
