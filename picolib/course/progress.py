"""What is done, what is next, and the stack of what you have built: `progress()`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from picolib.course import state
from picolib.course.catalogue import exercises
from picolib.course.exercise import Exercise
from picolib.course.figures.canvas import Figure
from picolib.course.figures.stack import stack


def is_open(exercise: str) -> bool:
    """Whether a learner is at work and has neither solved nor seen it; outside a workspace nothing is open."""
    if state.workspace() is None:
        return False
    entry = state.load().get("exercises", {}).get(exercise, {})
    return not (entry.get("passed") or entry.get("seen"))


class Progress:
    """The exercises and where you stand; shows itself in a notebook."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.entries: Mapping[str, Any] = record.get("exercises", {})

    @property
    def passed(self) -> list[Exercise]:
        """The exercises passed so far."""
        return [e for e in exercises().values() if self.entries.get(e.id, {}).get("passed")]

    @property
    def next(self) -> Exercise | None:
        """The first core exercise that is not passed."""
        done = {e.id for e in self.passed}
        return next((e for e in exercises().values() if e.id not in done and not e.stretch), None)

    def state_of(self, exercise: Exercise) -> str:
        """ "passed", "passed after a look", "3 attempts", "not attempted", "1 attempt, solution seen"."""
        entry = self.entries.get(exercise.id, {})
        if entry.get("passed"):
            return "passed after a look" if entry.get("seen") else "passed"
        attempts = entry.get("attempts", 0)
        tried = f"{attempts} attempt{'' if attempts == 1 else 's'}" if attempts else "not attempted"
        return f"{tried}, solution seen" if entry.get("seen") else tried

    def __repr__(self) -> str:
        lines = [self._head()]
        for e in exercises().values():
            mark = "x" if e in self.passed else " "
            lines.append(f"[{mark}] {e.id:<5}{e.title}{' (stretch)' if e.stretch else ''}: {self.state_of(e)}")
        return "\n".join(lines)

    def _head(self) -> str:
        core = [e for e in exercises().values() if not e.stretch]
        done = sum(e in core for e in self.passed)
        further = f" Next: {self.next.id}, {self.next.title}." if self.next else ""
        return f"{done} of {len(core)} core exercises passed.{further}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{'&#10003;' if e in self.passed else ''}</td><td>{e.id}</td>"
            f'<td style="text-align:left">{escape(e.title)}{" <i>(stretch)</i>" if e.stretch else ""}</td>'
            f'<td style="text-align:left">{escape(e.function)}</td>'
            f'<td style="text-align:left">{self.state_of(e)}</td></tr>'
            for e in exercises().values()
        )
        return f"<p>{escape(self._head())}{self._way()}</p>{self.stack.svg()}{_folded(rows)}"

    def _way(self) -> str:
        """Links to the next exercise and its lesson, as they lie side by side in a workspace."""
        if self.next is None or state.workspace() is None:
            return ""
        lesson = self.next.lesson
        return f' <a href="{lesson}_exercises.ipynb">Do it</a>, or <a href="{lesson}.ipynb">read the lesson</a> first.'

    @property
    def stack(self) -> Figure:
        """The picture of the stack, with what you have built filled in."""
        return stack({e.id: e.function for e in exercises().values()}, {e.id for e in self.passed})


def _folded(rows: str) -> str:
    """The long list opens at a click, so that what follows on the page is in sight."""
    return f"<details><summary>All exercises, one by one</summary><table>{rows}</table></details>"


def progress() -> Progress:
    """The exercises of the course: passed, tried, open, and which one is next."""
    return Progress(state.load())
