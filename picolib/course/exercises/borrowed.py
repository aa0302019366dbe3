"""Whose work is it? In exercises without messages an answer could be had from the library that is being rebuilt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def calls_into(*modules: str) -> Iterator[list[str]]:
    """Collects "module.function" of every Python function of these modules (and of those below them) that runs inside.

    It sees the call itself, so it does not matter under which name, or from which import, the code got hold of it.
    """
    called: list[str] = []

    def look(frame: Any, event: str, _argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and any(module == name or module.startswith(f"{name}.") for name in modules):
            called.append(f"{module}.{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield called
    finally:
        sys.setprofile(before)


def borrowed(attempt: Any) -> str | None:
    """A rule for exercises whose `call` returns {"borrowed": what `calls_into` has seen, …}."""
    for output in attempt.outputs:
        if output["borrowed"]:
            return (
                f"your function calls {output['borrowed'][0]}. This exercise is about what stands in there: "
                "do it with arithmetic and plain tensor operations."
            )
    return None
