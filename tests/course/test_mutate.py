"""The tool that changes solutions and checks them."""

import ast

from picolib.course.catalogue import by_id

from .mutate import outcomes, sample, table
from .mutations import mutants

FUNCTION = """
def passed_on(x, n):
    for step in range(n):
        x = x.clone()
    return x
"""


def changes(source: str) -> dict[str, set[str]]:
    (function,) = ast.parse(source).body
    made: dict[str, set[str]] = {}
    for mutant in mutants(function, 0):
        made.setdefault(mutant.kind, set()).add(mutant.after)
    return made


def test_each_mutant_is_another_program():
    for exercise, mutant in sample(1, 60):
        (function,) = ast.parse(mutant.code).body
        assert function.name == exercise.function
        assert mutant.before != mutant.after


def test_mutants_are_small_changes_to_the_code():
    made = changes(FUNCTION)
    assert made["bound"] == {"for step in range(n - 1):", "for step in range(n + 1):"}
    assert "x = x" in made["in_place"]
    assert "return x" not in made["returned"]  # it returns x already


def test_the_same_seed_draws_the_same_mutants_evenly_over_the_exercises():
    one = sample(7, 30)
    assert one == sample(7, 30) != sample(8, 30)
    assert len({exercise.id for exercise, _ in one}) == len(one)


def test_a_mutant_is_tried_as_an_answer_would_be():
    (exercise, mutant), *_ = [pair for pair in sample(1, 30, "2.7") if pair[1].kind == "returned"]
    assert exercise is by_id("2.7")
    (outcome,) = outcomes([(exercise, mutant)])
    assert outcome.result == "refused"
    assert "2.7" in table([outcome])
