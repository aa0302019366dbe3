"""A collective step by step: who sends which chunk to whom, and what each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from picolib.course.figures import moves, schedules, traced
from picolib.course.figures.canvas import Figure
from picolib.course.figures.moves import Move, State, Tally
from picolib.course.style import (
    ACCENT,
    EMPTY,
    INK,
    LARGE,
    MUTED,
    NORMAL,
    PAPER,
    SMALL,
    TITLE,
    WIDTH,
    ink_on,
    rank_color,
)


@dataclass(frozen=True)
class Walk:
    """A collective as its states: `states[k]` before step k, `steps[k]` what is sent then."""

    name: str  # "all_reduce[ring]"
    states: list[State]
    steps: list[list[Move]]

    @property
    def ranks(self) -> int:
        return len(self.states[0])

    @property
    def chunks(self) -> int:
        return len(self.states[0][0])


def walk(collective: str, algorithm: str, ranks: int) -> Walk:
    """The step-through of an algorithm, from its definition."""
    return _walk(f"{collective}[{algorithm}]", schedules.steps(collective, algorithm, ranks), ranks)


def walk_trace(trace: Any, call: str | None = None, chunk_of: traced.ChunkOf | None = None) -> Walk:
    """The step-through of a collective in a run's trace; arguments as in `traced.from_trace`."""
    steps = traced.from_trace(trace, call, chunk_of)
    name = call or next(iter(traced.collectives(trace))) or "your messages"
    return _walk(name, steps, len(trace.bytes_sent))


def _walk(name: str, steps: list[list[Move]], ranks: int) -> Walk:
    chunks = 1 + max((c for step in steps for m in step for c in m.chunks), default=0)
    first = moves.start(name, ranks, chunks)
    return Walk(name, moves.states(first, steps), steps)


def digits(tally: Tally) -> str:
    """The tally as the exercises print it: rank 0 is the last digit; a dot where nothing arrived yet.

    >>> digits((1, 0, 1, 1))
    '1101'
    """
    return "".join(str(count) for count in reversed(tally)) if any(tally) else "·"


def sentence(walk: Walk, step: int) -> str:
    """What happens in a step, in words (the first few messages)."""
    if step >= len(walk.steps):
        return "done"
    told = [f"{m.src} → {m.dst}: {_chunk_names(m, walk)}" for m in walk.steps[step]]
    more = f" … and {len(told) - 8} more" if len(told) > 8 else ""
    return "   ".join(told[:8]) + more


def _chunk_names(move: Move, walk: Walk) -> str:
    if len(move.chunks) == walk.chunks:
        return "all" if walk.chunks > 1 else "everything"
    return "chunk " + ",".join(map(str, move.chunks))


@dataclass(frozen=True)
class Grid:
    """Where the chunks of each rank are drawn: rows are ranks, columns chunks."""

    x: float
    y: float
    column: float
    row: float
    gap: float

    def cell(self, rank: int, chunk: int, inset: float = 0) -> tuple[float, float, float, float]:
        """x, y, width and height of a chunk."""
        inset += self.gap / 2
        x, y = self.x + chunk * self.column, self.y + rank * self.row
        return x + inset, y + inset, self.column - 2 * inset, self.row - 2 * inset

    def middle(self, rank: int) -> float:
        """The height of a rank's row."""
        return self.y + (rank + 0.5) * self.row


def draw_state(figure: Figure, grid: Grid, state: State) -> None:
    """A strip for each contribution in a chunk, in its rank's colour, with digits where they fit."""
    places = [(rank, chunk) for rank, row in enumerate(state) for chunk in range(len(row))]
    figure.blocks([grid.cell(*place) for place in places], fill=EMPTY)
    strips: dict[int, list[tuple[float, float, float, float]]] = {}
    for rank, chunk in places:
        x, y, width, height = grid.cell(rank, chunk)
        strip = width / len(state)
        for source, count in enumerate(state[rank][chunk]):
            left = x + width - (source + 1) * strip  # like the digits: rank 0 stands last
            if count:
                strips.setdefault(source, []).append((left, y, strip, height))
    for source, corners in sorted(strips.items()):
        figure.blocks(corners, fill=rank_color(source))
    figure.blocks([grid.cell(*place) for place in places], stroke=MUTED, stroke_width=0.6)
    if grid.column / len(state) >= 10:
        _draw_digits(figure, grid, state)


def _draw_digits(figure: Figure, grid: Grid, state: State) -> None:
    for rank, row in enumerate(state):
        for chunk, tally in enumerate(row):
            x, y, width, height = grid.cell(rank, chunk)
            strip = width / len(tally)
            for source, count in enumerate(tally):
                ink = ink_on(rank_color(source)) if count else MUTED
                place = (x + width - (source + 0.5) * strip, y + height / 2)
                figure.text(*place, str(count), anchor="middle", mono=True, color=ink, size=min(NORMAL, strip * 1.2))


def _draw_marks(figure: Figure, grid: Grid, step: Sequence[Move]) -> None:
    figure.blocks([grid.cell(m.src, c) for m in step for c in m.chunks], stroke=INK, stroke_width=2.5)
    inside = [grid.cell(m.dst, c, inset=3) for m in step for c in m.chunks]
    figure.blocks(inside, stroke=ACCENT, stroke_width=2, dash=True)


