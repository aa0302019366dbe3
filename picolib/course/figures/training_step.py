"""One training step from a run's own trace: what each rank computes, which all-reduces run behind it, what is exposed.

The step is what stands inside `picolib.mark("step")`; marks inside it, such as "forward" and "backward", are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.figures.timeline import WORK, Span, exposed, minus, tracks, union
from picolib.course.style import ACCENT, EMPTY, GOOD, GRID, INK, LARGE, MUTED, PAPER, SMALL, WIDTH, seconds_text, tint
from picolib.course.words import ranks_text

LEFT, RIGHT, TOP = 78, 136, 92
ROW, GAP = 15, 17
NAME_SIZES = (10, 9, 8, 7)  # of spans; the largest that fits
HIDDEN = tint(GOOD, 0.55)


class Step(NamedTuple):
    """One step of one rank; times are seconds since it began."""

    seconds: float
    marks: list[Any]
    collectives: list[Any]
    exposed: list[Span]

    @property
    def exposed_seconds(self) -> float:
        """How long the rank was blocked in communication."""
        return sum(end - start for start, end in self.exposed)


def steps_of(trace: Any, number: int | None = None) -> list[Step]:
    """Step `number` of each rank; None: the quickest, since whatever else runs on the machine makes a step slower.

    Raises:
        ValueError: the run has no such step, or no events at all.
    """
    ranks = [_steps(trace, rank) for rank in range(trace.world_size)]
    count = min(map(len, ranks))
    if count == 0 or (number is not None and not -count <= number < count):
        raise ValueError(
            f"number={number}: there are {count} steps in this trace. Run with trace=True, and put each step into "
            '`with picolib.mark("step"):`.'
        )
    if number is None:
        number = min(range(count), key=lambda k: max(steps[k].seconds for steps in ranks))
    return [steps[number] for steps in ranks]


def exposed_seconds(trace: Any, number: int | None = None) -> list[float]:
    """For each rank, the time of a step (None: the quickest) in which it was blocked in communication."""
    return [step.exposed_seconds for step in steps_of(trace, number)]


def _steps(trace: Any, rank: int) -> list[Step]:
    events = [e for e in trace.events if e.rank == rank]
    return [_cut(events, e) for e in events if e.kind == "mark" and e.label == "step"]


def _cut(events: Sequence[Any], step: Any) -> Step:
    inside = [e for e in events if e.start < step.end and e.end > step.start and e is not step]
    moved = [
        e._replace(start=max(e.start, step.start) - step.start, end=min(e.end, step.end) - step.start) for e in inside
    ]
    of = {kind: [e for e in moved if e.kind == kind] for kind in ("mark", "collective")}
    return Step(step.end - step.start, of["mark"], of["collective"], exposed(moved))


def training_step(
    trace: Any,
    title: str = "One training step",
    number: int | None = None,
    ranks: Sequence[int] = (0, 1),
) -> Figure:
    """A step (None: the quickest) of some ranks: its marks, and below them its all-reduces, hidden or exposed (red)."""
    steps = steps_of(trace, number)
    shown = [(rank, steps[rank]) for rank in ranks if rank < len(steps)]
    counts = [len(step.collectives) for _, step in shown]
    alt = f"{title}: forward, backward and {max(counts)} collectives of a rank, and the time in which it only waits."
    heights = [ROW + GAP * max(len(_tracks(step.collectives)), 1) + 16 for _, step in shown]
    figure = Figure(TOP + sum(heights) + 30, alt, varies=True)
    scale = Scale(0, max(step.seconds for _, step in shown), LEFT, WIDTH - RIGHT)
    figure.text(20, 26, title, size=LARGE, bold=True)
    if len(shown) < len(steps):
        text = f"{ranks_text([rank for rank, _ in shown])} of {len(steps)}"
        figure.text(WIDTH - 20, 26, text, size=SMALL, color=MUTED, anchor="end")
    _legend(figure)
    _axis(figure, scale, TOP + sum(heights))
    for place, (rank, step) in enumerate(shown):
        _lane(figure, scale, rank, step, TOP + sum(heights[:place]))
    return figure


def _tracks(collectives: Sequence[Any]) -> list[list[Any]]:
    return tracks(collectives, most=6)


def _lane(figure: Figure, scale: Scale, rank: int, step: Step, top: float) -> None:
    figure.text(18, top + 14, "rank", size=SMALL, color=MUTED)
    figure.rank(60, top + 14, rank, radius=12)
    figure.box(LEFT, top, scale.end - LEFT, ROW, fill=EMPTY)
    figure.blocks([_bar(scale, e.start, e.end, top) for e in step.marks], fill=WORK)
    figure.blocks([_bar(scale, *span, top) for span in step.exposed], fill=ACCENT)
    for mark in step.marks:
        figure.line([(scale(mark.start), top), (scale(mark.start), top + ROW)], PAPER, 1)
        _name(figure, scale, *_room(scale, mark, step.exposed), mark.label, top, INK)
    for number, track in enumerate(_tracks(step.collectives)):
        for event in track:
            _collective(figure, scale, event, step.exposed, top + GAP * (number + 1))
    text = f"{seconds_text(step.exposed_seconds)} exposed"
    figure.text(scale.end + 8, top + 8, text, size=SMALL, bold=True, color=ACCENT)
    figure.text(scale.end + 8, top + 8 + GAP, f"{seconds_text(step.seconds)} in all", size=SMALL, color=INK)


def _room(scale: Scale, mark: Any, red: Sequence[Span]) -> tuple[Span, float]:
    """The first grey part of a span that its name fits into, and in which size; else the longest one (no name)."""
    grey = minus([(mark.start, mark.end)], red) or [(mark.start, mark.start)]
    for size in NAME_SIZES:
        for start, end in grey:
            if scale(end) - scale(start) > text_width(mark.label, size) + 6:
                return (start, end), size
    return max(grey, key=lambda span: span[1] - span[0]), NAME_SIZES[-1]


def _collective(figure: Figure, scale: Scale, event: Any, red: Sequence[Span], top: float) -> None:
    whole = [(event.start, event.end)]
    hidden = [span for span in minus(whole, union(red)) if scale(span[1]) - scale(span[0]) > 1]
    open_to_view = minus(whole, hidden)
    for spans, color in ((hidden, HIDDEN), (open_to_view, ACCENT)):
        figure.blocks([_bar(scale, *span, top) for span in spans], fill=color)
    longest = max(hidden + open_to_view, key=lambda span: span[1] - span[0])
    _name(figure, scale, longest, NAME_SIZES[0], event.label.split("] ")[-1], top, INK if longest in hidden else PAPER)
    figure.line([(scale(event.start), top), (scale(event.start), top + ROW)], PAPER, 1)


def _bar(scale: Scale, start: float, end: float, top: float) -> tuple[float, float, float, float]:
    x = scale(start)
    return x, top, max(scale(end) - x, 1.0), ROW


def _name(figure: Figure, scale: Scale, span: Span, size: float, text: str, top: float, color: str) -> None:
    x0, x1 = scale(span[0]), scale(span[1])
    if text_width(text, size) < x1 - x0 - 6:
        figure.text(x0 + (5 if size == NAME_SIZES[0] else 3), top + ROW / 2, text, size=size, color=color)


def _axis(figure: Figure, scale: Scale, y: float) -> None:
    for value in scale.ticks():
        figure.line([(scale(value), TOP - 8), (scale(value), y)], GRID)
        text = seconds_text(value) if value else "0"
        figure.text(scale(value), y + 14, text, size=SMALL, color=MUTED, anchor="middle")


def _legend(figure: Figure) -> None:
    x = 20.0
    for color, text in (
        (WORK, "compute"),
        (HIDDEN, "communication, hidden behind it"),
        (ACCENT, "exposed: the rank only waits"),
    ):
        figure.box(x, 51, 14, 12, fill=color)
        figure.text(x + 20, 57, text, size=SMALL, color=MUTED)
        x += 34 + text_width(text, SMALL)
