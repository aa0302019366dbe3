"""A ring of blocking sends and receives: who has to begin for it not to hang?"""

from __future__ import annotations

from collections.abc import Callable

from picolib.course.figures.canvas import Figure
from picolib.course.figures.waits import around_a_ring, wait_graph
from picolib.course.widgets.base import Explorer, choice, explorer

QUESTION = "Each rank receives from its left and sends to its right. How few ranks must send first so that none hangs?"
WHO: dict[str, Callable[[int], range]] = {
    "nobody": lambda n: range(0),
    "rank 0": lambda n: range(1),
    "even ranks": lambda n: range(0, n, 2),
    "all but rank 0": lambda n: range(1, n),
    "everybody": lambda n: range(n),
}


def draw(ranks: int, first: str) -> Figure:
    """The ring when nobody moves any more: in a cycle of waits, or through."""
    waits = around_a_ring(ranks, list(WHO[first](ranks)))
    calls = {rank: _says(rank, to, ranks, first) for rank, to in waits.items()}
    return wait_graph(waits, calls, f"{ranks} ranks in a ring; sends first: {first}")


def _says(rank: int, to: int | None, ranks: int, first: str) -> str:
    if to is None:
        return "has sent and received"
    sends = rank in WHO[first](ranks)
    return f"waits to {'send to' if sends else 'receive from'} rank {to}"


def deadlock_explorer(ranks: int = 4, first: str = "nobody", question: str = QUESTION) -> Explorer:
    """Choose how many ranks there are and who sends before receiving, and see who waits for whom.

    The static picture is that of `first`; the widget begins with everybody sending first, which hangs as well.
    """
    controls = {
        "ranks": choice("ranks", list(range(2, 9)), ranks),
        "first": choice("sends first", list(WHO), "everybody"),
    }
    return explorer(question, draw(ranks, first), draw, controls)
