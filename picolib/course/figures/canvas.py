"""A picture as a list of shapes, written as SVG here and as PNG by `raster`.

SVG by hand is small, sharp and the same on every machine, so nbval can compare it; the PNG stands beside it in a
stored notebook, because JupyterLab does not show the SVG of a notebook that it does not trust yet.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from picolib.course.style import BORDER, INK, MONO, NORMAL, PAPER, SANS, WIDTH, ink_on, rank_color

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle with its upper left corner at (x, y)."""

    x: float
    y: float
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    stroke_width: float = 1
    radius: float = 0
    dash: bool = False

    def svg(self) -> str:
        return (
            f'<rect x="{_n(self.x)}" y="{_n(self.y)}" width="{_n(self.width)}" height="{_n(self.height)}"'
            f' rx="{_n(self.radius)}"{_paint(self.fill, self.stroke, self.stroke_width, self.dash)}/>'
        )


@dataclass(frozen=True)
class Blocks:
    """Many rectangles (x, y, width, height) of one colour, written as one shape: grids of chunks stay small."""

    corners: tuple[tuple[float, float, float, float], ...]
    fill: str = "none"
    stroke: str = "none"
    stroke_width: float = 1
    dash: bool = False

    def svg(self) -> str:
        path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in self.corners)
        return f'<path d="{path}"{_paint(self.fill, self.stroke, self.stroke_width, self.dash)}/>'


@dataclass(frozen=True)
class Lines:
    """Straight lines through points, open or closed (and then perhaps filled)."""

    points: tuple[Point, ...]
    fill: str = "none"
    stroke: str = "none"
    stroke_width: float = 1
    closed: bool = False
    dash: bool = False

    def svg(self) -> str:
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in self.points)
        name = "polygon" if self.closed else "polyline"
        return f'<{name} points="{points}"{_paint(self.fill, self.stroke, self.stroke_width, self.dash)}/>'


