"""The one way a picture enters a notebook: PNG and SVG side by side, with words for those who do not see it.

The words stand where a reader's tools may look for them: in the SVG (role, aria-label, title), as `alt` in the
output's metadata, and as the plain text of the output. (JupyterLab 4 hands none of them to the <img> that it makes;
HTML with an <img alt> would, but repositories' pages do not all show pictures inside HTML.)
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from html import escape
from typing import Any

from picolib.course.figures.canvas import Figure


@dataclass(frozen=True)
class Picture:
    """A finished picture in whichever formats there are; shows itself in a notebook."""

    alt: str
    svg: str | None = None
    png: bytes | None = None

    def __repr__(self) -> str:
        return f"[figure: {self.alt}]"

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"text/plain": repr(self)}
        if self.svg is not None:
            data["image/svg+xml"] = with_words(self.svg, self.alt)
        if self.png is not None:
            data["image/png"] = base64.b64encode(self.png).decode()
        return data, {"alt": self.alt, "image/png": {"alt": self.alt}, "image/svg+xml": {"alt": self.alt}}


def with_words(svg: str, alt: str) -> str:
    """SVG text that names itself an image and says what it shows, where it does not yet."""
    head = re.search(r"<svg\b[^>]*>", svg)
    if head is None or "aria-label" in head[0]:
        return svg
    words = escape(alt, quote=True)
    start = f'{head[0][:-1]} role="img" aria-label="{words}"><title>{words}</title>'
    return svg[: head.start()] + start + svg[head.end() :]


def display_figure(figure: Any, alt: str | None = None, varies: bool = False) -> None:
    """Show a figure of this package, SVG text, or a matplotlib figure, with `alt` saying what is to be seen.

    varies: the picture holds measured values, so only its PNG is stored (nbval compares SVG and text, not PNG).
    Raises ValueError without an alt text, and TypeError for anything that is no picture.
    """
    from IPython.display import display

    display(as_picture(figure, alt, varies))


def as_picture(figure: Any, alt: str | None = None, varies: bool = False) -> Figure | Picture:
    """The same, as an object."""
    if isinstance(figure, Figure):
        figure.alt, figure.varies = alt or figure.alt, varies or figure.varies
        return figure
    if not alt:
        raise ValueError("alt is empty: say in a sentence what the figure shows")
    if isinstance(figure, str) and figure.lstrip().startswith("<svg"):
        return Picture(alt, svg=figure)
    if hasattr(figure, "savefig"):
        return _from_matplotlib(figure, alt, varies)
    raise TypeError(f"figure is {type(figure).__name__}: expected a course figure, SVG text or a matplotlib figure")


def _from_matplotlib(figure: Any, alt: str, varies: bool) -> Picture:
    """Both formats without dates and random ids; the figure is closed, so that no cell shows it a second time."""
    import matplotlib
    from matplotlib import pyplot

    png, svg = io.BytesIO(), io.StringIO()
    settings = {"facecolor": "white", "bbox_inches": "tight"}
    figure.savefig(png, format="png", dpi=144, metadata={"Software": None}, **settings)
    with matplotlib.rc_context({"svg.hashsalt": "picolib", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, **settings)
    pyplot.close(figure)
    return Picture(alt, None if varies else svg.getvalue(), png.getvalue())
