"""A run as time passes: one lane a rank, its messages, and the time it only waits for others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.style import (
    ACCENT,
    EMPTY,
    GRID,
    INK,
    LARGE,
    MUTED,
    PAPER,
    SMALL,
    WIDTH,
    ink_on,
    rank_color,
    seconds_text,
)

Span = tuple[float, float]
LEFT, RIGHT, TOP = 78, 108, 92
WORK = "#b9bec4"
SPANS = ("mark", "compute")  # kinds of events in which a rank does something of its own
ARROWS_UP_TO = 60  # messages; beyond that arrows hide more than they show


def timeline(trace: Any, title: str = "What each rank did") -> Figure:
    """The messages of a run made with trace=True, and each rank's exposed communication.

    Exposed is the time a rank spends in communication while it computes nothing: what it waits when it says so
    (events of kind "wait"), else its messages and collectives less the events of kind "mark" and "compute".
    Raises ValueError for a run without events.
    """
    if not trace.events:
        raise ValueError("trace.events is empty: run with trace=True to see a timeline")
    ranks, end = len(trace.bytes_sent), max(e.end for e in trace.events) or 1e-6
    lanes = [_Lane([e for e in trace.events if e.rank == rank]) for rank in range(ranks)]
    messages = sum(e.kind == "send" for e in trace.events)
    alt = f"Timeline of {ranks} ranks: {messages} messages, and the time each rank waits in communication."
    tops = list(accumulate((lane.height + 12 for lane in lanes), initial=TOP))  # and where the axis is
    figure = Figure(tops[-1] + 34, alt, varies=True)
    scale = Scale(0, end, LEFT, WIDTH - RIGHT)
    figure.text(20, 26, title, size=LARGE, bold=True)
    _legend(figure, any(e.kind in SPANS for e in trace.events))
    _axis(figure, scale, tops[-1])
    if messages <= ARROWS_UP_TO:
        _draw_arrows(figure, scale, trace.events, tops)
    for rank, lane in enumerate(lanes):
        _draw_lane(figure, scale, lane, rank, tops[rank])
    return figure


class _Lane:
    """One rank's events, sorted into tracks that do not overlap."""

    def __init__(self, events: Sequence[Any]) -> None:
        of = {kind: [e for e in events if e.kind == kind] for kind in ("send", "recv", "collective", *SPANS)}
        self.marks = [*of["mark"], *of["compute"]]
        covered = [m for m in of["mark"] if any(m.start < c.end and c.start < m.end for c in of["compute"])]
        self.named = [m for m in self.marks if m not in covered]  # what lies inside has the room for its name
        self.exposed = exposed(events)
        self.share = sum(b - a for a, b in self.exposed)
        self.collectives = of["collective"]
        self.tracks = [*tracks(of["send"]), *tracks(of["recv"])]
        self.height = 16 + 13 * max(len(self.tracks), 1)


