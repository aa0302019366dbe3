"""Answers as learners give them: for each exercise wrong ones, with the words that the diagnosis must contain, and two
right ones that differ. One table: `wrong` and `right` put a function into it, the tests and the docs read it.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

LESSONS = (
    "lesson00",
    "lesson01a",
    "lesson01b",
    "lesson01b_kept",
    "lesson02a",
    "lesson02b",
    "lesson03a",
    "lesson03b",
    "lesson03_fakes",
    "lesson04a",
    "lesson04b",
    "lesson05a",
    "lesson05a_fakes",
    "lesson05b",
    "lesson05b_fakes",
    "lesson05b_masks",
    "mutants",
    "mutants02",
    "mutants03",
    "mutants04",
)


@dataclass(frozen=True)
class Answer:
    """One row: the exercise, what the answer does, the function, and words of its diagnosis (none: it is right)."""

    exercise: str
    name: str
    function: Callable[..., Any]
    says: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The function as a learner would have written it."""
        lines = textwrap.dedent(inspect.getsource(self.function)).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("def "))
        return "\n".join(lines[start:])

    @property
    def label(self) -> str:
        """A name for a test."""
        return f"{self.exercise} {self.name}"


TABLE: list[Answer] = []


def wrong(exercise: str, name: str, *says: str) -> Callable[[Callable], Callable]:
    """The decorated function is a wrong answer; its diagnosis must contain each text of `says`."""

    def put(function: Callable) -> Callable:
        TABLE.append(Answer(exercise, name, function, says))
        return function

    return put


def right(exercise: str, name: str) -> Callable[[Callable], Callable]:
    """The decorated function is a right answer."""

    def put(function: Callable) -> Callable:
        TABLE.append(Answer(exercise, name, function))
        return function

    return put


def load() -> list[Answer]:
    """The whole table."""
    for name in LESSONS:
        module = importlib.import_module(f"{__name__}.{name}")
        cloudpickle.register_pickle_by_value(module)  # as a notebook's functions travel
    return TABLE


def to_markdown() -> str:
    """The page of the docs (docs/answers.md), one table an exercise."""
    from picolib.course.catalogue import exercises

    lines = [
        "# What people answer, and what they are told",
        "",
        "Every row is a test: the answer is tried as a learner's would be, and its diagnosis must contain these words.",
        "An answer that a check let pass, or whose message did not help, belongs into `tests/course/wrong_answers/`;",
        "`python -m tests.course.wrong_answers > docs/answers.md` writes this page anew.",
    ]
    table = load()
    for id_, exercise in exercises().items():
        rows = [answer for answer in table if answer.exercise == id_]
        lines += ["", f"## {id_} {exercise.title}", "", "| answer | told |", "|---|---|"]
        lines += [f"| {_cell(answer.name)} | {_cell('; '.join(answer.says)) or '*right*'} |" for answer in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")
