"""A training step under `fully_shard`, on one rank: when each layer is a part, on its way, whole, and computing.

Drawn from the trace of a run with `picolib.mark("step")`, in which every layer's compute is
`picolib.pretend(seconds, "NAME forward")` or "NAME backward", NAME being its path in the model. What travels tells its
name by itself: fully_shard labels its collectives "NAME unshard" and "NAME reduce".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure, text_width
from picolib.course.style import (
    ACCENT,
    EMPTY,
    GOOD,
    GRID,
    INK,
    LARGE,
    MUTED,
    NORMAL,
    SMALL,
    TITLE,
    WIDTH,
    ink_on,
    rank_color,
    seconds_text,
    tint,
)

SHARD, GATHERING, WHOLE, FORWARD, BACKWARD, REDUCING, REDUCED = range(7)
SAYS = {
    SHARD: "its part alone",
    GATHERING: "on its way: the other ranks' parts arrive",
    WHOLE: "whole, and waits for its turn",
    FORWARD: "whole, computes forward",
    BACKWARD: "whole, computes backward",
    REDUCING: "freed; its gradient, whole, is being reduced and scattered",
    REDUCED: "its part alone, with its part of the mean gradient",
}
SHORT = ("part", "on its way", "whole", "forward", "backward", "reducing its gradient", "done")
COLORS = (EMPTY, tint("#6699cc", 0.45), "#6699cc", "#332288", "#882255", "#cc6677", tint(GOOD, 0.55))
NEXT = {"unshard": (GATHERING, WHOLE), "forward": (FORWARD, SHARD), "backward": (BACKWARD, REDUCING),
        "reduce": (REDUCING, REDUCED)}  # fmt: skip
IN_MEMORY = (GATHERING, WHOLE, FORWARD, BACKWARD)  # a whole layer's room is taken
TOGETHER = 2e-4  # seconds within which changes make one picture


class Moment(NamedTuple):
    """The layers from `time` (seconds since the step began) on: the state of each."""

    time: float
    states: tuple[int, ...]

    @property
    def whole(self) -> int:
        """Layers whose whole weight has room in memory."""
        return sum(state in IN_MEMORY for state in self.states)


class Life(NamedTuple):
    """A step of one rank."""

    rank: int
    ranks: int
    layers: list[str]
    moments: list[Moment]
    seconds: float


def life_of(trace: Any, rank: int = 0, step: int = -1) -> Life:
    """Step number `step` of a rank (the last one by default).

    Raises:
        ValueError: the trace has no such step, or no layer in it.
    """
    events = [e for e in trace.events if e.rank == rank]
    steps = [e for e in events if e.kind == "mark" and e.label == "step"]
    if not -len(steps) <= step < len(steps):
        raise ValueError(f'step={step}: rank {rank} has {len(steps)} spans of picolib.mark("step") in its trace.')
    span = steps[step]
    inside = [e for e in events if e.start >= span.start - 1e-6 and e.end <= span.end + 1e-6]
    changes = sorted(change for event in inside for change in _changes(event, span.start))
    if not changes:
        raise ValueError('trace: no layer of fully_shard, or no picolib.pretend(..., "NAME forward"), in this step.')
    layers = sorted({name for _, name, _ in changes}, key=lambda name: (len(name), name))
    return Life(rank, trace.world_size, layers, _moments(changes, layers), span.end - span.start)


def _changes(event: Any, begin: float) -> list[tuple[float, str, int]]:
    """(time, layer, state) at the event's start and end; none for other events."""
    if event.kind not in ("collective", "compute"):
        return []
    name, _, what = event.label.split("] ")[-1].rpartition(" ")
    if what not in NEXT or not name:
        return []
    first, then = NEXT[what]
    return [(event.start - begin, name, first), (event.end - begin, name, then)]


def _moments(changes: Sequence[tuple[float, str, int]], layers: Sequence[str]) -> list[Moment]:
    states = dict.fromkeys(layers, SHARD)
    moments = [Moment(0.0, tuple(states.values()))]
    for time, name, state in changes:
        if (states[name], state) != (REDUCING, SHARD):
            states[name] = state
        together = time - moments[-1].time < TOGETHER
        moments[len(moments) - together :] = [Moment(moments[-1].time if together else time, tuple(states.values()))]
    return moments


# The whole step --------------------------------------------------------------------------------------------------

LEFT, RIGHT, TOP, ROW = 96, 24, 104, 26


def fsdp_life(trace: Any, follow: int | None = None, rank: int = 0, step: int = -1, title: str = "") -> Figure:
    """All layers of a rank over time, a colour a state; below, how many have room for all of it. `follow`: to frame."""
    life = life_of(trace, rank, step)
    count = len(life.layers)
    title = title or f"One step on rank {rank} of {life.ranks}: where each layer's weight is"
    alt = f"{title}. {count} layers over time, each a part, on its way, whole, computing, or reduced."
    figure = Figure(TOP + ROW * count + 96, alt, varies=True)
    figure.text(20, 26, title, size=LARGE, bold=True)
    _legend(figure)
    scale = Scale(0, life.seconds, LEFT, WIDTH - RIGHT)
    for value in scale.ticks():
        figure.line([(scale(value), TOP - 6), (scale(value), TOP + ROW * count + 62)], GRID)
        text = seconds_text(value) if value else "0"
        figure.text(scale(value), TOP + ROW * count + 76, text, size=SMALL, color=MUTED, anchor="middle")
    ends = [moment.time for moment in life.moments[1:]] + [life.seconds]
    for place, name in enumerate(life.layers):
        top = TOP + ROW * place
        figure.text(20, top + ROW / 2, f"layer {name}", size=SMALL, bold=place == follow)
        for moment, end in zip(life.moments, ends, strict=True):
            x = scale(moment.time)
            figure.box(x, top + 3, max(scale(end) - x, 0.5), ROW - 6, fill=COLORS[moment.states[place]])
        if place == follow:
            figure.box(LEFT - 3, top, WIDTH - RIGHT - LEFT + 6, ROW, stroke=INK, stroke_width=1.8)
    _whole_at_once(figure, life, scale, ends, TOP + ROW * count + 10)
    return figure


