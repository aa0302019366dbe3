"""`check(fn)`: try the learner's function on several world sizes, and say that it is right, or what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from picolib.course import crosscheck, ended, mine, remarks, replay, state
from picolib.course.catalogue import built_on, by_id, of_function
from picolib.course.exercise import Exercise
from picolib.course.judge import Fault, judge
from picolib.course.records import Attempt
from picolib.course.trial import attempt
from picolib.course.words import sizes_text


class CheckFailed(AssertionError):
    """An exercise that is not solved yet; notebooks show the text alone, and nbval counts the cell as failed."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass
class Verdict:
    """What trying a function came to: its fault (None: passed), and the attempt that showed it."""

    exercise: Exercise
    fault: Fault | None = None
    attempt: Attempt | None = None
    attempted: bool = True
    passed_sizes: list[int] = field(default_factory=list)
    passed_kinds: set[str] = field(default_factory=set)
    home: Attempt | None = None

    @property
    def passed(self) -> bool:
        """Whether everything was right."""
        return self.attempted and self.fault is None

    @property
    def wrong_by_size(self) -> bool:
        """Whether data of the same kind was right on other numbers of ranks: then it is the number that matters."""
        if self.attempt is None or self.attempt.world_size in self.passed_sizes:
            return False
        return self.attempt.case.kind in self.passed_kinds


def examine(exercise: Exercise, fn: Any, seed: int | None = None) -> Verdict:
    """Try `fn` (a function, or bytes that only ranks unpickle) on all world sizes until something is wrong.

    The first size is tried first, with the small case that a table can show; then the others, in the exercise's order.
    """
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    verdict = Verdict(exercise)
    home, *others = exercise.sizes
    first, *rest = exercise.cases(home, seed)
    rest += crosscheck.tampered(exercise, [first, *rest])
    changed = crosscheck.reduced_otherwise(exercise, [first])
    batches = [[first], rest, *(list(exercise.cases(n, seed)) for n in others), changed]
    batches = [cases for cases in batches if cases]
    for cases in batches:
        for one in attempt(exercise, fn, cases):
            verdict.attempt = one
            verdict.home = verdict.home or one
            if cases is rest and one.ranks and not one.case.tampered:
                verdict.home = one  # the larger case: its bytes are the ones to speak of
            verdict.attempted = not one.not_attempted
            verdict.fault = None if one.not_attempted else judge(one)
            if not verdict.passed:
                return verdict
        verdict.passed_kinds |= {case.kind for case in cases}
        if cases[0].world_size not in verdict.passed_sizes:
            verdict.passed_sizes.append(cases[0].world_size)
    return verdict


def check(fn: Callable[..., Any], *, exercise: str | None = None) -> None:
    """Try your function on several numbers of ranks and print one line when it is right.

    Args:
        fn: your function; its name says which exercise it answers.
        exercise: the exercise's id ("2.3"), for a function of another name.

    Raises:
        CheckFailed: it is not right yet; the text says what is wrong and on how many ranks.
        ValueError: no exercise asks for a function of this name.
    """
    asked = by_id(exercise) if exercise else of_function(fn)
    verdict = examine(asked, fn)
    _record(verdict)
    if not verdict.passed:
        raise CheckFailed(failed_text(verdict)) from None
    mine.save(asked, fn)
    print(passed_text(verdict))


def _record(verdict: Verdict) -> None:
    if not verdict.attempted:
        return
    record = state.load()
    entry = state.of_exercise(record, verdict.exercise.id)
    if not entry["passed"]:
        entry["attempts"] += 1
    entry["passed"] = entry["passed"] or verdict.passed
    state.save(record)


def passed_text(verdict: Verdict) -> str:
    """The one line of a passed exercise: the same text every time."""
    exercise, home = verdict.exercise, verdict.home
    assert home is not None
    sends = home.ranks[0].sends
    facts = {"messages": len(sends), "bytes": f"{sum(s[2] for s in sends):,}"}
    if "{steps}" in exercise.verified:
        facts["steps"] = replay.steps([record.entries for record in home.ranks])
    verified = exercise.verified.format(**facts)
    where = f"values right on {sizes_text(exercise.sizes)}; " if exercise.sizes != (1,) else ""
    return f"Exercise {exercise.id} passed: {where}{verified}."


def failed_text(verdict: Verdict) -> str:
    """What a learner reads when it is not right: fault, table, first difference, and where to get help."""
    exercise, fault = verdict.exercise, verdict.fault
    if not verdict.attempted:
        return f"Exercise {exercise.id}: not attempted yet" + _missing_part(verdict)
    assert fault is not None and verdict.attempt is not None
    text = fault.text
    if verdict.wrong_by_size:
        where = f"wrong on {verdict.attempt.world_size}"
        text = f"Right on {sizes_text(verdict.passed_sizes)}, {where}: {text}"
    head = f"Exercise {exercise.id}, {exercise.title}: not right yet."
    power = ended.power(verdict.attempt.code) if "to the power" not in text else ""
    remark = remarks.remark(verdict.attempt, text)
    parts = [head, text, power, remark, fault.table, fault.divergence, f"Stuck? hint({exercise.function})"]
    return "\n\n".join(part for part in parts if part)


def _missing_part(verdict: Verdict) -> str:
    """The earlier exercise that this one builds on and that is a stub still."""
    stub = verdict.attempt.stub if verdict.attempt else ""
    earlier = built_on(verdict.exercise, stub)
    return f"; it calls {earlier.function}, exercise {earlier.id}, which comes first" if earlier else ""
