"""When you are stuck: three hints, one at a time, then the first difference from the reference, then `reveal`."""

from __future__ import annotations

from typing import Any

from picolib.course import state
from picolib.course.catalogue import of_function
from picolib.course.check import examine
from picolib.course.exercise import Exercise
from picolib.course.lessons import solution_of


def hint(fn: Any, number: int | None = None) -> None:
    """Print the next hint for your function; each call goes one step further.

    number: print hint 1, 2 or 3 again, as far as you have come; it counts as no further step.

    Raises ValueError for a number that is no hint's, or the number of a hint that you have not reached yet.
    """
    exercise = of_function(fn)
    record = state.load()
    entry = state.of_exercise(record, exercise.id)
    level = entry["hints"]
    if number is not None:
        print(_hint_text(exercise, fn, _again(exercise, number, level)))
        return
    entry["hints"] = min(level + 1, 4)
    state.save(record)
    print(_hint_text(exercise, fn, level))


def _again(exercise: Exercise, number: int, level: int) -> int:
    if isinstance(number, bool) or number not in (1, 2, 3):
        raise ValueError(f"number={number!r}: there are hints 1, 2 and 3")
    if number > level:
        seen = "no hint" if not level else f"hint {level}" if level == 1 else f"hints 1 to {min(level, 3)}"
        raise ValueError(f"number={number}: you have seen {seen} so far; hint({exercise.function}) shows the next one")
    return number - 1


def _hint_text(exercise: Exercise, fn: Any, level: int) -> str:
    if level < 3:
        return f"Hint {level + 1} of 3: {exercise.hints[level]}"
    further = f"To see a solution: reveal({exercise.function})"
    verdict = examine(exercise, fn)
    if verdict.passed:
        return "Your function is right: nothing left to hint at."
    if not verdict.attempted:
        return f"There is no attempt yet to compare with the reference: write one, even a wrong one. {further}"
    assert verdict.fault is not None
    return (verdict.fault.divergence or verdict.fault.text) + "\n" + further


def reveal(fn: Any) -> None:
    """Print a solution of the exercise. It is recorded as seen; solve it again tomorrow without looking."""
    exercise = of_function(fn)
    text = solution_of(exercise)
    record = state.load()
    state.of_exercise(record, exercise.id)["seen"] = True
    state.save(record)
    print(f"Exercise {exercise.id}, {exercise.title} (recorded as seen):\n\n{text}")
