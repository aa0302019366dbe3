"""`picolib grade NOTEBOOK`: which exercises of a notebook pass, whatever its stored outputs say.

The notebook is run in a process of its own, its functions are lifted out of it (`lift.py`), and each is tried on fresh
ranks against references that live in this process, where no code of the learner's ever runs.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from picolib.course import lessons
from picolib.course.catalogue import exercises
from picolib.course.check import examine, failed_text, passed_text
from picolib.course.exercise import Exercise
from picolib.course.judge import UNREADABLE

NOTEBOOK_SECONDS = 300
PASSED, FAILED, NOT_ATTEMPTED, NOT_EXECUTED = "passed", "not passed", "not attempted", "not executed"


@dataclass
class Claim:
    """Where a notebook answers an exercise: the numbers of the cells, and the name of the function."""

    function: str
    cells: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One exercise's result. text: the whole explanation; note: what a reader must know besides."""

    exercise: Exercise
    result: str
    text: str
    note: str = ""


def grade(notebook: str | Path) -> list[Row]:
    """Grade one notebook: a row for each exercise of its lesson that is not a stretch, or that it answers.

    Raises ValueError for a file that is no notebook, or one that has nothing to do with an exercise.
    """
    path = Path(notebook)
    cells = _code_cells(path)
    _refuse_lessons(path, cells)
    claims = find_claims(cells)
    asked = _asked(path, claims)
    with tempfile.TemporaryDirectory(prefix="picolib-grade-") as folder, _readable(cells):
        failed = _lift(path, Path(folder), [claim.function for claim in claims.values()])
        return [_row(exercise, claims.get(exercise.id), Path(folder), failed) for exercise in asked]


@contextlib.contextmanager
def _readable(cells: Mapping[int, Mapping[str, Any]]) -> Iterator[None]:
    """Meanwhile a traceback or an explanation can quote the lines of these cells."""
    for number, cell in cells.items():
        source = "".join(cell["source"])
        linecache.cache[lessons.cell_name(number)] = (len(source), None, source.splitlines(True), "")
    try:
        yield
    finally:
        for number in cells:
            linecache.cache.pop(lessons.cell_name(number), None)


def _code_cells(path: Path) -> dict[int, dict[str, Any]]:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return {number: cell for number, cell in enumerate(cells, 1) if cell["cell_type"] == "code"}
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise ValueError(f"{path} is not a notebook (.ipynb, format 4)") from None


def find_claims(cells: Mapping[int, Mapping[str, Any]]) -> dict[str, Claim]:
    """exercise id -> where it is answered: by the function's name, or by the cell's stable id where it was renamed."""
    by_function = {e.function: e.id for e in exercises().values()}
    claims: dict[str, Claim] = {}
    for number, cell in cells.items():
        for name in lessons.definitions("".join(cell["source"])):
            if name in by_function:
                claims.setdefault(by_function[name], Claim(name)).cells.append(number)
    for number, cell in cells.items():
        tag = cell.get("metadata", {}).get("picolib", {})
        names = list(lessons.definitions("".join(cell["source"])))
        if tag.get("role") == "answer" and tag["exercise"] in exercises() and tag["exercise"] not in claims and names:
            claims[tag["exercise"]] = Claim(names[-1], [number])
    return claims


def _asked(path: Path, claims: Mapping[str, Claim]) -> list[Exercise]:
    known = exercises()
    answered = {known[id_].lesson for id_ in claims}
    named = {e.lesson for e in known.values() if path.stem in (e.lesson, f"{e.lesson}_exercises")}
    wanted = answered | named
    if not wanted:
        raise ValueError(f"{path.name} answers no exercise: nothing in it defines a function that one asks for")
    return [e for e in known.values() if e.lesson in wanted and (not e.stretch or e.id in claims)]


def _refuse_lessons(path: Path, cells: Mapping[int, Mapping[str, Any]]) -> None:
    """A lesson is read and run; its exercises stand in a notebook of their own."""
    tagged = any(cell.get("metadata", {}).get("picolib") for cell in cells.values())
    checks = any(re.search(r"\bcheck\(", "".join(cell["source"])) for cell in cells.values())
    if tagged or checks or path.stem not in {e.lesson for e in exercises().values()}:
        return
    beside, apart = path.with_name(f"{path.stem}_exercises.ipynb"), path.parent.parent / "exercises" / path.name
    raise ValueError(f"{path} is the lesson; its exercises, to be graded, are in {apart if apart.exists() else beside}")


