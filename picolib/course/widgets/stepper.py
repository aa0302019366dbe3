"""A collective under a slider: who sends which chunk to whom at each step, and what each rank then holds."""

from __future__ import annotations

from typing import Any

import ipywidgets

from picolib.course.figures.schedules import SCHEDULES
from picolib.course.figures.steps import Walk, frame, overview, walk, walk_trace
from picolib.course.figures.traced import ChunkOf
from picolib.course.widgets.base import Explorer, Panel, choice, question_line

QUESTION = "After which step does the first rank hold the finished result, and after which does the last?"
RANKS = range(2, 9)


class Frames:
    """A slider over the steps of a walk, and a stack of their frames.

    Slider and stack are linked in the browser: stepping needs no kernel and works while a cell runs.
    """

    def __init__(self, shown: Walk) -> None:
        self.slider = ipywidgets.SelectionSlider(
            options=["step 1"], description="step", layout=ipywidgets.Layout(width="470px"), readout=True
        )
        self.play = ipywidgets.Play(interval=900, show_repeat=False)
        self.stack = ipywidgets.Stack()
        self.show(shown)
        self.links = [
            ipywidgets.jslink((self.play, "value"), (self.slider, "index")),
            ipywidgets.jslink((self.slider, "index"), (self.stack, "selected_index")),
        ]
        self.controls = ipywidgets.HBox([self.play, self.slider])

    def show(self, shown: Walk) -> None:
        """Put another walk under the slider, at its beginning."""
        self.stack.selected_index = None
        self.stack.children = [ipywidgets.HTML(frame(shown, step).svg()) for step in range(len(shown.states))]
        self.slider.options = [f"step {step + 1}" for step in range(len(shown.steps))] + ["done"]
        self.play.value, self.play.max = 0, len(shown.steps)
        self.slider.index = self.stack.selected_index = 0


def steps(trace: Any, call: str | None = None, chunk_of: ChunkOf | None = None, question: str = QUESTION) -> Explorer:
    """Step through a collective of your own run (trace=True): the first of it, or the first named `call`.

    chunk_of: (rank, k) -> the chunk in a rank's k-th message, for messages sent by `send` and `isend`.
    """
    shown = walk_trace(trace, call, chunk_of)
    frames = Frames(shown)
    return Explorer(
        question, overview(shown), Panel([question_line(question), frames.controls, frames.stack], question)
    )


def stepper(
    collective: str = "all_reduce", algorithm: str = "ring", ranks: int = 4, question: str = QUESTION
) -> Explorer:
    """Step through an algorithm, with menus for the collective, its algorithm and the number of ranks."""
    frames = Frames(walk(collective, algorithm, ranks))
    which = choice("collective", list(SCHEDULES), collective)
    how = choice("algorithm", list(SCHEDULES[collective]), algorithm)
    many = choice("ranks", list(RANKS), ranks)

    def other_collective(_change: Any) -> None:
        how.options = list(SCHEDULES[which.value])  # sets its value too, and so redraws

    def redraw(_change: Any) -> None:
        if how.value in SCHEDULES[which.value]:
            frames.show(walk(which.value, how.value, many.value))

    which.observe(other_collective, names="value")
    for menu in (which, how, many):
        menu.observe(redraw, names="value")
    menus = ipywidgets.Box([which, how, many], layout=ipywidgets.Layout(flex_flow="row wrap"))
    panel = Panel([question_line(question), menus, frames.controls, frames.stack], question)
    return Explorer(question, overview(walk(collective, algorithm, ranks)), panel)
