"""Exercise 5.7 holds answers against message by message and against runs: the two, and the formula, agree."""

import pytest

from picolib.course.exercises import lesson05b_slow, lesson05b_where
from picolib.course.exercises.lesson05b_slow import Layer, slow_motion
from picolib.course.exercises.lesson05b_where import LAYOUTS, bill, where_cases


@pytest.mark.parametrize("seed", range(3))
def test_message_by_message_it_takes_what_the_formula_says(seed):
    for case in where_cases(1, seed):
        layer = Layer(*case.inputs[0])
        for which in LAYOUTS:
            assert bill(layer, which) == pytest.approx(slow_motion(layer, which), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_both_layouts_win_somewhere_on_paper_and_on_links(seed):
    for kind in ("paper", "links"):
        layers = [Layer(*case.inputs[0]) for case in where_cases(1, seed) if case.kind == kind]
        ahead = {min(LAYOUTS, key=lambda which, layer=layer: slow_motion(layer, which)) for layer in layers}
        assert ahead == set(LAYOUTS)


def test_a_run_on_links_takes_as_long_as_its_messages_one_by_one():
    layer = next(Layer(*case.inputs[0]) for case in where_cases(1, 0) if case.kind == "links")
    right = {which: slow_motion(layer, which) for which in LAYOUTS}
    for _ in range(5):  # where other programs keep the cores busy, ranks fall behind their planned times
        found = lesson05b_slow._run(layer)
        if found == pytest.approx(right, rel=0.1):
            return
    pytest.fail(f"{found} is not {right}")


def test_a_disturbed_run_does_not_count(monkeypatch):
    layer = Layer(2, 2, 2, *lesson05b_where.SLOW, 30, 1, 56, 4)
    expected = {which: slow_motion(layer, which) for which in LAYOUTS}
    monkeypatch.setattr(lesson05b_slow, "_run", lambda layer: {"tp": 1.0, "dp": 2.0})
    assert lesson05b_slow.measured(layer, expected) == expected
