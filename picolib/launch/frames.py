"""Tracebacks as plain data, and their text: the lines of the learner's cells, without the launcher's frames."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PICOLIB = str(Path(__file__).parent.parent) + os.sep
STDLIB = sysconfig.get_path("stdlib") + os.sep
LAUNCHER = str(Path(__file__).parent) + os.sep
Frame = Sequence[Any]  # file, line, function, source (may be empty)
LONGEST, DEEPEST, MOST = 10_000, 5, 5  # characters of a text, exceptions before one another, exceptions of a group


def describe_exception(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """What the kernel needs to show this exception; plain data, so that any exception class can be told."""
    stack = traceback.extract_tb(error.__traceback__)
    told: dict[str, Any] = {
        "type": type(error).__name__,
        "text": _text_of(error),
        "frames": [(frame.filename, frame.lineno or 0, frame.name, frame.line or "") for frame in stack],
        "kinds": [kind.__name__ for kind in type(error).__mro__],
    }
    if isinstance(error, SystemExit):
        told["code"] = error.code if isinstance(error.code, (int, str, type(None))) else str(error.code)
    inner = getattr(error, "exceptions", ())
    if isinstance(inner, (list, tuple)) and depth < DEEPEST:  # an exception group, or something like it
        told["inner"] = [describe_exception(one, depth + 1) for one in inner[:MOST] if isinstance(one, BaseException)]
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and depth < DEEPEST:
        told["before"] = describe_exception(before, depth + 1)
        told["because"] = error.__cause__ is not None
    return told


def _text_of(error: BaseException) -> str:
    try:
        text = "\n".join([str(error), *(str(note) for note in getattr(error, "__notes__", ()))])
    except Exception as failure:
        return f"<its text cannot be made: {type(failure).__name__}>"
    left_out = len(text) - LONGEST
    return text if left_out <= 0 else f"{text[:LONGEST]} … {left_out:,} characters left out"


def place(filename: str, line: int) -> str:
    """Where a line is, in the learner's terms: "cell In[3], line 5" or "train.py, line 5"."""
    cell = _cell_name(filename)
    return f"cell {cell}, line {line}" if cell else f"{_short(filename)}, line {line}"


def _cell_name(filename: str) -> str | None:
    try:
        shell = sys.modules["IPython"].get_ipython()
        return shell.compile.format_code_name(filename)[1]
    except (KeyError, AttributeError, TypeError):  # no shell, or not the file of a cell
        return None


def _short(filename: str) -> str:
    """The path as seen from the folder of sys.path that holds it (the longest one)."""
    for folder in sorted({folder or os.curdir for folder in sys.path}, key=len, reverse=True):
        folder = os.path.abspath(folder)
        if filename.startswith(folder + os.sep):
            return os.path.relpath(filename, folder)
    return filename


@functools.lru_cache(maxsize=1024)
def is_library(filename: str) -> bool:
    """Whether a file belongs to Python, an installed package or picolib rather than to the learner."""
    if filename.startswith(("<frozen", PICOLIB)) or filename == "<string>":
        return True
    if {"site-packages", "dist-packages"} & set(Path(filename).parts):
        return True
    return filename.startswith(STDLIB)


def _is_launcher(frame: Frame) -> bool:
    """Also the outermost frame of all: the fork server is started by `python -c`."""
    return frame[0].startswith(LAUNCHER) or (frame[0], frame[2]) == ("<string>", "<module>")


def of_learner(frames: Sequence[Frame]) -> list[Frame]:
    """The learner's frames and the innermost one, whosever it is."""
    frames = [frame for frame in frames if not _is_launcher(frame)]
    last = len(frames) - 1
    return [frame for index, frame in enumerate(frames) if index == last or not is_library(frame[0])]


def render(frames: Sequence[Frame]) -> str:
    """Two lines a frame: where it is, and its source."""
    lines = []
    for (filename, line, name, source), repeated in itertools.groupby(map(tuple, frames)):
        lines.append(f"  {place(filename, line)}" + (f", in {name}" if name != "<module>" else ""))
        source = linecache.getline(filename, line).strip() or source
        if source:
            lines.append(f"      {source}")
        count = len(list(repeated))
        if count > 1:
            lines.append(f"      ({count:,} times in a row)")
    return "\n".join(lines)


def explain(told: Mapping[str, Any]) -> str:
    """The lines under "rank 3 failed with …": the learner's lines, and what came before."""
    parts = [render(of_learner(told["frames"]))]
    for one in told.get("inner", ()):
        parts.append(textwrap.indent(f"  one of them is {one['type']}: {one['text']}\n{explain(one)}", "  "))
    before = told.get("before")
    if before:
        word = "caused by" if told["because"] else "while handling"
        parts.append(f"  {word} {before['type']}: {before['text']}\n{explain(before)}")
    return "\n".join(part for part in parts if part)


def full(told: Mapping[str, Any]) -> str:
    """The whole traceback, libraries included, in Python's order."""
    before = told.get("before")
    start = full(before) + "\n\nthen\n\n" if before else ""
    frames = [frame for frame in told["frames"] if not _is_launcher(frame)]
    inner = "".join(textwrap.indent(f"\none of them:\n{full(one)}", "    ") for one in told.get("inner", ()))
    return f"{start}{render(frames)}\n{told['type']}: {told['text']}{inner}"
