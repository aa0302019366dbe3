"""Measured against predicted: the bytes each rank sent beside what the formula says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure
from picolib.course.style import ACCENT, EMPTY, GOOD, INK, LARGE, MUTED, SMALL, rank_color
from picolib.course.words import ranks_text


def bytes_vs_formula(
    trace: Any, expected: int | Sequence[int] | Callable[[int], int], formula: str = "", title: str = ""
) -> Figure:
    """A bar for what each rank sent, a mark where the formula says it ends, and whether they are equal.

    expected: bytes per rank: one number for all, one each, or a function of the rank (an algorithm's
        `bytes_sent` with its sizes filled in). formula: how to write it, such as "2(N-1)/N · S".
    """
    sent = list(trace.bytes_sent)
    wanted = _per_rank(expected, len(sent))
    wrong = [rank for rank, pair in enumerate(zip(sent, wanted, strict=True)) if pair[0] != pair[1]]
    says = "equal on every rank" if not wrong else f"different on {ranks_text(wrong)}"
    alt = f"Bytes sent and formula {formula}".rstrip() + f": {says}. Sent: {', '.join(map(_exact, sent))}."
    figure = Figure(96 + 34 * len(sent) + 28, alt)
    figure.text(20, 28, title or "Bytes sent, and what the formula says", size=LARGE, bold=True)
    figure.text(20, 58, formula and f"formula: {formula}", size=SMALL, color=INK, mono=True)
    figure.text(780, 28, says, size=SMALL, bold=True, color=ACCENT if wrong else GOOD, anchor="end")
    scale = Scale(0, 1.02 * max(*sent, *wanted, 1), 96, 500)
    for rank, (got, want) in enumerate(zip(sent, wanted, strict=True)):
        _bar(figure, scale, rank, got, want, 78 + 34 * rank)
    _legend(figure, 78 + 34 * len(sent) + 16)
    return figure


def _per_rank(expected: int | Sequence[int] | Callable[[int], int], ranks: int) -> list[int]:
    if callable(expected):
        return [expected(rank) for rank in range(ranks)]
    wanted = [expected] * ranks if isinstance(expected, int) else list(expected)
    if len(wanted) != ranks:
        raise ValueError(f"expected has {len(wanted)} numbers; the run had {ranks} ranks")
    return wanted


def _bar(figure: Figure, scale: Scale, rank: int, got: int, want: int, y: float) -> None:
    figure.text(20, y + 14, "rank", size=SMALL, color=MUTED)
    figure.rank(72, y + 14, rank, 12)
    figure.box(scale.start, y + 4, scale.end - scale.start, 20, fill=EMPTY)
    figure.box(scale.start, y + 4, max(scale(got) - scale.start, 0), 20, fill=rank_color(rank))
    figure.line([(scale(want), y), (scale(want), y + 28)], INK, 3)
    verdict = f"{_exact(got)} = formula" if got == want else f"{_exact(got)}, not {_exact(want)}"
    if want and got != want:
        verdict += f" ({got / want:.2g}x)"
    figure.text(scale.end + 10, y + 14, verdict, size=SMALL, bold=got != want, color=INK if got == want else ACCENT)


def _exact(count: int) -> str:
    return f"{count:,} B"  # equality is the point: never rounded


def _legend(figure: Figure, y: float) -> None:
    figure.box(96, y - 6, 22, 12, fill=MUTED)
    figure.text(126, y, "sent in this run", size=SMALL, color=MUTED)
    figure.line([(262, y - 9), (262, y + 9)], INK, 3)
    figure.text(272, y, "formula", size=SMALL, color=MUTED)
