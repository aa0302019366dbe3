"""What ranks have sent: exact counters always, single events with `trace=True`.

`Recorder` counts inside a rank; `Trace` puts the ranks' reports together. Both are plain data. Bytes
are counted where they are sent, once. A collective that torch carries out itself is recorded as
(operation, payload): what it puts on the wire is not known here, so its `bytes` is None.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One thing that a rank did. Times are seconds since the run's common start.

    kind: "send", "recv" or "collective", from its announcement until it is through; "wait", while the rank was
        blocked in one of them or in its handle's `wait()`; "mark", a span of the learner's own (`picolib.mark`);
        "compute", a call of `picolib.pretend`. In a run with slow-motion links all times are the planned ones.
    peer: the other rank of a message, else None.
    bytes: bytes of a message; None for a collective, whose messages are events of their own
        (picolib's) or unknown (torch's own).
    call: the collective that a message belongs to, such as "all_reduce[ring]".
    note: what the algorithm says about a message, such as {"chunk": 1, "step": 2}.
    """

    rank: int
    kind: str
    peer: int | None
    bytes: int | None
    label: str
    start: float
    end: float
    call: str | None = None
    note: dict[str, Any] | None = None


class Recorder:
    """The counters and events of one rank."""

    def __init__(self, rank: int, world_size: int, events: bool = False) -> None:
        self.rank = rank
        self.bytes_to = [0] * world_size
        self.messages_to = [0] * world_size
        self.calls: Counter[str] = Counter()
        self.native: dict[str, list[int]] = {}
        self.events: list[tuple] | None = [] if events else None
        self.now: Callable[[], float] = time.monotonic  # with slow-motion links: the rank's clock

    def sent(self, peer: int, nbytes: int) -> None:
        """A message to `peer` was handed over."""
        self.bytes_to[peer] += nbytes
        self.messages_to[peer] += 1

    def native_call(self, name: str, payload: int) -> None:
        """A collective of torch's own on `payload` bytes."""
        record = self.native.setdefault(name, [0, 0])
        record[0] += 1
        record[1] += payload

    def event(
        self,
        kind: str,
        start: float,
        *,
        peer: int | None = None,
        nbytes: int | None = None,
        label: str = "",
        call: str | None = None,
        note: dict | None = None,
        end: float | None = None,
    ) -> None:
        """Something that began at `start` (`now()` of then) and ends now, or at `end`."""
        if self.events is not None:
            end = self.now() if end is None else end
            self.events.append((self.rank, kind, peer, nbytes, label, start, end, call, note))

    def report(self) -> dict[str, Any]:
        """Everything, as plain lists, dicts and numbers."""
        return {
            "rank": self.rank,
            "bytes": self.bytes_to,
            "messages": self.messages_to,
            "calls": dict(self.calls),
            "native": {name: list(record) for name, record in self.native.items()},
            "events": [list(event) for event in self.events or []],
        }


class Trace:
    """The traffic of one run, built from its ranks' reports (a rank that left none counts as silent).

    matrix[src][dst], bytes_sent[rank], messages_sent[rank]: point-to-point messages, also those that
        picolib's collectives are made of.
    calls[rank]: how often each collective was called.
    native[rank]: for torch's own collectives, name -> (calls, payload in bytes).
    events: list of Event, in order of their start; empty without `trace=True`.
    """

    def __init__(self, world_size: int, reports: list[dict[str, Any] | None]) -> None:
        self.world_size = world_size
        by_rank = {r["rank"]: r for r in reports if r}
        nothing = {"bytes": [0] * world_size, "messages": [0] * world_size, "calls": {}, "native": {}, "events": []}
        ordered = [by_rank.get(rank, nothing) for rank in range(world_size)]
        self.matrix: list[list[int]] = [list(r["bytes"]) for r in ordered]
        self.messages: list[list[int]] = [list(r["messages"]) for r in ordered]
        self.calls: list[dict[str, int]] = [dict(r["calls"]) for r in ordered]
        self.native = [{name: tuple(v) for name, v in r["native"].items()} for r in ordered]
        self.events = _common_start([Event(*e) for r in ordered for e in r["events"]])

    @property
    def bytes_sent(self) -> list[int]:
        """Bytes that each rank sent in messages of its own or of picolib's collectives."""
        return [sum(row) for row in self.matrix]

    @property
    def messages_sent(self) -> list[int]:
        """Messages that each rank sent."""
        return [sum(row) for row in self.messages]

    def timeline(self) -> Any:
        """The run as a picture, one lane a rank (needs `trace=True`)."""
        from picolib.course.figures import timeline  # the course stands above launch: only when asked for

        return timeline(self)

    def save(self, path: str | Path) -> None:
        """Write the events in Chrome's trace format: open the file at https://ui.perfetto.dev."""
        Path(path).write_text(json.dumps(self.to_chrome()), encoding="utf-8")

    def to_chrome(self) -> dict[str, Any]:
        """Trace events (microseconds): one process a rank, an arrow from each send to its receive."""
        names = [
            {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
            for rank in range(self.world_size)
        ]
        return {"traceEvents": names + [_slice(e) for e in self.events] + _arrows(self.events), "displayTimeUnit": "ms"}

    def __repr__(self) -> str:
        sent, messages = sum(self.bytes_sent), sum(self.messages_sent)
        return f"Trace({self.world_size} ranks, {messages} messages, {sent} bytes, {len(self.events)} events)"


def _common_start(events: list[Event]) -> list[Event]:
    zero = min((e.start for e in events), default=0.0)
    return sorted((e._replace(start=e.start - zero, end=e.end - zero) for e in events), key=lambda e: (e.start, e.rank))


_LANES = {"collective": 0, "send": 1, "recv": 2, "mark": 3, "wait": 4, "compute": 5}


def _slice(event: Event) -> dict[str, Any]:
    arguments = {"peer": event.peer, "bytes": event.bytes, "call": event.call, **(event.note or {})}
    return {
        "ph": "X",
        "name": event.label or event.kind,
        "cat": event.kind,
        "pid": event.rank,
        "tid": _LANES[event.kind],
        "ts": event.start * 1e6,
        "dur": max(event.end - event.start, 0.0) * 1e6,
        "args": {key: value for key, value in arguments.items() if value is not None},
    }


def _arrows(events: list[Event]) -> list[dict[str, Any]]:
    """The k-th send from a to b goes with b's k-th receive from a under the same collective."""
    arrows: list[dict[str, Any]] = []
    seen: Counter[tuple] = Counter()
    sends: dict[tuple, Event] = {}
    for kind in ("send", "recv"):
        for event in (e for e in events if e.kind == kind and e.peer is not None):
            ends = (event.rank, event.peer) if kind == "send" else (event.peer, event.rank)
            key = (*ends, event.call)
            number = seen[(kind, *key)]
            seen[(kind, *key)] += 1
            if kind == "send":
                sends[(*key, number)] = event
            elif (*key, number) in sends:
                start = sends[(*key, number)]
                common = {"name": "message", "cat": "message", "id": len(arrows) // 2}
                arrows.append({**common, "ph": "s", "pid": start.rank, "tid": _LANES["send"], "ts": start.start * 1e6})
                arrows.append(
                    {**common, "ph": "f", "bp": "e", "pid": event.rank, "tid": _LANES["recv"], "ts": event.end * 1e6}
                )
    return arrows
