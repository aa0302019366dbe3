"""Inside a rank: note every message and collective of the learner's function, with what it carried.

All of torch.distributed's calls end in a method of the process group (picolib's in one of its backend), and every
wait in `Work.wait`. Those are replaced here, on top of what the board has put there.

The notes are made in the learner's own process, so they are a claim, not a proof. What holds them to the truth:
what a sender notes of a message (bytes, a checksum of its contents) must be what its receiver notes, and in one case
of each exercise every message, and the result of every all-reduce, is changed (`Notebook.tamper`), so that whoever does
not use what arrives still ends with the right numbers and is found out. See `crosscheck.py`, which also lists what
remains unseen.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm import call as comm_call
from picolib.comm import engine
from picolib.course import perform
from picolib.course.notebook import Notebook, given_to
from picolib.launch import monitor

NATIVE = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
}
AS_OPERATORS = (
    "_c10d_functional",
    "_c10d_functional_autograd",
    "c10d",
)  # torch.ops.…: the same, without a group's method
OF_OBJECTS = frozenset({"broadcast_object_list"})  # two collectives of bytes each
ON_THE_WAY = ("torch.", "picolib.launch", "picolib.course")  # modules between such a call and its collectives
MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait", "is_completed"})
STORE = ("add", "append", "check", "compare_set", "get", "multi_set", "queue_push", "set", "wait")
STORE_IS_THEIRS = ("torch.distributed.distributed_c10d", "torch.distributed.rendezvous", "picolib.")


def owner() -> str | None:
    """The picolib collective or strategy that the calling code belongs to: the learner called it, not its messages."""
    frame: Any = sys._getframe(2)
    name = None
    while frame is not None and frame.f_globals.get("__name__") != perform.__name__:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("picolib.parallel."):
            # "parallel.ddp": the strategy, whichever of its hooks it was, and whatever called the hook
            if module.count(".") > 2 or not str(name).startswith("parallel."):
                name = ".".join(module.split(".")[1:3])
        elif module.startswith("picolib.") and not module.startswith(("picolib.launch", "picolib.course")):
            name = frame.f_code.co_name
            if module == engine.__name__ and isinstance(work := frame.f_locals.get("self"), engine.Work):
                name, *_ = work._call.name  # waiting for a collective goes on with it: its messages are its own
        frame = frame.f_back
    return None if name in POINT_TO_POINT else name


_current: Notebook | None = None  # of this rank


def note(label: str) -> None:
    """Something that an exercise wants to see in its place among the entries: ["note", label, None, None, …].

    For the code around the learner's function (`Exercise.call`), such as a hook that tells of each gradient.
    """
    if _current is not None:
        _current.entries.append(["note", label, None, None, None, None, None])
        _current.since_note = 0


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
    _replace(comm_call.Call, "start", lambda original: _run_to_its_end(original, notebook))
    for kind_of_operator in (torch._ops.OpOverloadPacket, torch._ops.OpOverload):
        _replace(kind_of_operator, "__call__", lambda original: _operator(original, notebook))
    for method in STORE:
        _replace(dist.Store, method, lambda original, m=method: _stored(original, m, notebook))
    return notebook


def _replace(where: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    original = getattr(where, name, None)
    if original is not None:
        setattr(where, name, functools.wraps(original)(make(original)))


def _operator(original: Callable, notebook: Notebook) -> Callable:
    """Collectives are operators of torch's, too, which call the backend without any method of the group."""

    def call(operator: Any, *args: Any, **kwargs: Any) -> Any:
        is_packet = hasattr(operator, "_qualified_op_name")
        namespace, _, name = (operator._qualified_op_name if is_packet else operator.name()).partition("::")
        again = sys._getframe(1).f_code.co_name in ("__torch_dispatch__", "__torch_function__")  # a mode goes on
        if namespace in AS_OPERATORS and not again:
            known = _plain_name(name.partition(".")[0])
            if known:
                tensors = _tensors_in(args[0] if args else None)
                notebook.refuse_collectives_without_end()
                notebook.collective(known, tensors, owner(), None, given_to(known, tensors))
        return original(operator, *args, **kwargs)

    return call


def _plain_name(operator: str) -> str:
    """ "all_reduce" for the operators all_reduce_coalesced and allreduce_; empty for what is no collective."""
    plain = operator.removesuffix("_").removesuffix("_out").removesuffix("_coalesced")
    return NATIVE.get(plain, plain if plain in NATIVE.values() else "")


def _collective(original: Callable, name: str, notebook: Notebook) -> Callable:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = _tensors_in(args[0] if args else None)
        notebook.refuse_collectives_without_end()
        whose, given, work = owner(), given_to(name, tensors), original(group, *args, **kwargs)
        notebook.collective(_as_called(name), tensors, whose, work, given)
        return work

    return method


def _as_called(name: str) -> str:
    """The call of torch's that this is a part of, where that one sends objects; else its own name."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(ON_THE_WAY):
        if frame.f_code.co_name in OF_OBJECTS:
            return frame.f_code.co_name
        frame = frame.f_back
    return name


def _tensors_in(first: Any) -> list[torch.Tensor]:
    """Those of a collective's first argument: one, a list, or (gather, all_gather) a list of lists."""
    if isinstance(first, (list, tuple)):
        return [tensor for one in first for tensor in _tensors_in(one)]
    return [first] if isinstance(first, torch.Tensor) else []


def _announced(original: Callable, notebook: Notebook) -> Callable:
    """picolib's collectives announce themselves to the monitor, once a call."""

    def collective(name: str, group: Any, tensors: Any = (), *args: Any, **kwargs: Any) -> Any:
        notebook.refuse_collectives_without_end()
        call = original(name, group, tensors, *args, **kwargs)
        notebook.collective(name, tensors, name, call if kwargs.get("async_op") else None, given_to(name, tensors))
        return call

    return collective


def _run_to_its_end(original: Callable, notebook: Notebook) -> Callable:
    """picolib's collectives: a synchronous one is over when it returns, an asynchronous one when it is waited for."""

    def start(call: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        work = original(call, tensors, *args, **kwargs)
        if work is None and call.name == "all_reduce":
            notebook.reduction_over(tensors[0])
        return work

    return start


def _stored(original: Callable, name: str, notebook: Notebook) -> Callable:
    """The store, in which ranks find each other: torch and picolib use it to make groups; nobody else needs it."""

    def method(*args: Any, **kwargs: Any) -> Any:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith(STORE_IS_THEIRS):
            notebook.entries.append(["store", name, None, None, None, None, None])
        return original(*args, **kwargs)

    return method


def _message(original: Callable, kind: str, notebook: Notebook) -> Callable:
    def method(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        if len(args) > 1 and not 0 <= args[0] < group.size():
            raise ValueError(f"there is no rank {args[0]}: ranks go from 0 to {group.size() - 1}")
        notebook.refuse_without_end(kind)
        whose, work = owner(), original(group, tensors, *args)
        # -1: a receive from whoever sends first
        peer = _members(group, tensors[0].device)[args[0]] if len(args) > 1 else -1
        notebook.message(kind, tensors[0], peer, work, whose)
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
