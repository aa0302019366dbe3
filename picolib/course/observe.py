"""Inside a rank: note every message and collective of the learner's function, with what it carried.

All of torch.distributed's calls end in a method of the process group (picolib's in one of its backend), and every
wait in `Work.wait`. Those are replaced here, on top of what the board has put there.

The notes are made in the learner's own process, so they are a claim, not a proof. What holds them to the truth:
what a sender notes of a message (bytes, a checksum of its contents) must be what its receiver notes, and in one case
of each exercise every message is changed on its way (`Notebook.tamper`), so that whoever does not use what arrives
still ends with the right numbers and is found out. See `crosscheck.py`, which also lists what remains unseen.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm import engine
from picolib.launch import monitor
from picolib.launch.memory import Range, range_of

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
MANY = 200  # messages of one call after which its loop is taken for one without end; right answers send a dozen
TAMPERED = 64.0  # is added to every number of every message of a tampered case


@dataclass
class Pending:
    """A receive or an asynchronous collective under way: its entry, and the tensors nobody may use before wait()."""

    entry: list
    tensors: list[torch.Tensor]
    ranges: list[Range]


class Notebook:
    """What one call of the learner's function did on this rank, in order.

    Entries are lists: ["send", peer, bytes, id, contents, owner, checksum], the same with "recv" (its checksum is
    None until the message has arrived), ["wait", id], ["collective", name, elements, owner, id or None] and
    ["early", id, place]: the tensor of that message or collective was used before wait(). owner is None for the
    learner's own calls, else the name of the picolib collective that made them.
    """

    def __init__(self) -> None:
        self.entries: list[list] = []
        self.ids: dict[int, int] = {}  # of a handle that `handles` keeps alive -> the number of its entry
        self.next_id = 0
        # Kept until waited for: gloo drops a message whose handle is dropped, its receiver would wait for ever, and the
        # fault to speak of is that nobody waited for the send. (A handle keeps its tensors alive, so no longer.)
        self.handles: dict[int, Any] = {}
        self.pending: dict[int, Pending] = {}
        self.tamper = False  # whether every message is changed when it arrives

    def clear(self) -> list[list]:
        """Everything noted so far; the next call starts anew."""
        entries, self.entries = self.entries, []
        self.pending.clear()
        return entries

    def message(self, kind: str, tensor: torch.Tensor, peer: int, work: Any) -> None:
        """A send or a receive has been started; `work` is its handle."""
        contents, check, whose = None, None, owner()
        if kind == "send" and whose is None:
            contents, check = _contents(tensor), checksum(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        self._started([kind, peer, nbytes, self.next_id, contents, whose, check], work)
        if kind == "recv" and whose is None:
            self._until_waited([tensor])

    def refuse_without_end(self, kind: str) -> None:
        """A loop that sends for ever would go on until the time is up, and then could not be told from waiting."""
        sent = sum(e[0] == "send" and e[5] is None for e in self.entries)
        if kind == "send" and sent >= MANY:
            raise RuntimeError(f"rank {dist.get_rank()} has sent {sent} messages in one call, and is still sending")

    def collective(self, name: str, tensors: Sequence[torch.Tensor], owner_name: str | None, work: Any) -> None:
        """A collective has been started; `work` is what says that it is over, None where that is not to be seen."""
        handle = None if work is None else self.next_id
        self._started(["collective", name, sum(t.numel() for t in tensors), owner_name, handle], work)
        if work is not None:
            self._until_waited(tensors)

    def _started(self, entry: list, work: Any) -> None:
        self.entries.append(entry)
        if work is not None:
            self.ids[id(work)] = self.next_id
            self.handles[self.next_id] = work
        self.next_id += 1

    def _until_waited(self, tensors: Sequence[torch.Tensor]) -> None:
        self.pending[self.next_id - 1] = Pending(self.entries[-1], list(tensors), [range_of(t) for t in tensors])

    def waited(self, work: Any) -> None:
        """`work` has been waited for."""
        id_ = self.ids.get(id(work))
        if id_ is None:
            return
        self.entries.append(["wait", id_])
        self.handles.pop(id_, None)
        over = self.pending.pop(id_, None)
        if over is not None and over.entry[0] == "recv":
            over.entry[6] = checksum(over.tensors[0])
            if over.entry[1] < 0:
                over.entry[1] = work._source_rank()
            if self.tamper:
                over.tensors[0].detach().add_(TAMPERED)

    def used(self, tensor: torch.Tensor, place: str) -> None:
        """A tensor has been used in the learner's line `place` (see `picolib.launch.places`): too early?"""
        place_of = range_of(tensor)
        for id_, pending in self.pending.items():
            known = any(e[0] == "early" and e[1] == id_ for e in self.entries)
            if not known and any(place_of.overlaps(one) for one in pending.ranges):
                self.entries.append(["early", id_, place])


def _contents(tensor: torch.Tensor) -> list[float] | None:
    return tensor.detach().double().flatten().tolist() if tensor.numel() <= SMALL else None


def checksum(tensor: torch.Tensor) -> int:
    """Of a tensor's bytes: the same on both ends of a message."""
    flat = tensor.detach().cpu().contiguous()
    return zlib.crc32(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))


def owner() -> str | None:
    """The picolib collective or strategy that the calling code belongs to: the learner called it, not its messages."""
    frame: Any = sys._getframe(2)
    name = None
    while frame is not None and frame.f_globals.get("__name__") != "picolib.course.trial":
        module = frame.f_globals.get("__name__", "")
        if module.startswith("picolib.parallel."):
            # "parallel.ddp": the strategy, whichever of its hooks it was, and whatever called the hook
            if module.count(".") > 2 or not str(name).startswith("parallel."):
                name = ".".join(module.split(".")[1:3])
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
    _replace(engine.Work, "wait", lambda original: _wait_for_picolibs(original, notebook))
    return notebook


def _replace(where: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    original = getattr(where, name, None)
    if original is not None:
        setattr(where, name, functools.wraps(original)(make(original)))


def _collective(original: Callable, name: str, notebook: Notebook) -> Callable:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        tensors = first if isinstance(first, list) else [first]
        whose, work = owner(), original(group, *args, **kwargs)
        notebook.collective(name, [t for t in tensors if isinstance(t, torch.Tensor)], whose, work)
        return work

    return method


def _announced(original: Callable, notebook: Notebook) -> Callable:
    """picolib's collectives announce themselves to the monitor, once a call."""

    def collective(name: str, group: Any, tensors: Any = (), *args: Any, **kwargs: Any) -> Any:
        call = original(name, group, tensors, *args, **kwargs)
        notebook.collective(name, tensors, name, call if kwargs.get("async_op") else None)
        return call

    return collective


def _message(original: Callable, kind: str, notebook: Notebook) -> Callable:
    def method(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        if len(args) > 1 and not 0 <= args[0] < group.size():
            raise ValueError(f"there is no rank {args[0]}: ranks go from 0 to {group.size() - 1}")
        notebook.refuse_without_end(kind)
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
        # RuntimeError: it has no backend for this device; AttributeError: the mark of a group one is not in
        with contextlib.suppress(RuntimeError, AttributeError):
            if known is group or known._get_backend(device) is group:
                return dist.get_process_group_ranks(known)
    return range(group.size())


def _wait_for_picolibs(original: Callable, notebook: Notebook) -> Callable:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        notebook.waited(work._call)
        return result

    return wait


def _wait(original: Callable, notebook: Notebook) -> Callable:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        notebook.waited(work)
        return result

    return wait
