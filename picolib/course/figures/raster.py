"""The same shapes as PNG, drawn by matplotlib's Agg renderer (no window, no pyplot state)."""

from __future__ import annotations

import io
from typing import Any

from picolib.course.figures.canvas import Blocks, Box, Disc, Figure, Label, Lines
from picolib.course.style import BORDER, PAPER

ALIGN = {"start": "left", "middle": "center", "end": "right"}


def png(figure: Figure, scale: float = 2) -> bytes:
    """PNG bytes of a figure; the corners outside its card are transparent."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    # At 72 dots per inch a point is a pixel, so sizes need no conversion.
    sheet = Sheet(figsize=(figure.width / 72, figure.height / 72), dpi=72 * scale)
    FigureCanvasAgg(sheet)
    axes = sheet.add_axes((0, 0, 1, 1), xlim=(0, figure.width), ylim=(figure.height, 0))
    axes.axis("off")
    sheet.patch.set_alpha(0)
    card = Box(0.5, 0.5, figure.width - 1, figure.height - 1, fill=PAPER, stroke=BORDER, radius=8)
    for depth, shape in enumerate((card, *figure.shapes)):
        PAINTERS[type(shape)](axes, shape, depth)
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", metadata={"Software": None})
    return _fewer_colors(buffer.getvalue())


def _fewer_colors(data: bytes) -> bytes:
    """The same picture with a palette of 256 colours: a third of the size in a stored notebook."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).quantize(256, method=Image.Quantize.FASTOCTREE).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _style(shape: Box | Blocks | Lines | Disc, depth: int) -> dict[str, Any]:
    return {
        "facecolor": shape.fill,
        "edgecolor": shape.stroke,
        "linewidth": 0 if shape.stroke == "none" else shape.stroke_width,
        "linestyle": (0, (4, 3)) if getattr(shape, "dash", False) else "solid",
        "zorder": depth,
    }


def _box(axes, shape: Box, depth: int) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    corner, style = (shape.x, shape.y), _style(shape, depth)
    if shape.radius:
        rounded = f"round,pad=0,rounding_size={min(shape.radius, shape.width / 2, shape.height / 2)}"
        axes.add_patch(FancyBboxPatch(corner, shape.width, shape.height, boxstyle=rounded, **style))
    else:
        axes.add_patch(Rectangle(corner, shape.width, shape.height, **style))


def _blocks(axes, shape: Blocks, depth: int) -> None:
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in shape.corners]
    axes.add_collection(PolyCollection(corners, antialiased=shape.stroke != "none", **_style(shape, depth)))


def _path(axes, shape: Lines, depth: int) -> None:
    from matplotlib.patches import Polygon

    axes.add_patch(Polygon(shape.points, closed=shape.closed, joinstyle="round", **_style(shape, depth)))


def _disc(axes, shape: Disc, depth: int) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle((shape.x, shape.y), shape.radius, **_style(shape, depth)))


def _label(axes, shape: Label, depth: int) -> None:
    turned = bool(shape.angle)  # turned text is centred on its point, straight text stands on its baseline
    axes.text(
        shape.x,
        shape.y if turned else shape.baseline,
        shape.text.replace("$", r"\$"),
        fontsize=shape.size,
        color=shape.color,
        ha=ALIGN[shape.anchor],
        va="center" if turned else "baseline",
        weight="bold" if shape.bold else "normal",
        family="DejaVu Sans Mono" if shape.mono else "DejaVu Sans",
        rotation=shape.angle,
        zorder=depth,
    )


PAINTERS = {Box: _box, Blocks: _blocks, Lines: _path, Disc: _disc, Label: _label}
