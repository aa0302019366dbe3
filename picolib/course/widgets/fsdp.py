"""A layer under a slider: what one rank holds of it, and of its neighbours, at each moment of your own step."""

from __future__ import annotations

from typing import Any

import ipywidgets

from picolib.course.figures.fsdp_life import fsdp_frame, fsdp_life, life_of
from picolib.course.widgets.base import Explorer, Panel, question_line

QUESTION = "At which moments are two layers whole at once, and what does the rank get for it?"


def fsdp_stepper(trace: Any, follow: int = 1, rank: int = 0, step: int = -1, question: str = QUESTION) -> Explorer:
    """Step through a training step of your own run (trace=True; see `figures.fsdp_life`), one layer marked.

    Slider and frames are linked in the browser, so that stepping needs no kernel.
    """
    life = life_of(trace, rank, step)
    last = len(life.moments) - 1
    names = [f"{number} of {last}" for number in range(last + 1)]
    slider = ipywidgets.SelectionSlider(options=names, description="moment", layout=ipywidgets.Layout(width="470px"))
    play = ipywidgets.Play(interval=700, show_repeat=False, max=last)
    frames = [ipywidgets.HTML(fsdp_frame(life, number, follow).svg()) for number in range(last + 1)]
    stack = ipywidgets.Stack(frames, selected_index=0)
    panel = Panel([question_line(question), ipywidgets.HBox([play, slider]), stack], question)
    panel.links = [
        ipywidgets.jslink((play, "value"), (slider, "index")),
        ipywidgets.jslink((slider, "index"), (stack, "selected_index")),
    ]
    return Explorer(question, fsdp_life(trace, follow, rank, step), panel)
