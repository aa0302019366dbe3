"""Names what cannot travel to ranks, and what is large, in the learner's own words."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

LARGE = 32_000_000  # bytes of a global that deserve a word
OF_THE_NOTEBOOK = ("ipywidgets", "ipykernel", "IPython")  # could be pickled, but what arrives would be dead


def explain(fn: Callable[..., Any], args: tuple[Any, ...], works: Callable[[Any], bool]) -> str | None:
    """One sentence about the first thing inside `fn` or `args` that cannot be sent; None when nothing is found.

    Args:
        works: whether a value can be sent.
    """
    found = None if works(fn) else _search(fn, _owner(fn), None, works, set())
    if found is not None:
        path, value, user = found
        used = f", used by `{user}`," if user else ""
        inside = f"create it inside `{user}`" if user else "create it inside"
        return f"`{path}`{used} cannot be sent to ranks (it is {_kind(value)}); {inside}"
    for index, value in enumerate(args):
        found = None if works(value) else _search(value, f"args[{index}]", None, works, set())
        if found is not None:
            path, value, _ = found
            inside = f"create it inside `{_name(fn)}`"
            return f"`{path}`, an argument of `{_name(fn)}`, cannot be sent to ranks (it is {_kind(value)}); {inside}"
    return None


def large(fn: Callable[..., Any], size_of: Callable[[Any], int]) -> Iterator[tuple[str, int, str]]:
    """(name, bytes, function that uses it) of each large global or closure variable that travels with `fn`."""
    seen: set[int] = set()
    waiting = [fn]
    while waiting:
        function = waiting.pop()
        for part, name, user in _parts(function):
            if id(part) in seen or isinstance(part, (types.ModuleType, type)):
                continue
            seen.add(id(part))
            if isinstance(part, (types.FunctionType, types.MethodType, functools.partial)):
                waiting.append(part)
            elif user and (size := size_of(part)) >= LARGE:
                yield name, size, user


def _search(value: Any, path: str, user: str | None, works: Callable[[Any], bool], seen: set[int]) -> tuple | None:
    """The innermost part of `value` that cannot be sent: (path, part, function that uses it)."""
    seen.add(id(value))
    if package(value) in OF_THE_NOTEBOOK:
        return path, value, user
    for part, name, part_user in _parts(value):
        if id(part) in seen or len(seen) > 10_000 or works(part):
            continue
        inner = name if part_user else f"{path}{name}"
        return _search(part, inner, part_user or user, works, seen)
    return path, value, user


def _parts(value: Any) -> Iterator[tuple[Any, str, str | None]]:
    """(part, its name, the function that uses it by that name) of whatever would travel with `value`."""
    if isinstance(value, types.FunctionType):
        yield from ((part, name, value.__name__) for name, part in variables(value).items())
        yield from ((part, f".__defaults__[{index}]", None) for index, part in enumerate(value.__defaults__ or ()))
    elif isinstance(value, types.MethodType):
        yield value.__func__, "", None
        yield value.__self__, "", None
    elif isinstance(value, functools.partial):
        yield value.func, "", None
        yield from ((part, f".args[{index}]", None) for index, part in enumerate(value.args))
        yield from ((part, f".keywords[{key!r}]", None) for key, part in value.keywords.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((part, f"[{index}]", None) for index, part in enumerate(value))
    elif isinstance(value, dict):
        yield from ((part, f"[{key!r}]", None) for key, part in value.items())
    elif isinstance(value, type):
        yield from ((part, f".{key}", None) for key, part in vars(value).items() if not key.startswith("__"))
    else:
        yield from ((part, f".{key}", None) for key, part in getattr(value, "__dict__", {}).items())
        yield type(value), "", None


def variables(function: types.FunctionType) -> dict[str, Any]:
    """The globals and closure variables that a function really uses, with their present values."""
    used = {name: function.__globals__[name] for name in _global_names(function.__code__) & set(function.__globals__)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    return dict(sorted(used.items()))


def _global_names(code: types.CodeType) -> set[str]:
    names = {
        step.argval for step in dis.get_instructions(code) if "GLOBAL" in step.opname or step.opname == "LOAD_NAME"
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def package(value: Any) -> str:
    """The top-level package that a value's type comes from."""
    return type(value).__module__.partition(".")[0]


def _owner(fn: Any) -> str:
    """What the parts of `fn` are called after: the class for a method."""
    return type(fn.__self__).__name__ if isinstance(fn, types.MethodType) else _name(fn)


def _name(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def _kind(value: Any) -> str:
    kind = type(value)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
