"""Plain `torch.distributed` calls on the board.

Every call of `torch.distributed`, whether `dist.all_reduce(x)`, `group.allreduce([x])` or one that
FSDP makes, ends in a method of `ProcessGroup`, and every wait in `Work.wait`. Those are what is
replaced here; the public functions keep their signatures and documentation, and remain what other
modules have imported. Collectives that torch starts in C++ (DDP's reducer) are not seen.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from picolib.launch import monitor, network, pretending
from picolib.launch.board import ANY_RANK, RECV, SEND
from picolib.launch.memory import is_dense, sharing
from picolib.launch.observed import Call, Message, Observer, op_name
from picolib.launch.places import find_place


class Told(NamedTuple):
    """What a call of a process group's method is about."""

    name: str
    inputs: Sequence[torch.Tensor] = ()
    outputs: Sequence[torch.Tensor] = ()
    in_place: bool = False
    strict: bool = True
    splits: tuple[Sequence[int], Sequence[int]] | None = None


def _tensors(argument: Any) -> list[torch.Tensor]:
    """The tensors in a tensor, a list, or a list of lists."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [t for item in argument for t in _tensors(item)] if isinstance(argument, (list, tuple)) else []


def _in_place(name: str) -> Callable[..., Told]:
    return lambda tensors, *rest: Told(name, _tensors(tensors), in_place=True)


def _out_in(name: str) -> Callable[..., Told]:
    return lambda outputs, inputs, *rest: Told(name, _tensors(inputs), _tensors(outputs))


def _scatter(outputs: Any, inputs: Any, *rest: Any) -> Told:
    return Told("scatter", _tensors(outputs), _tensors(outputs))  # only the root has inputs: compare the outputs


def _all_to_all(outputs: Any, inputs: Any, *rest: Any) -> Told:
    sent, received = _tensors(inputs), _tensors(outputs)
    splits = [t.numel() for t in sent], [t.numel() for t in received]
    return Told("all_to_all", sent[:1], received, strict=False, splits=splits)


def _all_to_all_single(output: Any, inputs: Any, out_splits: Any = None, in_splits: Any = None, *rest: Any) -> Told:
    uneven = bool(out_splits) or bool(in_splits)
    splits = (list(in_splits or ()), list(out_splits or ())) if out_splits and in_splits else None
    return Told("all_to_all_single", _tensors(inputs), _tensors(output), strict=not uneven, splits=splits)


METHODS: dict[str, Callable[..., Told]] = {
    "allreduce": _in_place("all_reduce"),
    "allreduce_coalesced": _in_place("all_reduce_coalesced"),
    "broadcast": _in_place("broadcast"),
    "reduce": _in_place("reduce"),
    "allgather": _out_in("all_gather"),
    "_allgather_base": _out_in("all_gather_into_tensor"),
    "all_gather_single": _out_in("all_gather_into_tensor"),
    "gather": _out_in("gather"),
    "scatter": _scatter,
    "reduce_scatter": _out_in("reduce_scatter"),
    "_reduce_scatter_base": _out_in("reduce_scatter_tensor"),
    "reduce_scatter_single": _out_in("reduce_scatter_tensor"),
    "alltoall": _all_to_all,
    "alltoall_base": _all_to_all_single,
    "all_to_all_single": _all_to_all_single,
    "barrier": lambda *rest: Told("barrier"),
}

_REDUCING = {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}

# Handles whose wait() the board must know: id -> (weak reference that keeps the table clean, record).
_handles: dict[int, tuple[weakref.ref, Call | Message]] = {}


def install() -> bool:
    """Replace what the board must see; whether this was the first time in this process."""
    if getattr(dist.Work.wait, "picolib", False):
        return False
    for method, reader in METHODS.items():
        if hasattr(dist.ProcessGroup, method):
            _replace(dist.ProcessGroup, method, lambda original, r=reader: _collective(original, r))
    for method, kind in (("send", SEND), ("recv", RECV), ("recv_anysource", RECV)):
        _replace(dist.ProcessGroup, method, lambda original, k=kind: _message(original, k))
    _replace(dist.Work, "wait", _wait)
    _replace(c10d, "_new_group_with_tag", _new_group)
    _replace(c10d, "get_group_rank", _get_group_rank)
    return True


def _replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    original = getattr(owner, name)
    replacement = functools.wraps(original)(make(original))
    replacement.picolib = True
    setattr(owner, name, replacement)


def _active() -> Observer | None:
    return None if monitor.is_suspended() else monitor.observer()


def _collective(original: Callable, read: Callable[..., Told]) -> Callable:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        observer = _active()
        if observer is None:
            return original(group, *args, **kwargs)
        if network.current is not None:
            network.refuse(read(*args, **{key: value for key, value in kwargs.items() if key != "opts"}).name)
        call = _announce(observer, group, read, args, kwargs)
        work = original(group, *args, **kwargs)
        if work is not None:
            remember(work, call)
        return work

    return method


def _announce(observer: Observer, group: Any, read: Callable[..., Told], args: tuple, kwargs: dict) -> Call:
    told = read(*args, *(value for key, value in kwargs.items() if key != "opts"))
    options = kwargs.get("opts", args[-1] if args else None)
    observer.recorder.native_call(told.name, sum(t.numel() * t.element_size() for t in told.inputs))
    if observer.announcer is None:
        return observer.collective(told.name, group, ())
    place = find_place()
    contiguous = all([t.is_contiguous() for t in (told.inputs if told.in_place else told.outputs)])
    if not contiguous or len(told.outputs) > 1:
        _check_memory(observer, told)
    op = op_name(options.reduceOp) if told.name in _REDUCING and hasattr(options, "reduceOp") else None
    root = _root(group, options) if told.name in _ROOTED else None
    return observer.collective(
        told.name, group, told.inputs, op, root, None, None, bool(getattr(options, "asyncOp", False)),
        told.strict, told.splits, place, None if contiguous else _layout(told),
    )  # fmt: skip


def _root(group: Any, options: Any) -> int | None:
    """The root's global rank."""
    root = getattr(options, "rootRank", -1)
    return dist.get_global_rank(group, root) if root >= 0 else None


