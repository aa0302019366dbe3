"""`mystery("04A")`: the trace of an earlier strategy without its name. Two minutes: which one was it?

The job runs here and now, on ranks, with slow links and pretended compute, so that the picture looks alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from picolib.course.figures.canvas import Figure
from picolib.course.quiz import Question, Quiz


@dataclass(frozen=True)
class Mystery:
    """A job of a sitting before this one, how its trace is drawn, and the question about it."""

    sitting: str
    ranks: int
    job: Callable[[], Any]
    draw: Callable[[Any, str], Figure]
    question: Question

    def trace(self) -> Any:
        """Run the job."""
        import picolib

        link = picolib.Link(latency=1e-3, bandwidth=150e6)
        return picolib.run(self.job, self.ranks, trace=True, links=picolib.Links(1, self.ranks, link, link)).trace

    def evidence(self) -> Any:
        """Run the job; what is drawn of it."""
        return without_names(self.trace())

    def figure(self) -> Figure:
        """Run the job and draw what it left, without its name."""
        return self.draw(self.evidence(), "A mystery")

    def __repr__(self) -> str:
        return f"[mystery: {self.sitting}]"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.figure())
        Quiz([self.question])._ipython_display_()


class Kept(Mystery):
    """A mystery about what ranks keep: its job returns that, and there is no trace to draw."""

    def evidence(self) -> Any:
        """Run the job; what each rank returned."""
        import picolib

        return list(picolib.run(self.job, self.ranks))


def without_names(trace: Any) -> Any:
    """The trace with no word in it that says which collective or strategy was at work."""
    events = [
        event if event.kind in ("mark", "compute") else event._replace(label="", call=None) for event in trace.events
    ]
    hidden = object.__new__(type(trace))
    hidden.__dict__.update(trace.__dict__)
    hidden.events = events
    return hidden


def mystery(which: str) -> Mystery:
    """The mystery that opens a sitting ("04A"). Raises ValueError for a sitting without one."""
    from picolib.course.mysteries import MYSTERIES

    found = next((one for one in MYSTERIES if one.sitting == which), None)
    if found is None:
        raise ValueError(f"which={which!r}: there are mysteries for {', '.join(m.sitting for m in MYSTERIES)}")
    return found
