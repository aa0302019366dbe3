"""`workspace/mine/`: what you have built. A passed function is saved there as a module, with the helpers it uses."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import symtable
import sys
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
    except (OSError, TypeError, SyntaxError, StopIteration):  # a function without source passes all the same
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
    """A function or a class, after whatever of its notebook it uses."""
    fn = inspect.unwrap(fn)
    if fn.__name__ in pieces:
        return
    pieces[fn.__name__] = ""  # it may call itself
    source = _source(fn)
    for name, value in sorted(_used(source, _namespace(fn)).items()):
        _collect_one(name, value, imports, pieces, fn.__module__)
    pieces.pop(fn.__name__)
    pieces[fn.__name__] = source


def _collect_one(name: str, value: Any, imports: dict[str, None], pieces: dict[str, str], home: str) -> None:
    module = getattr(value, "__module__", None)
    if isinstance(value, types.ModuleType):
        imports[f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None
    elif isinstance(value, (types.FunctionType, type)) and module == home:
        _collect(value, imports, pieces)
        if name != value.__name__:
            pieces.setdefault(name, f"{name} = {value.__name__}")
    elif isinstance(value, (int, float, str, bool, tuple)):
        pieces.setdefault(name, f"{name} = {value!r}")
    elif module and hasattr(value, "__name__"):
        imports[f"from {module} import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None


def _namespace(fn: Any) -> dict[str, Any]:
    """The global names that a function or a class sees."""
    code = _a_method(fn) if isinstance(fn, type) else fn
    return vars(sys.modules[fn.__module__]) if code is None else code.__globals__


def _source(fn: Any) -> str:
    method = _a_method(fn) if isinstance(fn, type) else None
    if method is None:
        return textwrap.dedent(inspect.getsource(fn)).rstrip()
    # In a notebook Python knows where a function stands, but not where a class does.
    lines, _ = inspect.findsource(method)
    nodes = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.ClassDef)]
    node = next(node for node in reversed(nodes) if node.name == fn.__name__)
    first = min([node, *node.decorator_list], key=lambda part: part.lineno).lineno
    return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()


def _a_method(cls: type) -> Any:
    members = (getattr(member, "__func__", member) for member in vars(cls).values())
    own = (member for member in members if isinstance(member, types.FunctionType))
    return next((member for member in own if member.__qualname__.startswith(cls.__qualname__)), None)


def _used(source: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Names of the notebook that a definition uses, anywhere inside it; an attribute of the same name is none."""
    names: set[str] = set()
    tables = [symtable.symtable(source, "mine", "exec")]
    while tables:
        table = tables.pop()
        outermost = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (outermost or s.is_global())}
        tables += table.get_children()
    return {name: namespace[name] for name in names if name in namespace and not name.startswith("__")}
