"""Which numbers each rank has, station by station, through a block: tensor parallelism, without and with cut tokens.

A grid stands for an activation: its rows are tokens, its columns features. Pale cells are summands, to be added up over
the ranks (Korthikanti et al. 2022, figures 4 and 5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from picolib.course.figures.canvas import Figure
from picolib.course.style import ACCENT, EMPTY, INK, LARGE, MUTED, SMALL, WIDTH, rank_color, tint

RANKS, CELL = 4, 9
LEFT, STEP, ROW, TOP, PANEL = 84, 152, 46, 84, 262
Holds = Callable[[int, int, int], bool]  # (rank, token, feature) -> whether the rank has that number


class Station(NamedTuple):
    """A place in a block: its name, what a rank has there (or a summand of it), and how the next one is reached."""

    name: str
    holds: Holds
    summand: bool = False
    then: str = ""


def _all(rank: int, token: int, feature: int) -> bool:
    return True


def _tokens(rank: int, token: int, feature: int) -> bool:
    return token == rank


def _features(rank: int, token: int, feature: int) -> bool:
    return feature == rank


COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
BLOCKS = {
    "Tensor parallelism": (
        Station("norm", _all, then="f"),
        Station("input", _all, then="columns"),
        Station("inside", _features, then="rows"),
        Station("output", _all, summand=True, then="all-reduce"),
        Station("dropout, residual", _all),
    ),
    "With sequence parallelism": (
        Station("norm", _tokens, then="all-gather"),
        Station("input", _all, then="columns"),
        Station("inside", _features, then="rows"),
        Station("output", _all, summand=True, then="reduce-scatter"),
        Station("dropout, residual", _tokens),
    ),
}


def block_tokens() -> Figure:
    """A block on four ranks, without and with sequence parallelism: what each rank has at each station."""
    told = (f"{name}: {', '.join(map(_told, stations))}" for name, stations in BLOCKS.items())
    alt = f"A block on four ranks, forward, what a rank has at each station. {'. '.join(told)}."
    figure = Figure(TOP + PANEL * len(BLOCKS) - 14, alt)
    figure.text(20, 28, "One block, forward, on four ranks", size=LARGE, bold=True)
    legend = "A grid is an activation: its rows are tokens. Pale: summands, to be added up over the ranks."
    figure.text(20, 54, legend, size=SMALL, color=MUTED)
    for place, (name, stations) in enumerate(BLOCKS.items()):
        _panel(figure, name, stations, TOP + PANEL * place)
    return figure


def _panel(figure: Figure, name: str, stations: tuple[Station, ...], top: float) -> None:
    figure.box(12, top, WIDTH - 24, PANEL - 26, fill="#ffffff", stroke="#c9c9c1", radius=8)
    figure.text(26, top + 20, name, size=SMALL + 1, bold=True)
    for rank in range(RANKS):
        y = top + 56 + ROW * rank
        figure.rank(48, y + 2 * CELL, rank, radius=11)
        for place, station in enumerate(stations):
            _grid(figure, station, rank, LEFT + STEP * place, y)
    for place, station in enumerate(stations):
        x = LEFT + STEP * place
        figure.text(x + 2 * CELL, top + 42, station.name, size=SMALL, color=INK, anchor="middle")
        if station.then:
            _step(figure, station.then, x + 4 * CELL, x + STEP, top + 56 + 2 * ROW - 5)


def _step(figure: Figure, name: str, start: float, end: float, y: float) -> None:
    """The way from one station to the next, in the middle of the ranks' rows; collectives stand out."""
    loud = name in COLLECTIVES
    color = ACCENT if loud else MUTED
    figure.arrow((start + 8, y), (end - 8, y), color, width=3 if loud else 1.5)
    figure.text((start + end) / 2, y - 12, name, size=SMALL, bold=loud, color=color, anchor="middle")


def _grid(figure: Figure, station: Station, rank: int, x: float, y: float) -> None:
    color = tint(rank_color(rank), 0.35) if station.summand else rank_color(rank)
    for token in range(RANKS):
        for feature in range(RANKS):
            fill = color if station.holds(rank, token, feature) else EMPTY
            figure.box(x + feature * CELL, y + token * CELL, CELL - 1, CELL - 1, fill=fill)


def _told(station: Station) -> str:
    what = {_all: "all of it", _tokens: "its own tokens", _features: "its own features"}[station.holds]
    reached = f", then {station.then}" if station.then else ""
    return f"{station.name} {'a summand of ' if station.summand else ''}{what}{reached}"
