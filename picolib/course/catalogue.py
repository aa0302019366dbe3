"""All exercises of the course, by id and by the name of the function that each asks for."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from picolib.course.exercise import Exercise

MODULES = (
    "lesson00",
    "lesson01a",
    "lesson01b",
    "lesson02a",
    "lesson02b",
    "lesson03a",
    "lesson03b",
    "lesson04a",
    "lesson04b",
    "lesson05a",
    "lesson05b",
    "stretch02",
)


@functools.cache
def exercises() -> dict[str, Exercise]:
    """id -> exercise, in the order of the course."""
    found: dict[str, Exercise] = {}
    for name in MODULES:
        for exercise in importlib.import_module(f"picolib.course.exercises.{name}").EXERCISES:
            if exercise.id in found or exercise.function in {e.function for e in found.values()}:
                raise ValueError(f"exercise {exercise.id} ({exercise.function}) is defined twice")
            found[exercise.id] = exercise
    return found


def by_id(id_: str) -> Exercise:
    """The exercise with this id; ValueError where there is none."""
    try:
        return exercises()[id_]
    except KeyError:
        raise ValueError(f"exercise={id_!r}: the exercises are {', '.join(exercises())}") from None


def of_function(fn: Any) -> Exercise:
    """The exercise that asks for a function of this name."""
    name = getattr(fn, "__name__", None)
    found = next((e for e in exercises().values() if e.function == name), None)
    if found is None:
        asked = ", ".join(f"{e.function} ({e.id})" for e in exercises().values())
        what = f"no exercise asks for a function named {name!r}" if name else f"{fn!r} is not a function"
        raise ValueError(f"{what}; they ask for {asked}")
    return found


def built_on(exercise: Exercise, name: str) -> Exercise | None:
    """The other exercise of the same lesson that asks for a function of this name; None where there is none.

    A kernel knows the exercises of one lesson; a `forward` in another's code is no answer to exercise 4.3.
    """
    others = (e for e in exercises().values() if e.lesson == exercise.lesson and e is not exercise)
    return next((e for e in others if e.function == name), None)
