"""`workspace/mine/`: what you have built. A passed function is saved there as a module, with the helpers it uses."""

from __future__ import annotations

import inspect
import textwrap
import types
from pathlib import Path
from typing import Any

from picolib.course import state
from picolib.course.exercise import Exercise


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
        path = target / f"{exercise.function}.py"
        head = f'"""Exercise {exercise.id}, {exercise.title}: passed. Written by you."""\n\n'
        state.write_text(path, head + text)
    except (OSError, TypeError):  # a function without source passes all the same
        return None
    return path


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
