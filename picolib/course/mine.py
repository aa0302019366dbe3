"""`workspace/mine/`: what you have built. A passed function is saved there as a module, with the helpers it uses."""

from __future__ import annotations

import hashlib
import inspect
import json
import textwrap
import types
from pathlib import Path
from typing import Any

from picolib.course import state
from picolib.course.exercise import Exercise

NOTES = "mine.json"  # function -> digest of the file that passed


def folder() -> Path | None:
    """Where passed functions are saved; None outside a workspace."""
    workspace = state.workspace()
    return None if workspace is None else workspace / "mine"


def save(exercise: Exercise, fn: Any) -> Path | None:
    """Write `mine/FUNCTION.py`; returns its path, or None when there is no workspace or no source to be had."""
    target = folder()
    if target is None:
        return None
    try:
        text = source_with_helpers(fn)
        own_name = inspect.unwrap(fn).__name__
        if own_name != exercise.function:
            text += f"\n\n{exercise.function} = {own_name}\n"
        path = target / f"{exercise.function}.py"
        head = f'"""Exercise {exercise.id}, {exercise.title}: passed. Written by you."""\n\n'
        state.write_text(path, head + text)
        _note(target.parent, exercise.function, head + text)
    except (OSError, TypeError):  # a function without source passes all the same
        return None
    return path


def was_changed(function: str, text: str) -> bool:
    """Whether this text of `mine/FUNCTION.py` is another than the one that passed; False where that is not known."""
    workspace = state.workspace()
    passed = None if workspace is None else _notes(workspace).get(function)
    return passed is not None and passed != _digest(text)


def _note(workspace: Path, function: str, text: str) -> None:
    notes = {**_notes(workspace), function: _digest(text)}
    state.write_text(workspace / state.MARK / NOTES, json.dumps(notes, indent=1) + "\n")


def _notes(workspace: Path) -> dict[str, str]:
    try:
        return json.loads((workspace / state.MARK / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def source_with_helpers(fn: Any) -> str:
    """The source of a function and of everything of its own notebook that it uses, in an order that runs.

    Raises OSError or TypeError where Python does not know the source.
    """
    imports: dict[str, None] = {}
    pieces: dict[str, str] = {}
    _collect(fn, imports, pieces)
    head = "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line)))
    return "\n\n\n".join(part for part in (head, *pieces.values()) if part) + "\n"


def _collect(fn: Any, imports: dict[str, None], pieces: dict[str, str]) -> None:
    fn = inspect.unwrap(fn)
    if fn.__name__ in pieces:
        return
    pieces[fn.__name__] = ""  # it may call itself
    for name, value in sorted(_used(fn).items()):
        _collect_one(name, value, imports, pieces, fn.__module__)
    pieces[fn.__name__] = pieces.pop(fn.__name__) or textwrap.dedent(inspect.getsource(fn)).rstrip()


def _collect_one(name: str, value: Any, imports: dict[str, None], pieces: dict[str, str], home: str) -> None:
    module = getattr(value, "__module__", None)
    if isinstance(value, types.ModuleType):
        imports[f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None
    elif isinstance(value, types.FunctionType) and module == home:
        _collect(value, imports, pieces)
    elif isinstance(value, type) and module == home:
        pieces.setdefault(name, textwrap.dedent(inspect.getsource(value)).rstrip())
    elif isinstance(value, (int, float, str, bool, tuple)):
        pieces.setdefault(name, f"{name} = {value!r}")
    elif module and hasattr(value, "__name__"):
        imports[f"from {module} import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None


def _used(fn: Any) -> dict[str, Any]:
    """Global names that a function's code uses, also in functions and comprehensions inside it."""
    names: set[str] = set()
    codes = [fn.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return {name: fn.__globals__[name] for name in names if name in fn.__globals__}
