"""Where the exercise is to build a part of the library: whoever calls that part, or its helpers, is told so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from picolib.course import observe
from picolib.course.exercises.borrowed import calls_into

CALLED = "called "  # the note of such a call begins with it


@contextlib.contextmanager
def note_calls_into(*modules: str) -> Iterator[None]:
    """In a rank: note the first function of these modules that is called inside, for the rule `rebuilt`."""
    with calls_into(*modules) as called:
        yield
    for name in called[:1]:
        observe.note(CALLED + name)


def rebuilt(attempt: Any) -> str | None:
    """A rule for exercises whose `call` uses `note_calls_into`."""
    for rank, record in enumerate(attempt.ranks):
        for entry in record.entries:
            if entry[0] == "note" and entry[1].startswith(CALLED):
                name = entry[1].removeprefix(CALLED)
                return f"rank {rank} called {name}, a part of what you build in this exercise. Write it yourself."
    return None