def _legend(figure: Figure) -> None:
    x = 20.0
    for state, text in enumerate(SHORT):
        figure.box(x, 53, 14, 12, fill=COLORS[state])
        figure.text(x + 19, 59, text, size=SMALL, color=MUTED)
        x += 32 + text_width(text, SMALL)


def _whole_at_once(figure: Figure, life: Life, scale: Scale, ends: Sequence[float], top: float) -> None:
    """A staircase: layers that are whole, or get room for it."""
    most, height = max(moment.whole for moment in life.moments), 44
    figure.text(20, top + 14, "whole, or", size=SMALL)
    figure.text(20, top + 29, "on the way", size=SMALL)
    for moment, end in zip(life.moments, ends, strict=True):
        x, size = scale(moment.time), height * moment.whole / max(most, 1)
        if moment.whole:
            figure.box(x, top + height - size, max(scale(end) - x, 0.5), size, fill=tint(ACCENT, 0.35))
    peak = next(moment for moment in life.moments if moment.whole == most)
    figure.text(scale(peak.time) + 3, top + 9, str(most), size=SMALL, bold=True, color=ACCENT)


# One moment of it ------------------------------------------------------------------------------------------------

CELL, WEIGHTS, GRADIENTS, LINE = 34, 112, 318, 40


def fsdp_frame(life: Life, number: int, follow: int | None = None) -> Figure:
    """One moment, large: for each layer which parts of its weight and of its gradient this rank holds."""
    moment = life.moments[number]
    said = SAYS[moment.states[follow]] if follow is not None else ""
    when = seconds_text(moment.time) if number else "the step begins"
    head = f"{when}: {moment.whole} of {len(life.layers)} whole, or on the way"
    alt = f"Rank {life.rank}, moment {number} of the step. Each layer's parts of weight and gradient that are there."
    figure = Figure(100 + LINE * len(life.layers) + 34, alt, varies=True)
    figure.text(20, 28, f"rank {life.rank}, {head}", size=TITLE, bold=True)
    if follow is not None:
        figure.text(20, 52, f"layer {life.layers[follow]}: {said}", size=NORMAL, color=ACCENT, bold=True)
    figure.text(WEIGHTS, 80, "weight", size=SMALL, color=MUTED)
    figure.text(_gradients(life), 80, "gradient", size=SMALL, color=MUTED)
    for place, (name, state) in enumerate(zip(life.layers, moment.states, strict=True)):
        top = 92 + LINE * place
        if place == follow:
            figure.box(10, top - 2, WIDTH - 20, LINE - 2, stroke=ACCENT, stroke_width=1.5, radius=6)
        figure.text(20, top + 17, f"layer {name}", size=NORMAL, bold=place == follow)
        _weight(figure, life, state, top + 4)
        _gradient(figure, life, state, top + 4)
        figure.text(_gradients(life) + CELL * life.ranks + 20, top + 17, SHORT[state], size=SMALL, color=MUTED)
    foot = "A cell is one rank's part, in its colour. Dashed: room for what is on its way. Gradients: whose batches."
    figure.text(20, 92 + LINE * len(life.layers) + 20, foot, size=SMALL, color=MUTED)
    return figure


def _gradients(life: Life) -> float:
    return max(GRADIENTS, WEIGHTS + CELL * life.ranks + 40)


def _cells(life: Life, x: float, y: float) -> list[tuple[float, float, float, float]]:
    return [(x + CELL * part + 1, y, CELL - 3, 26) for part in range(life.ranks)]


def _weight(figure: Figure, life: Life, state: int, y: float) -> None:
    for part, cell in enumerate(_cells(life, WEIGHTS, y)):
        if part == life.rank or state in (WHOLE, FORWARD, BACKWARD):
            figure.box(*cell, fill=rank_color(part))
            figure.text(cell[0] + cell[2] / 2, y + 13, str(part), size=SMALL, color=ink_on(rank_color(part)),
                        anchor="middle", bold=True)  # fmt: skip
        elif state == GATHERING:
            figure.box(*cell, stroke=MUTED, stroke_width=1.4, dash=True)
        else:
            figure.box(*cell, fill=EMPTY)


def _gradient(figure: Figure, life: Life, state: int, y: float) -> None:
    """Whole: in this rank's colour, since it is of its batch alone. Reduced: a strip for every rank's batch."""
    for part, (x, top, width, height) in enumerate(_cells(life, _gradients(life), y)):
        if state == REDUCING:
            figure.box(x, top, width, height, fill=rank_color(life.rank))
        elif state == REDUCED and part == life.rank:
            strip = width / life.ranks
            for source in range(life.ranks):
                figure.box(x + strip * source, top, strip, height, fill=rank_color(source))
        else:
            figure.box(x, top, width, height, fill=EMPTY)
    if state == BACKWARD:
        figure.text(_gradients(life) + CELL * life.ranks / 2, y + 13, "comes into being", size=SMALL, color=INK,
                    anchor="middle")  # fmt: skip