def _draw_arrows(figure: Figure, walk: Walk, step: int, grid: Grid, room: float, width: float) -> None:
    """The messages of a step beside the rows, in the sender's colour: they leave a row low and reach it high."""
    x, offset = grid.x + walk.chunks * grid.column + 6, 0.18 * grid.row
    middles = []
    for move in walk.steps[step]:
        start, end = grid.middle(move.src) + offset, grid.middle(move.dst) - offset
        reach = room * (0.2 + 0.8 * abs(move.dst - move.src) / max(walk.ranks - 1, 1))
        bend = -reach if end > start else reach
        middles.append(figure.arrow((x, start), (x, end), rank_color(move.src), width, bend, head=4 + 2.2 * width))
    if width > 2 and walk.chunks > 1:
        for move, middle in zip(walk.steps[step], middles, strict=True):
            _tag(figure, *middle, ",".join(map(str, move.chunks)), rank_color(move.src))


def _tag(figure: Figure, x: float, y: float, text: str, color: str) -> None:
    width = max(20, 8 * len(text) + 10)
    figure.box(x - width / 2, y - 10, width, 20, fill=PAPER, stroke=color, stroke_width=2, radius=6)
    figure.text(x, y, text, anchor="middle", size=SMALL, bold=True)


def frame(walk: Walk, step: int) -> Figure:
    """One step, large: what each rank holds before it, and what is sent; the last frame is the result."""
    done = step >= len(walk.steps)
    title = f"{walk.name}: " + ("done" if done else f"step {step + 1} of {len(walk.steps)}")
    row, room = (46 if walk.ranks <= 5 else 36), 140
    column = min((WIDTH - 100 - room - 20) / walk.chunks, 130 if walk.chunks > 1 else 520)
    grid = Grid(96, 76, column, row, gap=6)
    figure = Figure(76 + walk.ranks * row + 44, f"{title}. {sentence(walk, step)}")
    figure.text(20, 28, title, size=TITLE, bold=True)
    for chunk in range(walk.chunks):
        name = "the whole tensor" if walk.chunks == 1 else f"chunk {chunk}" if column >= 70 else str(chunk)
        figure.text(grid.x + (chunk + 0.5) * column, 62, name, anchor="middle", size=SMALL, color=MUTED)
    for rank in range(walk.ranks):
        figure.text(22, grid.middle(rank), "rank", color=MUTED, size=SMALL)
        figure.rank(72, grid.middle(rank), rank)
    draw_state(figure, grid, walk.states[step])
    if not done:
        _draw_marks(figure, grid, walk.steps[step])
        many = len(walk.steps[step]) > 2 * walk.ranks
        _draw_arrows(figure, walk, step, grid, room - 16, 1.2 if many else 2.2)
    _legend(figure, grid.y + walk.ranks * row + 22)
    return figure


def _legend(figure: Figure, y: float) -> None:
    figure.text(20, y, "A strip, and its digit, is one rank's contribution.", size=SMALL, color=MUTED)
    figure.box(400, y - 8, 22, 16, stroke=INK, stroke_width=2.5)
    figure.text(430, y, "is sent in this step", size=SMALL, color=MUTED)
    figure.box(590, y - 8, 22, 16, stroke=ACCENT, stroke_width=2.5, dash=True)
    figure.text(620, y, "is received", size=SMALL, color=MUTED)


def overview(walk: Walk, most: int = 8) -> Figure:
    """The steps at once, as small pictures (some left out when there are many): what stands beside the slider."""
    shown = _some(len(walk.states), most)
    columns, row = (4, 20) if walk.ranks <= 5 else (3, 15)
    width, height = (WIDTH - 30) / columns, walk.ranks * row + 52
    what = f"{walk.name} on {walk.ranks} ranks, {len(walk.steps)} step" + "s" * (len(walk.steps) != 1)
    alt = f"{what}: what each rank holds before each step, and what is sent."
    figure = Figure(46 + -(-len(shown) // columns) * height, alt)
    figure.text(20, 28, what, size=LARGE, bold=True)
    if walk.chunks > 1:
        figure.box(WIDTH - 190, 20, 20, 15, stroke=INK, stroke_width=1.8)
        figure.text(WIDTH - 162, 28, "is sent in this step", size=SMALL, color=MUTED)
    for place, k in enumerate(shown):
        _panel(figure, walk, k, 20 + place % columns * width, 56 + place // columns * height, width, row)
    return figure


def _some(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below count: evenly spaced, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _panel(figure: Figure, walk: Walk, k: int, x: float, y: float, width: float, row: float) -> None:
    done = k >= len(walk.steps)
    figure.text(x + 16, y + 4, "done" if done else f"step {k + 1}", size=NORMAL, bold=True)
    column = min((width - 80) / walk.chunks, 120 if walk.chunks == 1 else 60)
    grid = Grid(x + 16, y + 18, column, row, gap=3)
    for rank in range(walk.ranks):
        figure.text(x + 10, grid.middle(rank), str(rank), size=SMALL, color=MUTED, anchor="end")
    draw_state(figure, grid, walk.states[k])
    if not done:
        if walk.chunks > 1:
            sent = [grid.cell(m.src, c) for m in walk.steps[k] for c in m.chunks]
            figure.blocks(sent, stroke=INK, stroke_width=1.8)
        _draw_arrows(figure, walk, k, grid, room=34, width=1 if len(walk.steps[k]) <= 2 * walk.ranks else 0.6)
