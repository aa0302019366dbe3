"""The collectives on four ranks, before and after: what a rank has, in its own colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from picolib.course.figures.canvas import Figure
from picolib.course.style import EMPTY, INK, LARGE, MUTED, NORMAL, SMALL, ink_on, rank_color

RANKS = 4
Part = tuple[tuple[int, ...], int] | None  # which ranks' data are summed in it, and which chunk of theirs; None: empty
FIVE = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True)
class Collective:
    """Before and after as functions of (rank, place), and one sentence."""

    before: Callable[[int, int], Part]
    after: Callable[[int, int], Part]
    says: str


def _own(rank: int, place: int) -> Part:
    return (rank,), place


def _sum(rank: int, place: int) -> Part:
    return tuple(range(RANKS)), place


def _where(keep: Callable[[int, int], bool], part: Callable[[int, int], Part]) -> Callable[[int, int], Part]:
    return lambda rank, place: part(rank, place) if keep(rank, place) else None


def _at_root(rank: int, place: int) -> bool:
    return rank == 0


def _own_place(rank: int, place: int) -> bool:
    return rank == place


def _from_root(rank: int, place: int) -> Part:
    return (0,), place


def _of_place(rank: int, place: int) -> Part:
    return (place,), place


COLLECTIVES = {
    "broadcast": Collective(_where(_at_root, _own), _from_root, "one rank's tensor to everyone"),
    "scatter": Collective(_where(_at_root, _own), _where(_own_place, _from_root), "one rank deals out its chunks"),
    "gather": Collective(_where(_own_place, _own), _where(_at_root, _of_place), "one rank collects everyone's chunk"),
    "reduce": Collective(_own, _where(_at_root, _sum), "one rank gets the sum"),
    "all_gather": Collective(_where(_own_place, _own), _of_place, "everyone collects everyone's chunk"),
    "reduce_scatter": Collective(_own, _where(_own_place, _sum), "everyone gets its chunk of the sum"),
    "all_reduce": Collective(_own, _sum, "everyone gets the whole sum"),
    "all_to_all": Collective(_own, lambda rank, place: ((place,), rank), "chunk j of everyone goes to rank j"),
}


TO_NAME = ("reduce_scatter", "all_gather", "all_to_all", "all_reduce")  # the pictures of exercise 2.2


def collectives_to_name() -> Figure:
    """The four pictures of exercise 2.2, without their names."""
    return collectives_picture(TO_NAME, hide_names=True)


def collectives_picture(names: Sequence[str] = FIVE, hide_names: bool = False) -> Figure:
    """The named collectives before and after; `hide_names` for "which one is this?"."""
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown:
        raise ValueError(f"names has {unknown[0]!r}; there is {', '.join(COLLECTIVES)}")
    lines = -(-len(names) // 2)
    told = "; ".join(f"{name}: {COLLECTIVES[name].says}" for name in names)
    alt = "Collectives on four ranks, before and after. " + (f"{len(names)} pictures to name." if hide_names else told)
    figure = Figure(44 + lines * 196, alt)
    legend = "A colour is the rank the data come from, a number its chunk; all colours in one chunk are the sum."
    figure.text(20, 26, legend, size=SMALL, color=MUTED)
    for place, name in enumerate(names):
        shown = f"picture {chr(65 + place)}" if hide_names else name
        says = "" if hide_names else COLLECTIVES[name].says
        _panel(figure, COLLECTIVES[name], shown, says, 20 + 390 * (place % 2), 48 + 196 * (place // 2))
    return figure


def _panel(figure: Figure, collective: Collective, name: str, says: str, x: float, y: float) -> None:
    figure.text(x, y + 12, name, size=LARGE, bold=True)
    figure.text(x + 140, y + 13, says, size=SMALL, color=INK)
    for rank in range(RANKS):
        middle = y + 56 + 32 * rank
        figure.rank(x + 12, middle, rank, 11)
        for place in range(RANKS):
            _draw(figure, collective.before(rank, place), x + 32 + 33 * place, middle - 13)
            _draw(figure, collective.after(rank, place), x + 222 + 33 * place, middle - 13)
    figure.arrow((x + 174, y + 104), (x + 210, y + 104), MUTED, 3, head=11)


def _draw(figure: Figure, part: Part, x: float, y: float) -> None:
    figure.box(x, y, 31, 26, fill=EMPTY)
    if part is None:
        return
    sources, chunk = part
    strip = 31 / len(sources)
    for number, source in enumerate(reversed(sources)):  # rank 0 last, like the digits of the exercises
        figure.box(x + number * strip, y, strip, 26, fill=rank_color(source))
    if len(sources) == 1:
        ink = ink_on(rank_color(sources[0]))
    else:
        ink = INK
        figure.disc(x + 15.5, y + 13, 9, fill="#ffffff")
    figure.text(x + 15.5, y + 13, str(chunk), anchor="middle", bold=True, size=NORMAL, color=ink)
