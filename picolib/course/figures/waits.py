"""A deadlock as a graph: who waits for whom. A cycle never ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from picolib.course.figures.canvas import Figure
from picolib.course.figures.topology import around, link
from picolib.course.style import ACCENT, GOOD, INK, LARGE, MUTED, NORMAL, SMALL


def cycle(waits: Mapping[int, int | None]) -> list[int]:
    """The ranks of a cycle in who waits for whom, in order; empty when everyone can go on.

    >>> cycle({0: 1, 1: 2, 2: 1, 3: None})
    [1, 2]
    """
    for first in waits:
        seen: list[int] = []
        rank: int | None = first
        while rank is not None and rank not in seen:
            seen.append(rank)
            rank = waits.get(rank)
        if rank is not None:
            found = seen[seen.index(rank) :]
            return found[found.index(min(found)) :] + found[: found.index(min(found))]
    return []


def wait_graph(
    waits: Mapping[int, int | None], calls: Mapping[int, str] | None = None, title: str = "Who waits for whom"
) -> Figure:
    """Ranks on a circle and an arrow from each that waits to the one it waits for; a cycle is drawn strong.

    waits: rank -> the rank it waits for, or None when it can go on. calls: what each rank is in, in words.
    """
    stuck, calls = cycle(waits), calls or {}
    if stuck:
        verdict = "deadlock: " + " → ".join(f"rank {r}" for r in (*stuck, stuck[0]))
    else:
        verdict = "no cycle: nobody waits for ever"
    told = "; ".join(_sentence(rank, to, calls) for rank, to in waits.items())
    figure = Figure(max(300, 110 + 26 * len(waits)), f"{title}. {told}. {verdict}.")
    figure.text(20, 28, title, size=LARGE, bold=True)
    places = dict(zip(waits, around(160, figure.height / 2 + 16, 88, len(waits)), strict=True))
    for rank, to in waits.items():
        if to in places:
            strong = rank in stuck
            both = waits.get(to) == rank  # two arrows between the same two discs: bend them apart
            link(
                figure,
                places[rank],
                places[to],
                ACCENT if strong else MUTED,
                3.2 if strong else 1.6,
                12 if both else 0,
                18,
            )
    for rank, place in places.items():
        figure.rank(*place, rank, 15)
    for line, (rank, to) in enumerate(waits.items()):
        y = 76 + 26 * line
        figure.rank(330, y, rank, 10)
        figure.text(350, y, _sentence(rank, to, calls), size=NORMAL, color=ACCENT if rank in stuck else INK)
    figure.text(
        320,
        86 + 26 * len(waits),
        verdict,
        size=NORMAL if len(verdict) < 52 else SMALL,
        bold=True,
        color=ACCENT if stuck else GOOD,
    )
    return figure


def _sentence(rank: int, to: int | None, calls: Mapping[int, str]) -> str:
    if to is None:
        return f"rank {rank} {calls.get(rank, 'can go on')}"
    return (
        f"rank {rank} {calls.get(rank, 'waits')} for rank {to}" if rank not in calls else f"rank {rank} {calls[rank]}"
    )


def around_a_ring(ranks: int, send_first: Sequence[int]) -> dict[int, int | None]:
    """Who waits for whom when each rank receives from its left and sends to its right neighbour, both blocking.

    A blocking send waits for the receiver too. The ranks in `send_first` send before they receive. This is the state
    in which nobody moves any more, or everyone is through.
    """
    plan = {r: ["send", "recv"] if r in send_first else ["recv", "send"] for r in range(ranks)}
    moved = ranks > 1
    while moved:
        moved = False
        for rank in range(ranks):
            right = (rank + 1) % ranks
            if plan[rank][:1] == ["send"] and plan[right][:1] == ["recv"]:
                plan[rank].pop(0)
                plan[right].pop(0)
                moved = True
    ahead = {"send": 1, "recv": -1}
    return {r: (r + ahead[plan[r][0]]) % ranks if plan[r] and ranks > 1 else None for r in range(ranks)}
