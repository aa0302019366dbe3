"""`run(..., use="mine")`: parts that each rank puts in the library's place before it calls its function.

Who knows such parts has two functions: `sources()`, called in the kernel, gives them as plain data; `install(parts)`,
called in each rank, puts them into place, and returns a function that says in a line what was used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

HOMES = {"mine": "picolib.course.stack"}  # by name: nothing in this package knows the course


def gather(use: str | None) -> dict[str, Any] | None:
    """In the kernel: what travels to the ranks. ValueError for a name that nobody knows."""
    if use is None:
        return None
    if use not in HOMES:
        raise ValueError(f'use must be "mine" (the parts that you have built) or None, got {use!r}')
    return {"home": HOMES[use], "parts": importlib.import_module(HOMES[use]).sources()}


def install(gathered: Mapping[str, Any] | None) -> Callable[[], str] | None:
    """In a rank: put them into place."""
    if gathered is None:
        return None
    return importlib.import_module(gathered["home"]).install(gathered["parts"])