def union(spans: Iterable[Span]) -> list[Span]:
    """Spans with overlapping ones joined, in order.

    >>> union([(4, 5), (0, 2), (1, 3)])
    [(0, 3), (4, 5)]
    """
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def minus(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """What is left of spans without the holes (both joined).

    >>> minus([(0, 10)], [(2, 3), (5, 6)])
    [(0, 2), (3, 5), (6, 10)]
    """
    left: list[Span] = []
    for start, end in spans:
        for a, b in holes:
            if a < end and b > start:
                if a > start:
                    left.append((start, a))
                start = max(start, b)
        if start < end:
            left.append((start, end))
    return left


def exposed(events: Sequence[Any]) -> list[Span]:
    """When one rank only communicates: while it was blocked, or where that was not recorded, messages less marks.

    A rank that is blocked computes nothing, whatever span it is in: a wait inside `mark("backward")` counts. But what
    begins and ends inside a wait is computed by a collective that computes between its messages (`comm/fused.py`).
    """
    waits = [(e.start, e.end) for e in events if e.kind == "wait"]
    if waits:
        return minus(union(waits), union(_inside(waits, [(e.start, e.end) for e in events if e.kind in SPANS])))
    talk = [(e.start, e.end) for e in events if e.kind in ("send", "recv", "collective")]
    return minus(union(talk), union((e.start, e.end) for e in events if e.kind in SPANS))


def _inside(waits: Sequence[Span], spans: Sequence[Span]) -> list[Span]:
    """The spans that are a part of a wait, and not all of it."""
    return [s for s in spans if any(w[0] <= s[0] and s[1] <= w[1] and s != w for w in waits)]


def tracks(events: Sequence[Any], most: int = 3) -> list[list[Any]]:
    """Events laid on as few tracks as possible without overlaps (at most `most`; then the last one overlaps)."""
    laid: list[list[Any]] = []
    for event in sorted(events, key=lambda e: e.start):
        free = next((t for t in laid if t[-1].end <= event.start), None)
        if free is not None:
            free.append(event)
        elif len(laid) < most:
            laid.append([event])
        else:
            laid[-1].append(event)
    return laid


def _draw_lane(figure: Figure, scale: Scale, lane: _Lane, rank: int, top: float) -> None:
    figure.box(LEFT, top, scale.end - LEFT, 14, fill=EMPTY)
    figure.text(18, top + lane.height / 2, "rank", size=SMALL, color=MUTED)
    figure.rank(60, top + lane.height / 2, rank, radius=12)
    figure.blocks([_bar(scale, e.start, e.end, top, 14) for e in lane.marks], fill=WORK)
    figure.blocks([_bar(scale, *span, top, 14) for span in lane.exposed], fill=ACCENT)
    alone = [c for c in lane.collectives if not any(m.start < c.end and c.start < m.end for m in lane.marks)]
    for event in (*lane.named, *alone):  # a collective behind compute has its messages below, and no room for a name
        _name(figure, scale, event, top + 7)
    for number, track in enumerate(lane.tracks):
        for event in track:
            y = top + 17 + 13 * number
            sender = rank if event.kind == "send" else event.peer
            x, y, width, thick = _bar(scale, event.start, event.end, y, 11)
            figure.box(x, y, width, thick, fill=rank_color(sender))
            if width > 20:
                text = f"→{event.peer}" if event.kind == "send" else f"←{event.peer}"
                figure.text(x + width / 2, y + 5.5, text, size=10, anchor="middle", color=ink_on(rank_color(sender)))
    share = 100 * lane.share / scale.high
    figure.text(scale.end + 8, top + 7, f"{share:.0f}% exposed", size=SMALL, bold=True, color=ACCENT)


def _bar(scale: Scale, start: float, end: float, y: float, height: float) -> tuple[float, float, float, float]:
    x = scale(start)
    return x, y, max(scale(end) - x, 1.5), height


def _name(figure: Figure, scale: Scale, event: Any, y: float) -> None:
    text = event.label or event.call or ""
    x0, x1 = scale(event.start), scale(event.end)
    figure.line([(x0, y - 7), (x0, y + 7)], PAPER, 1)
    if text_width(text, 10) < x1 - x0 - 6:
        color = INK if event.kind in SPANS else "#ffffff"
        figure.text((x0 + x1) / 2, y, text, size=10, anchor="middle", color=color)


def _draw_arrows(figure: Figure, scale: Scale, events: Sequence[Any], tops: Sequence[float]) -> None:
    """From where a message was sent to where it was received: the k-th send from a to b is b's k-th receive from a."""
    arrivals: dict[tuple[int, int], list[Any]] = {}
    for event in (e for e in events if e.kind == "recv"):
        arrivals.setdefault((event.peer, event.rank), []).append(event)
    for event in (e for e in events if e.kind == "send"):
        there = arrivals.get((event.rank, event.peer))
        if there:
            start, end = tops[event.rank] + 26, tops[event.peer] + 28
            figure.arrow((scale(event.start), start), (scale(there.pop(0).end), end), rank_color(event.rank), 1, head=6)


def _axis(figure: Figure, scale: Scale, y: float) -> None:
    for value in scale.ticks():
        figure.line([(scale(value), TOP - 8), (scale(value), y)], GRID)
        figure.text(
            scale(value), y + 14, seconds_text(value) if value else "0", size=SMALL, color=MUTED, anchor="middle"
        )
    figure.text(WIDTH - 20, y + 14, "time", size=SMALL, color=INK, anchor="end")


def _legend(figure: Figure, computes: bool) -> None:
    entries = [
        (ACCENT, "exposed communication"),
        (rank_color(0), "message, in its sender's colour: → sent  ← received"),
    ]
    if computes:
        entries.insert(0, (WORK, "compute"))
    x = 20.0
    for color, text in entries:
        figure.box(x, 46, 16, 12, fill=color)
        figure.text(x + 22, 52, text, size=SMALL, color=MUTED)
        x += 44 + text_width(text, SMALL)
