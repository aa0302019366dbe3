"""Who sends to whom: a ring, a binary tree, and nodes of ranks with a slow link between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from picolib.course.figures.canvas import Figure, Point
from picolib.course.style import ACCENT, LARGE, MUTED, SMALL, rank_color

PANEL = 260
SAYS = {
    "ring": ("each rank sends to the next only", "{n} links, each carries 2(N-1)/N · S"),
    "tree": ("sums go up, the result comes down", "{depth} levels up, {depth} down"),
    "hierarchical": ("inside the nodes, across, inside", "each rank sends S/{per_node} across, not S"),
}
NOUNS = {"hierarchical": "hierarchy"}


def topology(
    kinds: Sequence[str] | str = ("ring", "tree", "hierarchical"),
    ranks: int = 8,
    per_node: int = 4,
    costs: bool = True,
) -> Figure:
    """Up to three drawings side by side. per_node: ranks in a node of the hierarchical one.

    costs: say below each what its links carry in an all-reduce (a lesson that is about to ask for it leaves it out).
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in kinds:
        if kind not in SAYS:
            raise ValueError(f"kinds has {kind!r}; there is {', '.join(SAYS)}")
    if ranks % per_node and "hierarchical" in kinds:
        raise ValueError(f"per_node={per_node} does not divide ranks={ranks}")
    alt = f"{ranks} ranks as " + ", ".join(f"a {NOUNS.get(kind, kind)}: {SAYS[kind][0]}" for kind in kinds) + "."
    figure = Figure(330, alt, width=20 + PANEL * len(kinds))
    filled = {"n": ranks, "depth": ranks.bit_length() - 1, "per_node": per_node}
    for place, kind in enumerate(kinds):
        x = 14 + place * PANEL
        figure.text(x + 8, 26, kind, size=LARGE, bold=True)
        figure.text(x + 8, 290, SAYS[kind][0], size=SMALL)
        if costs:
            figure.text(x + 8, 310, SAYS[kind][1].format(**filled), size=11, color=MUTED)
        DRAW[kind](figure, x, ranks, per_node)
    return figure


def around(x: float, y: float, radius: float, count: int) -> list[Point]:
    """`count` places on a circle, clockwise from the top."""
    angles = [2 * math.pi * i / count - math.pi / 2 for i in range(count)]
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]


def link(
    figure: Figure, start: Point, end: Point, color: str, width: float = 2, bend: float = 0, gap: float = 16
) -> None:
    """An arrow between two rank discs, from rim to rim."""
    length = math.dist(start, end) or 1
    dx, dy = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    rim = ((start[0] + gap * dx, start[1] + gap * dy), (end[0] - gap * dx, end[1] - gap * dy))
    figure.arrow(*rim, color, width, bend=bend, head=8)


def _ring(figure: Figure, x: float, ranks: int, per_node: int) -> None:
    places = around(x + 124, 158, 96, ranks)
    for rank, place in enumerate(places):
        if ranks > 1:
            link(figure, place, places[(rank + 1) % ranks], rank_color(rank))
    for rank, place in enumerate(places):
        figure.rank(*place, rank)


def tree_places(ranks: int) -> dict[int, tuple[int, int]]:
    """(depth, parent) of each rank in the tree of `comm.all_reduce`: rank r's children are 2r+1 and 2r+2.

    >>> tree_places(4)
    {0: (0, 0), 1: (1, 0), 2: (1, 0), 3: (2, 1)}
    """
    return {rank: ((rank + 1).bit_length() - 1, max(rank - 1, 0) // 2) for rank in range(ranks)}


def _tree(figure: Figure, x: float, ranks: int, per_node: int) -> None:
    tree = tree_places(ranks)
    levels = max(depth for depth, _ in tree.values()) or 1
    places = {}
    for rank, (depth, _) in tree.items():
        slot = 232 / 2**depth  # level d has room for 2^d ranks, the first of which is 2^d - 1
        places[rank] = (x + 8 + (rank + 1 - 2**depth + 0.5) * slot, 70 + depth * 180 / levels)
    radius = min(13, 0.45 * 232 / 2**levels)
    for rank, (_, parent) in tree.items():
        if rank:
            link(figure, places[rank], places[parent], rank_color(rank))
    for rank, place in places.items():
        figure.rank(*place, rank, radius)


def _hierarchical(figure: Figure, x: float, ranks: int, per_node: int) -> None:
    nodes = ranks // per_node
    column = 232 / nodes
    places = {}
    for node in range(nodes):
        left = x + 8 + node * column
        figure.box(left, 44, column - 16, 206, stroke=MUTED, radius=8)
        figure.text(left + (column - 16) / 2, 60, f"node {node}", size=11, color=MUTED, anchor="middle")
        for i in range(per_node):
            places[node * per_node + i] = (left + (column - 16) / 2, 88 + i * 140 / max(per_node - 1, 1))
    for rank, place in places.items():
        if (rank + 1) % per_node:
            link(figure, place, places[rank + 1], rank_color(rank))
        if rank + per_node < ranks:
            other = places[rank + per_node]
            figure.line([(place[0] + 14, place[1]), (other[0] - 14, other[1])], ACCENT, 1.6, dash=True)
    for rank, place in places.items():
        figure.rank(*place, rank)
    figure.text(x + 118, 264, "dashed: the slow link between nodes", size=11, color=ACCENT, anchor="middle")


DRAW = {"ring": _ring, "tree": _tree, "hierarchical": _hierarchical}
