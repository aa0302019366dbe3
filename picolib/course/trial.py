"""Trying a function: run it on fresh ranks, and bring back what it returned, left behind, sent and called.

Nothing that the learner's code could have made is unpickled here: ranks answer with numbers, lists and tensors.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import textwrap
from collections.abc import Sequence
from typing import Any

from picolib.course.exercise import Case, Exercise
from picolib.course.inputs import handed_out
from picolib.course.perform import NOT_ATTEMPTED, perform
from picolib.course.records import Attempt, RankRecord

LONGEST = 2.5  # seconds for one run on a machine that is free, so that a check stays within 3
MOST_LOAD = 3.0  # times that where the machine is busy: right answers take a fifth of a second a run


def attempt(exercise: Exercise, fn: Any, cases: Sequence[Case]) -> list[Attempt]:
    """Run `fn` on these cases (all of one world size) in one run."""
    tried = [Attempt(exercise, case, code=code_of(fn)) for case in cases]
    try:
        answers = _run(exercise, fn, cases)
    except Exception as error:  # whatever ends a run is explained by its text
        tried[0].error = error
        return tried[:1]
    stubs = [answer for answer in answers if isinstance(answer, str)]
    if stubs:
        tried[0].not_attempted = True
        tried[0].stub = stubs[0].removeprefix(NOT_ATTEMPTED).strip()
        return tried[:1]
    for number, one in enumerate(tried):
        one.ranks = [_record(answer[number], exercise) for answer in answers]
    return tried


def code_of(fn: Any) -> str:
    """The statements of a function, without comments and docstring; empty where Python does not know its source."""
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(fn))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    body = getattr(made, "body", [])
    has_docstring = isinstance(made, ast.FunctionDef) and ast.get_docstring(made) is not None
    return "\n".join(ast.unparse(statement) for statement in body[has_docstring:]) if isinstance(body, list) else ""


def _record(answer: list, exercise: Exercise) -> RankRecord:
    output, returned, *rest = answer
    return RankRecord(output, returned if exercise.output == "argument" else output, *rest)


def _run(exercise: Exercise, fn: Any, cases: Sequence[Case]) -> Any:
    from picolib.launch import run

    options: dict[str, Any] = {"results": "plain", "max_seconds": longest()}
    with printed_nowhere(), handed_out(cases) as folder:
        how = exercise.call, exercise.output == "argument", bool(exercise.keeps)
        tampered = [case.tampered for case in cases]
        imported = [_Imported(name) for name in exercise.imports]
        return run(perform, cases[0].world_size, fn, *how, folder, tampered, imported, **options)


class _Imported:
    """Travels to a rank and is, on arrival, a module imported there: arguments arrive before the rank's time starts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _imported, (self.name,)


def _imported(name: str) -> Any:
    """The module, or None where this version of torch has none of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def longest() -> float:
    """Seconds for one run: longer where other programs keep the cores busy, so that no right answer is cut off."""
    try:
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # Windows has no load average
        busy = 1.0
    return LONGEST * min(max(busy, 1.0), MOST_LOAD)


@contextlib.contextmanager
def printed_nowhere() -> Any:
    """What ranks print would fill the notebook with the lines of a dozen runs."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