@dataclass(frozen=True)
class Disc:
    """A filled circle around (x, y)."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str = "none"
    stroke_width: float = 1

    def svg(self) -> str:
        paint = _paint(self.fill, self.stroke, self.stroke_width, False)
        return f'<circle cx="{_n(self.x)}" cy="{_n(self.y)}" r="{_n(self.radius)}"{paint}/>'


@dataclass(frozen=True)
class Label:
    """A line of text; (x, y) is its vertical middle, and its left end, middle or right end as `anchor` says."""

    x: float
    y: float
    text: str
    size: float = NORMAL
    color: str = INK
    anchor: str = "start"
    bold: bool = False
    mono: bool = False
    angle: float = 0

    @property
    def baseline(self) -> float:
        return self.y + 0.36 * self.size  # browsers disagree about dominant-baseline; half a capital's height does not

    def svg(self) -> str:
        extra = ' font-weight="bold"' if self.bold else ""
        extra += f' font-family="{MONO}"' if self.mono else ""
        extra += f' transform="rotate({_n(-self.angle)} {_n(self.x)} {_n(self.y)})"' if self.angle else ""
        return (
            f'<text x="{_n(self.x)}" y="{_n(self.baseline)}" font-size="{_n(self.size)}" fill="{self.color}"'
            f' text-anchor="{self.anchor}"{extra}>{escape(self.text)}</text>'
        )


@dataclass
class Figure:
    """Shapes on a card. `alt` says in a sentence or two what is to be seen, for those who do not see it.

    `varies`: the picture holds measured times, so its SVG would differ at every run; then only the PNG is stored in
    a notebook (nbval does not compare it). `alt` is compared always: it never holds a measured time.
    """

    height: float
    alt: str
    width: float = WIDTH
    varies: bool = False
    shapes: list[Box | Blocks | Lines | Disc | Label] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, **paint) -> None:
        """A rectangle; see `Box` for the paint (fill, stroke, stroke_width, radius, dash)."""
        self.shapes.append(Box(x, y, width, height, **paint))

    def blocks(self, corners: Sequence[tuple[float, float, float, float]], **paint) -> None:
        """Many rectangles of one colour; see `Blocks` for the paint."""
        if corners:
            self.shapes.append(Blocks(tuple(corners), **paint))

    def line(self, points: Sequence[Point], color: str = INK, width: float = 1, dash: bool = False) -> None:
        """Straight lines from point to point."""
        self.shapes.append(Lines(tuple(points), stroke=color, stroke_width=width, dash=dash))

    def polygon(self, points: Sequence[Point], fill: str, stroke: str = "none") -> None:
        """A filled outline."""
        self.shapes.append(Lines(tuple(points), fill=fill, stroke=stroke, closed=True))

    def disc(self, x: float, y: float, radius: float, fill: str, **paint) -> None:
        """A filled circle."""
        self.shapes.append(Disc(x, y, radius, fill, **paint))

    def text(self, x: float, y: float, text: str, **style) -> None:
        """A line of text; see `Label` for the style (size, color, anchor, bold, mono, angle)."""
        self.shapes.append(Label(x, y, text, **style))

    def arrow(
        self, start: Point, end: Point, color: str = INK, width: float = 2, bend: float = 0, head: float = 9
    ) -> Point:
        """An arrow; `bend` pushes its middle to the right of its direction, in pixels. Returns its middle."""
        curve = _curve(start, end, bend)
        shaft = [p for p in curve if math.dist(p, end) > 0.8 * head] or [start]
        angle = math.atan2(end[1] - shaft[-1][1], end[0] - shaft[-1][0])
        self.line(
            [*shaft, (end[0] - 0.8 * head * math.cos(angle), end[1] - 0.8 * head * math.sin(angle))], color, width
        )
        wings = [(end[0] + head * math.cos(angle + a), end[1] + head * math.sin(angle + a)) for a in (2.7, -2.7)]
        self.polygon([end, *wings], color)
        return curve[len(curve) // 2]

    def rank(self, x: float, y: float, rank: int, radius: float = 13) -> None:
        """A rank: a numbered disc in its colour."""
        self.disc(x, y, radius, rank_color(rank))
        self.text(x, y, str(rank), anchor="middle", bold=True, color=ink_on(rank_color(rank)), size=radius)

    def svg(self) -> str:
        """The picture as SVG text: no ids, no dates, so the same picture is the same text."""
        card = Box(0.5, 0.5, self.width - 1, self.height - 1, fill=PAPER, stroke=BORDER, radius=8)
        alt = escape(self.alt, quote=True)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(self.width)}" height="{_n(self.height)}"'
            f' viewBox="0 0 {_n(self.width)} {_n(self.height)}" style="max-width:100%;height:auto" role="img"'
            f' aria-label="{alt}" font-family="{SANS}"><title>{alt}</title>\n'
            + "\n".join(shape.svg() for shape in (card, *self.shapes))
            + "\n</svg>"
        )

    def png(self, scale: float = 2) -> bytes:
        """The picture as PNG bytes, `scale` pixels per unit."""
        from picolib.course.figures.raster import png

        return png(self, scale)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a .svg or .png file."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise ValueError(f"path={str(path)!r}: a figure is saved as .svg or .png")
        path.write_bytes(self.png() if path.suffix == ".png" else self.svg().encode())
        return path

    def __repr__(self) -> str:
        return f"[figure: {self.alt}]"

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": repr(self)}
        if not self.varies:
            data["image/svg+xml"] = self.svg()
        png = {"width": self.width, "alt": self.alt}
        return data, {"alt": self.alt, "image/png": png, "image/svg+xml": {"alt": self.alt}}


def text_width(text: str, size: float = NORMAL) -> float:
    """About how wide a text is, in pixels: enough to keep labels apart."""
    return 0.6 * size * len(text)


def _n(value: float) -> str:
    """A coordinate with at most two decimals, written the same way on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _paint(fill: str, stroke: str, width: float, dash: bool) -> str:
    if stroke == "none":
        return f' fill="{fill}"'
    dashed = ' stroke-dasharray="4 3"' if dash else ""
    return f' fill="{fill}" stroke="{stroke}" stroke-width="{_n(width)}" stroke-linejoin="round"{dashed}'


def _curve(start: Point, end: Point, bend: float) -> list[Point]:
    """Points of a quadratic curve whose middle lies `bend` to the right of the straight line."""
    (x0, y0), (x1, y1) = start, end
    length = math.dist(start, end) or 1.0
    # The control point of a quadratic curve lies twice as far out as its middle.
    cx = (x0 + x1) / 2 - 2 * bend * (y1 - y0) / length
    cy = (y0 + y1) / 2 + 2 * bend * (x1 - x0) / length
    count = 24 if bend else 4
    return [
        ((1 - t) ** 2 * x0 + 2 * t * (1 - t) * cx + t * t * x1, (1 - t) ** 2 * y0 + 2 * t * (1 - t) * cy + t * t * y1)
        for t in (i / count for i in range(count + 1))
    ]
