"""The stack of the course: what a training run stands on, and which of its parts you have built."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from picolib.course.figures.canvas import Figure
from picolib.course.style import BORDER, EMPTY, GOOD, INK, MUTED, NORMAL, SMALL, WIDTH, ink_on

# From the ground up: a floor's name, and the exercises whose functions lie on it.
FLOORS = (
    ("messages", ("0.2", "2.1")),
    ("collectives", ("2.3", "2.4", "2.6")),
    ("batch and loss", ("0.1", "0.3", "3.2")),
    ("memory", ("1.4", "1.5", "1.6")),
    ("data parallel", ("3.1", "3.3", "3.4", "3.5")),
    ("ZeRO", ("4.1", "4.2")),
    ("FSDP", ("4.3", "4.4", "4.5")),
    ("tensor parallel", ("5.1", "5.2", "5.3", "5.4", "5.5")),
)
LEFT, RIGHT, FLOOR, GAP = 160, 16, 34, 6


def stack(functions: Mapping[str, str], built: Collection[str]) -> Figure:
    """A house with a brick for each part; yours are filled.

    functions: exercise id -> the function that it asks for; bricks without one are left out (a later lesson's).
    built: the ids of those that you have built.
    """
    floors = [(name, [id_ for id_ in ids if id_ in functions]) for name, ids in FLOORS]
    floors = [(name, ids) for name, ids in floors if ids]
    bricks = [id_ for _, ids in floors for id_ in ids]
    yours = sum(id_ in built for id_ in bricks)
    figure = Figure(
        height=(len(floors) + 2) * (FLOOR + GAP) + 22,
        alt=f"The stack from messages up to the small Llama: {yours} of its {len(bricks)} parts are yours.",
    )
    figure.box(LEFT, 14, WIDTH - LEFT - RIGHT, FLOOR, fill=EMPTY, stroke=BORDER, radius=4)
    figure.text((LEFT + WIDTH - RIGHT) / 2, 14 + FLOOR / 2, "the small Llama trains", anchor="middle", bold=True)
    for level, (name, ids) in enumerate(reversed(floors), start=1):
        y = 14 + level * (FLOOR + GAP)
        figure.text(LEFT - 14, y + FLOOR / 2, name, anchor="end", color=MUTED, size=NORMAL)
        _bricks(figure, y, ids, functions, built)
    y = 14 + (len(floors) + 1) * (FLOOR + GAP)
    figure.box(LEFT, y, WIDTH - LEFT - RIGHT, FLOOR, fill=EMPTY, stroke=BORDER, radius=4)
    figure.text((LEFT + WIDTH - RIGHT) / 2, y + FLOOR / 2, "torch, gloo, processes", anchor="middle", color=MUTED)
    return figure


def _bricks(figure: Figure, y: float, ids: list[str], functions: Mapping[str, str], built: Collection[str]) -> None:
    width = (WIDTH - LEFT - RIGHT - GAP * (len(ids) - 1)) / len(ids)
    for place, id_ in enumerate(ids):
        x, mine = LEFT + place * (width + GAP), id_ in built
        fill, ink = (GOOD, ink_on(GOOD)) if mine else ("none", INK)
        figure.box(x, y, width, FLOOR, fill=fill, stroke=GOOD if mine else MUTED, radius=4, dash=not mine)
        text = f"{id_} {functions[id_]}"
        size = min(SMALL, (width - 8) / (0.64 * len(text)))  # the mono face is 0.6 of its size wide
        figure.text(x + width / 2, y + FLOOR / 2, text, anchor="middle", size=size, color=ink, mono=True, bold=mine)
