"""Whose work is it? In exercises without messages an answer could be had from the library that is being rebuilt."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from picolib.launch.frames import is_library


@contextlib.contextmanager
def calls_into(*modules: str) -> Iterator[list[str]]:
    """Collects the name of every Python function of these modules (and of those below them) that is called inside.

    It sees the call itself, so it does not matter under which name, from which import, or in which new thread the code
    got hold of it. What a module runs while it is imported is no call.
    """
    called: list[str] = []
    below = tuple(f"{name}." for name in modules)

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        module = frame.f_globals.get("__name__", "") if event == "call" else ""
        if f"{module}.".startswith(below) and not _while_importing(frame):
            called.append(_name_of(frame, module))

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield called
    finally:
        if sys.getprofile() is not look:  # somebody did not want to be looked at
            called.append("sys.setprofile")
        sys.setprofile(before)
        threading.setprofile(before)


def _while_importing(frame: FrameType | None) -> bool:
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_globals.get("__name__", "").startswith("picolib.course"):
            return False  # the check itself calls what the learner has handed over
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _name_of(frame: FrameType, module: str) -> str:
    """The name by which it is called from outside: of a class rather than its __init__, from the first module that has
    it; without the module where that is a private one."""
    name = frame.f_code.co_name
    if name.startswith("__") and "self" in frame.f_locals:
        name = type(frame.f_locals["self"]).__name__
    parts = module.split(".")
    homes = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    homes = [home for home in homes if callable(getattr(sys.modules.get(home), name, None))] or [module]
    # Another function may have the same name further out, as torch.distributed.all_reduce has.
    home = next((home for home in homes if _is(getattr(sys.modules.get(home), name, None), frame)), homes[0])
    return name if "._" in home else f"{home}.{name}"


def _is(found: Any, frame: FrameType) -> bool:
    return getattr(found, "__code__", None) is frame.f_code


def borrowed(attempt: Any) -> str | None:
    """A rule for exercises whose `call` returns {"borrowed": what `calls_into` has seen, …}.

    "instead" in it says how it is to be done, where that is not arithmetic.
    """
    for output in attempt.outputs:
        if output["borrowed"]:
            return (
                f"your function calls {output['borrowed'][0]}. This exercise is about what stands in there: "
                f"do it with {output.get('instead', 'arithmetic and plain tensor operations')}."
            )
    return None
