"""The course: exercises that check themselves, hints, pictures, quizzes. Names are imported at first use."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

_HOME = {
    "check": "check",
    "CheckFailed": "check",
    "hint": "hints",
    "reveal": "hints",
    "progress": "progress",
    "predict": "predict",
    "mystery": "mystery",
    "show": "show",
    "quiz": "quiz",
    "table": "table",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"picolib.course.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'picolib.course' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _Course(types.ModuleType):
    """Keeps `check` the function: importing the module of that name would put the module in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Course