def _layout(told: Told) -> tuple[str, Any] | None:
    """An in-place collective reads memory in its own order, so a transpose must be one on all ranks."""
    strides = [t.stride() for t in told.inputs if not t.is_contiguous()] if told.in_place else []
    return ("strides", [list(s) for s in strides]) if strides else None


def _check_memory(observer: Observer, told: Told) -> None:
    """Refuse what the backend would read or write wrongly without a word."""
    written = told.inputs if told.in_place else told.outputs
    for tensor in written:
        if not is_dense(tensor) or not (told.in_place or tensor.is_contiguous()):
            which = "the tensor" if told.in_place else "an output tensor"
            observer.announcer.fail(
                f"rank {observer.rank}: {told.name} got {which} that is a strided view (shape {list(tensor.shape)}, "
                f"strides {list(tensor.stride())}); the backend would read or write its neighbours in memory.\n"
                "Give it a contiguous copy, x.contiguous(), and copy the result back."
            )
    pair = sharing(told.outputs) if len(told.outputs) > 1 else None
    if pair is not None:
        observer.announcer.fail(
            f"rank {observer.rank}: {told.name}: output tensors share memory (numbers {pair[0]} and {pair[1]} of the "
            "list), so all would end as the last one written.\n"
            "Make them one by one: [torch.empty_like(t) for _ in range(world_size)], not [t] * world_size."
        )


def _message(original: Callable, kind: int) -> Callable:
    def method(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        observer = _active()
        if observer is None:
            return original(group, tensors, *args)
        anyone = len(args) < 2
        tag = args[-1]
        peer = ANY_RANK if anyone else dist.get_process_group_ranks(group)[args[0]]
        place = find_place()
        message = observer.message(kind, tensors[0], group, peer, tag, place=place)
        message.delay = network.of_learner(kind, tensors[0], group, peer, tag)
        work = original(group, tensors, *args)
        if place.public not in ("send", "recv") and place.direct:
            message.handle_created(work)
        if work is not None:
            remember(work, message)
        return work

    return method


def remember(work: Any, record: Call | Message) -> None:
    """`Work.wait` of this handle ends this call or message."""
    key = id(work)
    _handles[key] = weakref.ref(work, lambda _: _handles.pop(key, None)), record


def _wait(original: Callable) -> Callable:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        entry = _handles.pop(id(self), None)
        if entry is None or entry[0]() is not self:
            return original(self, *args, **kwargs)
        record = entry[1]
        ends_by_itself = any(isinstance(a, timedelta) and a for a in (*args, *kwargs.values()))
        try:
            with record.waiting(on_board=not ends_by_itself), network.still():
                result = original(self, *args, **kwargs)
                if record.delay is not None:
                    _wait_until_due(self, record)
        except BaseException:
            record.abandon()
            raise
        if record.delay is None:
            record.done()
        else:
            record.done_at(record.delay.end)
        return result

    return wait


def _wait_until_due(work: Any, message: Message) -> None:
    """The backend has carried the message; in slow motion it may still be on its way."""
    if message.peer == ANY_RANK and message.kind == RECV:
        message.delay.came_from(work._source_rank())
    pretending.look_after_others_until(message.delay.end)
    message.delay.wait()


def _new_group(original: Callable) -> Callable:
    def _new_group_with_tag(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        observer = _active()
        if observer is None or observer.announcer is None or kwargs.get("use_local_synchronization"):
            return original(ranks, *args, **kwargs)
        world = list(range(dist.get_world_size()))
        everyone = observer.announcer.named_group("new_group", world)
        wanted = sorted(ranks) if ranks is not None else world
        place = find_place()
        call = observer.collective("new_group", everyone, (), place=place, extra=("ranks", wanted))
        observer.recorder.calls["new_group"] -= 1  # it moves no data: the trace doesn't count it
        with call.waiting():
            return original(ranks, *args, **kwargs)

    return _new_group_with_tag


def _get_group_rank(original: Callable) -> Callable:
    def get_group_rank(group: Any, global_rank: int) -> int:
        try:
            return original(group, global_rank)
        except ValueError:
            members = dist.get_process_group_ranks(group) if group in c10d._world.pg_group_ranks else None
            if members is None or global_rank in members:
                raise
            raise ValueError(
                f"rank {global_rank} is not in the group {members}; src= and dst= take a rank of the world, "
                "group_src= and group_dst= a place in the group"
            ) from None

    return get_group_rank
