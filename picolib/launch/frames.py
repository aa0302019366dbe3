"""Tracebacks as plain data, and their text: the lines of the learner's cells, without the launcher's frames."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAUNCHER = str(Path(__file__).parent)


def describe_exception(error: BaseException) -> dict[str, Any]:
    """What the kernel needs to show this exception; plain data, so that any exception class can be told."""
    stack = traceback.extract_tb(error.__traceback__)
    told = {
        "type": type(error).__name__,
        "text": _text_of(error),
        "frames": [(frame.filename, frame.lineno or 0, frame.name, frame.line or "") for frame in stack],
        "kinds": [kind.__name__ for kind in type(error).__mro__],
    }
    if isinstance(error, SystemExit):
        told["code"] = error.code if isinstance(error.code, (int, str, type(None))) else str(error.code)
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        told["before"] = describe_exception(before)
        told["because"] = error.__cause__ is not None
    return told


def _text_of(error: BaseException) -> str:
    try:
        notes = [str(note) for note in getattr(error, "__notes__", ())]
        return "\n".join([str(error), *notes])
    except Exception as failure:
        return f"<its text cannot be made: {type(failure).__name__}>"


def place(filename: str, line: int) -> str:
    """Where a line is, in the learner's terms: "cell In[3], line 5" or "train.py, line 5"."""
    cell = _cell_name(filename)
    return f"cell {cell}, line {line}" if cell else f"{_short(filename)}, line {line}"


def _cell_name(filename: str) -> str | None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    try:
        label, name = shell.compile.format_code_name(filename)
        return name
    except (AttributeError, TypeError):  # no shell, or not a cell
        return None


def _short(filename: str) -> str:
    for folder in sorted(sys.path, key=len, reverse=True):
        if folder and filename.startswith(folder + os.sep):
            return os.path.relpath(filename, folder)
    return filename


def is_library(filename: str) -> bool:
    """Whether a file belongs to Python or an installed package rather than to the learner."""
    parts = Path(filename).parts
    return "site-packages" in parts or filename.startswith((sys.base_prefix + os.sep + "lib", "<frozen"))


def render(told: Mapping[str, Any], full: bool = False) -> str:
    """The lines under an error: where it happened, with the source. `full` keeps the libraries' frames."""
    frames = [frame for frame in told["frames"] if not frame[0].startswith(LAUNCHER)]
    if not full:
        last = len(frames) - 1
        frames = [frame for index, frame in enumerate(frames) if index == last or not is_library(frame[0])]
    lines = []
    for filename, line, name, source in frames:
        lines.append(f"  {place(filename, line)}, in {name}")
        source = source or linecache.getline(filename, line).strip()
        if source:
            lines.append(f"      {source}")
    return "\n".join(lines)
