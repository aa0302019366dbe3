"""Inside a rank: note every message and collective of the learner's function, with what it carried.

All of torch.distributed's calls end in a method of the process group (picolib's in one of its backend), and every
wait in `Work.wait`. Those are replaced here, on top of what the board has put there.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.launch import monitor

NATIVE = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
}
MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait", "is_completed"})
SMALL = 256  # elements of a message whose contents are kept


class Notebook:
    """What one call of the learner's function did on this rank, in order.

    Entries are lists: ["send", peer, bytes, id, contents, owner], ["recv", peer, bytes, id, None, owner],
    ["wait", id] and ["collective", name, elements, owner]. owner is None for the learner's own calls, else the name
    of the picolib collective that made them.
    """

    def __init__(self) -> None:
        self.entries: list[list] = []
        self.ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.next_id = 0
        self.handles: list[Any] = []  # gloo drops a message whose handle is dropped: so a send nobody waits for is told

    def clear(self) -> list[list]:
        """Everything noted so far; the next call starts anew."""
        entries, self.entries = self.entries, []
        self.handles.clear()
        return entries

    def message(self, kind: str, tensor: torch.Tensor, peer: int, work: Any) -> None:
        """A send or a receive has been started; `work` is its handle."""
        contents = None
        if kind == "send" and tensor.numel() <= SMALL:
            contents = tensor.detach().double().flatten().tolist()
        nbytes = tensor.numel() * tensor.element_size()
        self.entries.append([kind, peer, nbytes, self.next_id, contents, owner()])
        if work is not None:
            self.ids[work] = self.next_id
            self.handles.append(work)
        self.next_id += 1

    def waited(self, work: Any) -> None:
        """`work` has been waited for."""
        if work in self.ids:
            self.entries.append(["wait", self.ids[work]])


def owner() -> str | None:
    """The picolib collective or strategy that the calling code belongs to: the learner called it, not its messages."""
    frame: Any = sys._getframe(2)
    name = None
    while frame is not None and frame.f_globals.get("__name__") != "picolib.course.trial":
        module = frame.f_globals.get("__name__", "")
        if module.startswith("picolib.parallel."):
            name = ".".join(module.split(".")[1:3])  # "parallel.ddp": the strategy, whichever of its hooks it was
        elif module.startswith("picolib.") and not module.startswith(("picolib.launch", "picolib.course")):
            name = frame.f_code.co_name
        frame = frame.f_back
    return None if name in POINT_TO_POINT else name


_current: Notebook | None = None  # of this rank


def note(label: str) -> None:
    """Something that an exercise wants to see in its place among the entries: ["note", label, None, None, …].

    For the code around the learner's function (`Exercise.call`), such as a hook that tells of each gradient.
    """
    if _current is not None:
        _current.entries.append(["note", label, None, None, None, None, None])


def forget() -> None:
    """Drop what has been noted up to now: the code around the learner's function has done it to prepare."""
    if _current is not None:
        _current.clear()


def install() -> Notebook:
    """Start to note what this rank does."""
    global _current
    notebook = _current = Notebook()
    backend = torch._C._distributed_c10d.Backend
    for owner_class in (dist.ProcessGroup, backend):
        for method, name in NATIVE.items():
            _replace(owner_class, method, lambda original, n=name: _collective(original, n, notebook))
        for method, kind in MESSAGES.items():
            _replace(owner_class, method, lambda original, k=kind: _message(original, k, notebook))
    _replace(dist.Work, "wait", lambda original: _wait(original, notebook))
    _replace(monitor, "collective", lambda original: _announced(original, notebook))
    return notebook


def _replace(where: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    original = getattr(where, name, None)
    if original is not None:
        setattr(where, name, functools.wraps(original)(make(original)))


def _collective(original: Callable, name: str, notebook: Notebook) -> Callable:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        tensors = first if isinstance(first, list) else [first]
        elements = sum(t.numel() for t in tensors if isinstance(t, torch.Tensor))
        notebook.entries.append(["collective", name, elements, owner()])
        return original(group, *args, **kwargs)

    return method


def _announced(original: Callable, notebook: Notebook) -> Callable:
    """picolib's collectives announce themselves to the monitor, once a call."""

    def collective(name: str, group: Any, tensors: Any = (), *args: Any, **kwargs: Any) -> Any:
        notebook.entries.append(["collective", name, sum(t.numel() for t in tensors), name])
        return original(name, group, tensors, *args, **kwargs)

    return collective


def _message(original: Callable, kind: str, notebook: Notebook) -> Callable:
    def method(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        if len(args) > 1 and not 0 <= args[0] < group.size():
            raise ValueError(
                f"there is no rank {args[0]}: ranks go from 0 to {group.size() - 1}. "
                "In a ring the number wraps around: (rank + 1) % N, (rank - 1) % N"
            )
        work = original(group, tensors, *args)
        # -1: a receive from whoever sends first
        peer = _members(group, tensors[0].device)[args[0]] if len(args) > 1 else -1
        notebook.message(kind, tensors[0], peer, work)
        return work

    return method


def _members(group: Any, device: torch.device) -> Sequence[int]:
    """Group rank -> rank in the world, of a process group or of one of its backends."""
    if group.size() == dist.get_world_size():
        return range(group.size())
    for known in list(dist.distributed_c10d._world.pg_group_ranks):
        with contextlib.suppress(RuntimeError):  # torch's way to say that it has no backend for this device
            if known is group or known._get_backend(device) is group:
                return dist.get_process_group_ranks(known)
    return range(group.size())


def _wait(original: Callable, notebook: Notebook) -> Callable:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        notebook.waited(work)
        return result

    return wait
