"""What every widget of the course is: a question, a static picture, and controls that redraw SVG in an HTML widget.

Nothing is captured from matplotlib or print, so nothing flickers and nbval sees the same output at every run. The
picture comes first, as an output of its own: where no kernel runs (a repository's web page, a notebook opened
again) it is what the reader gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

from picolib.course.figures.canvas import Figure

Draw = Callable[..., Figure]


class Panel(ipywidgets.VBox):
    """A box of widgets whose text is its question, not its parts (that text is what nbval compares)."""

    def __init__(self, children: Sequence[ipywidgets.Widget], question: str) -> None:
        self.question = question
        super().__init__(children=list(children), layout=ipywidgets.Layout(max_width="830px"))

    def __repr__(self) -> str:
        return f"[widget: {self.question}]"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        data = super()._repr_mimebundle_(**kwargs)
        data["text/plain"] = repr(self)  # ipywidgets would cut it
        return data


class Explorer:
    """A question, the picture that stands where nothing runs, and the panel to play with."""

    def __init__(self, question: str, picture: Figure, panel: Panel) -> None:
        self.question, self.picture, self.panel = question, picture, panel

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.picture)
        display(self.panel)

    def __repr__(self) -> str:
        return f"[widget: {self.question}]"


def question_line(question: str) -> ipywidgets.HTML:
    """The question above the controls."""
    return ipywidgets.HTML(f'<div style="font-size:15px;line-height:1.4;margin:4px 0"><b>{escape(question)}</b></div>')


def screen(figure: Figure) -> ipywidgets.HTML:
    """An HTML widget that shows a figure; `refresh` changes it in place."""
    return ipywidgets.HTML(figure.svg())


def explorer(question: str, picture: Figure, draw: Draw, controls: dict[str, ipywidgets.Widget]) -> Explorer:
    """Controls by the names of `draw`'s arguments; whenever one changes, its figure replaces the one shown."""
    shown = screen(draw(**{name: control.value for name, control in controls.items()}))

    def redraw(_change: Any) -> None:
        shown.value = draw(**{name: control.value for name, control in controls.items()}).svg()

    for control in controls.values():
        control.observe(redraw, names="value")
    row = ipywidgets.Box(list(controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
    return Explorer(question, picture, Panel([question_line(question), row, shown], question))


def slider(name: str, options: Sequence[tuple[str, Any]], value: Any) -> ipywidgets.SelectionSlider:
    """A slider over named values, wide enough that its name and value are read in full."""
    return ipywidgets.SelectionSlider(
        options=list(options),
        value=value,
        description=name,
        layout=ipywidgets.Layout(width="390px"),
        style={"description_width": "110px"},
    )


def choice(name: str, options: Sequence[Any], value: Any) -> ipywidgets.Dropdown:
    """A menu."""
    return ipywidgets.Dropdown(
        options=list(options),
        value=value,
        description=name,
        layout=ipywidgets.Layout(width="255px"),
        style={"description_width": "75px"},
    )
