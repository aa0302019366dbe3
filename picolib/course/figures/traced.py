"""The moves of a collective, read from the trace of a run.

A message's step is not written down: it follows from what the sender had waited for before. It is the first step
possible after the messages that the sender had received, and had finished sending, when it began this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from picolib.course.figures import schedules
from picolib.course.figures.moves import Move, by_step

ChunkOf = Callable[[int, int], int | tuple[int, ...]]  # (rank, its how manyth message) -> chunk or chunks


def collectives(trace: Any) -> list[str | None]:
    """The names under which messages were sent ("all_reduce[ring]"; None: by send and isend), in order."""
    return list(dict.fromkeys(e.call for e in trace.events or () if e.kind == "send"))


def from_trace(trace: Any, call: str | None = None, chunk_of: ChunkOf | None = None) -> list[list[Move]]:
    """The steps of the first collective of the run, or the first one named `call`.

    chunk_of: which chunk a rank's k-th message carries, for messages of your own code, which do not say so.
    Raises ValueError when there is nothing to read, or nothing says which chunk a message carries.
    """
    names = collectives(trace)
    if not names:
        raise ValueError("trace holds no messages: run with trace=True, and with an algorithm of picolib's own")
    call = names[0] if call is None else call
    if call not in names:
        raise ValueError(f"call={call!r} sent nothing in this run; there is {', '.join(map(repr, names))}")
    events = _first(trace, call)
    sends = [e for e in events if e.kind == "send"]
    chunks = _chunks(call, sends, chunk_of)
    if chunks is None:
        return _defined(call, sends, len(trace.bytes_sent))
    return by_step(Move(s, e.rank, e.peer, c) for s, e, c in zip(causal_steps(events), sends, chunks, strict=True))


def _first(trace: Any, call: str | None) -> list[Any]:
    """Messages of each rank's first collective of that name, in order of time; all of them if there is none."""
    ends: dict[int, float] = {}
    for event in trace.events:
        if event.kind == "collective" and event.call == call:
            ends.setdefault(event.rank, event.end)
    found = [e for e in trace.events if e.kind in ("send", "recv") and e.call == call]
    return sorted((e for e in found if e.start <= ends.get(e.rank, e.start)), key=lambda e: e.start)


def causal_steps(events: Sequence[Any]) -> list[int]:
    """The step of each send among the events (which are in order of time)."""
    sent: dict[tuple[int, int], list[int]] = {}  # sender, receiver -> steps of the messages between them, in order
    finished: dict[int, list[tuple[float, int]]] = {}  # rank -> (end, step) of its messages
    received: Counter[tuple[int, int]] = Counter()
    steps = []
    pending = [e for e in events if e.kind == "recv"]
    for event in (e for e in events if e.kind == "send"):
        mine = [e for e in pending if e.rank == event.rank and e.end <= event.start]
        for arrived in mine:  # the k-th receive from a rank is its k-th send to this one
            pending.remove(arrived)
            pair = (arrived.peer, arrived.rank)
            finished.setdefault(arrived.rank, []).append((arrived.end, sent[pair][received[pair]]))
            received[pair] += 1
        step = 1 + max((s for end, s in finished.get(event.rank, ()) if end <= event.start), default=-1)
        finished.setdefault(event.rank, []).append((event.end, step))
        sent.setdefault((event.rank, event.peer), []).append(step)
        steps.append(step)
    return steps


def _chunks(call: str | None, sends: Sequence[Any], chunk_of: ChunkOf | None) -> list[tuple[int, ...]] | None:
    """The chunks of each message: told by `chunk_of`, noted, or the whole tensor; None when the definition must say."""
    if chunk_of is not None:
        counts: Counter[int] = Counter()
        told = []
        for event in sends:
            told.append(_tuple(chunk_of(event.rank, counts[event.rank])))
            counts[event.rank] += 1
        return told
    if call is None:
        raise ValueError("messages sent by send or isend do not say which chunk they carry: pass chunk_of")
    collective, algorithm = _name(call)
    if algorithm not in schedules.SCHEDULES.get(collective, {}):
        return None  # notes of an algorithm within an algorithm count chunks of its part only
    noted = [(e.note or {}).get("chunk") for e in sends]
    if all(chunk is not None for chunk in noted):
        return [_tuple(chunk) for chunk in noted]
    whole = all(m.chunks == (0,) for m in schedules.SCHEDULES[collective][algorithm](4))
    return [(0,)] * len(sends) if whole and noted.count(None) == len(noted) else None


def _tuple(chunk: int | tuple[int, ...]) -> tuple[int, ...]:
    return (chunk,) if isinstance(chunk, int) else tuple(chunk)


def _name(call: str) -> tuple[str, str]:
    """ "all_reduce[ring]" -> ("all_reduce", "ring"); the single-tensor names of torch mean the same."""
    collective, _, algorithm = call.rstrip("]").partition("[")
    for ending in ("_into_tensor", "_tensor", "_single"):
        collective = collective.removesuffix(ending)
    return collective, algorithm


def _defined(call: str, sends: Sequence[Any], ranks: int) -> list[list[Move]]:
    """The steps by the algorithm's definition, if the run sent the same messages."""
    steps = schedules.steps(*_name(call), ranks)
    if Counter((m.src, m.dst) for step in steps for m in step) != Counter((e.rank, e.peer) for e in sends):
        raise ValueError(f"{call} sent other messages here than its picture has: try a smaller tensor on all ranks")
    return steps
