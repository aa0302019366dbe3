"""Who sent how much to whom, in numbers."""

from __future__ import annotations

from typing import Any

from picolib.course.figures.canvas import Figure
from picolib.course.style import EMPTY, INK, LARGE, MUTED, SMALL, WIDTH, bytes_text, exact_bytes, ink_on, tint

HEAT = "#0b4f8a"


def message_matrix(trace: Any, title: str = "Bytes sent, from row to column") -> Figure:
    """`trace.matrix[src][dst]` with its numbers, what each rank sent in all, and what it received.

    Where every number is exact (below 10,000 B) the sums are too, so that a reader can add them up.
    """
    matrix = trace.matrix
    ranks, most = len(matrix), max((max(row) for row in matrix), default=0) or 1
    column, row = min(110.0, (WIDTH - 190) / (ranks + 1)), 40 if ranks <= 8 else 28
    alt = f"{title}, {ranks} ranks: " + "; ".join(
        f"rank {src} sent " + (", ".join(f"{bytes_text(b)} to {dst}" for dst, b in enumerate(sent) if b) or "nothing")
        for src, sent in enumerate(matrix[:8])
    )
    written = exact_bytes if bytes_text(most) == exact_bytes(most) else bytes_text
    left, top = 96, 104
    figure = Figure(top + (ranks + 1) * row + 30, alt)
    figure.text(20, 28, title, size=LARGE, bold=True)
    figure.text(left + ranks * column / 2, 56, "received by rank", size=SMALL, color=MUTED, anchor="middle")
    figure.text(left + (ranks + 0.5) * column + 6, 84, "sent", size=SMALL, bold=True, anchor="middle")
    figure.text(left - 14, top + (ranks + 0.5) * row + 6, "received", size=SMALL, bold=True, anchor="end")
    for rank in range(ranks):
        figure.rank(left + (rank + 0.5) * column, 84, rank, 12)
        figure.rank(left - 26, top + (rank + 0.5) * row, rank, 12)
        figure.text(20, top + (rank + 0.5) * row, "from", size=SMALL, color=MUTED)
    for src, sent in enumerate(matrix):
        for dst, count in enumerate(sent):
            _cell(figure, left + dst * column, top + src * row, column, row, count, count / most)
        total = written(sum(sent))
        figure.text(
            left + (ranks + 0.5) * column + 6, top + (src + 0.5) * row, total, size=SMALL, anchor="middle", bold=True
        )
    for dst in range(ranks):
        total = written(sum(row[dst] for row in matrix))
        figure.text(
            left + (dst + 0.5) * column,
            top + (ranks + 0.5) * row + 6,
            total,
            size=_fit(total, column),
            anchor="middle",
            bold=True,
        )
    return figure


def _cell(figure: Figure, x: float, y: float, width: float, height: float, count: int, share: float) -> None:
    fill = tint(HEAT, 0.12 + 0.88 * share) if count else EMPTY
    figure.box(x + 1, y + 1, width - 2, height - 2, fill=fill, radius=3)
    text = bytes_text(count) if count else "·"
    color = (ink_on(fill) if count else MUTED) or INK
    figure.text(x + width / 2, y + height / 2, text, size=_fit(text, width), anchor="middle", color=color)


def _fit(text: str, width: float) -> float:
    """The largest size up to SMALL at which the text fits a cell."""
    return min(SMALL, (width - 6) / (0.6 * max(len(text), 1)))