def _lift(path: Path, folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Run the notebook in its own process; number of a cell -> the error it raised."""
    command = [sys.executable, "-m", "picolib.course.lift", str(path.resolve()), str(folder), *names]
    package = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PICOLIB_WORKSPACE": str(folder), "MPLBACKEND": "agg", "IPYTHONDIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    try:
        subprocess.run(
            command, cwd=path.resolve().parent, env=environment, timeout=NOTEBOOK_SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pass  # what it has defined until then is graded
    try:
        return json.loads((folder / "cells.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _row(exercise: Exercise, claim: Claim | None, folder: Path, failed: Mapping[str, str]) -> Row:
    if claim is None:
        return Row(exercise, NOT_ATTEMPTED, f"nothing defines {exercise.function}")
    note = ""
    if len(claim.cells) > 1:
        note = f"claimed {len(claim.cells)} times, in cells {', '.join(map(str, claim.cells))}: the last one run counts"
    function = folder / f"{claim.function}.pickle"
    if not function.exists():
        errors = [failed[str(number)] for number in claim.cells if str(number) in failed]
        return Row(exercise, NOT_EXECUTED, errors[0] if errors else "its cell could not be run", note)
    try:
        verdict = examine(exercise, function.read_bytes())
    except Exception:  # one answer that nobody has thought of must not end the grading of all others
        return Row(exercise, FAILED, f"Exercise {exercise.id}, {exercise.title}: not right yet.\n\n{UNREADABLE}", note)
    if not verdict.attempted:
        return Row(exercise, NOT_ATTEMPTED, failed_text(verdict), note)
    if not verdict.passed:
        return Row(exercise, FAILED, failed_text(verdict), note)
    return Row(exercise, PASSED, passed_text(verdict), note)


def table(rows: Sequence[Row]) -> str:
    """The results as text, a line an exercise, with the fault of those that failed."""
    width = max(len(row.exercise.title) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.exercise.id:<5}{row.exercise.title:<{width}}  {row.result}{_why(row)}")
        if row.note:
            lines.append(f"{'':5}{'':{width}}  {row.note}")
    passed = sum(row.result == PASSED for row in rows)
    return "\n".join([*lines, f"{passed} of {len(rows)} exercises passed"])


def _why(row: Row) -> str:
    """The first sentence or two of what is wrong, in one line."""
    if row.result == NOT_EXECUTED:
        return f": {row.text}"
    if row.result != FAILED:
        return ""
    fault = row.text.split("\n\n")[1]
    return ": " + re.sub(r"\s+", " ", fault.splitlines()[0])


def junit_xml(graded: Mapping[str, Sequence[Row]]) -> str:
    """JUnit XML: a test suite a notebook, a test case an exercise; everything but "passed" is a failure."""
    suites = xml.Element("testsuites")
    for name, rows in graded.items():
        failures = sum(row.result != PASSED for row in rows)
        suite = xml.SubElement(suites, "testsuite", name=name, tests=str(len(rows)), failures=str(failures))
        for row in rows:
            case = xml.SubElement(suite, "testcase", classname=name, name=f"{row.exercise.id} {row.exercise.title}")
            if row.result != PASSED:
                xml.SubElement(case, "failure", message=row.result + _why(row)).text = _printable(row.text)
            if row.note:
                xml.SubElement(case, "system-out").text = row.note
    xml.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suites, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def main(notebooks: Sequence[str], junit: str | None = None) -> int:
    """Grade notebooks, print their tables, write JUnit XML where asked; 0 when everything passed, else 1."""
    graded = {}
    for name in notebooks:
        graded[name] = grade(name)
        print((f"{name}\n" if len(notebooks) > 1 else "") + table(graded[name]), flush=True)
    if junit:
        Path(junit).write_text(junit_xml(graded), encoding="utf-8")
    return 0 if all(row.result == PASSED for rows in graded.values() for row in rows) else 1
