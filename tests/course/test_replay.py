"""Messages played again in slow motion."""

import pytest

from picolib.course import replay
from picolib.course.exercises.bills import formula_seconds, slow_motion


def test_a_message_takes_alpha_plus_beta_times_bytes():
    ranks = [[["send", 1, 100, 0], ["wait", 0]], [["recv", 0, 100, 0], ["wait", 0]]]
    assert replay.makespan(ranks, lambda nbytes: 1 + 0.01 * nbytes) == 2.0


def test_a_receive_that_nobody_answers_ends_the_replay_instead_of_hanging_it():
    assert replay.makespan([[["recv", 1, 8, 0], ["wait", 0], ["send", 1, 8, 1]], []], lambda nbytes: 1.0) == 0.0


def test_a_chain_takes_a_step_for_each_link_and_a_pipeline_less_than_their_product():
    def rank(number, parts, waits):
        entries, ids = [], iter(range(99))
        for _ in range(parts):
            if number > 0:
                entries += [["recv", number - 1, 8, i := next(ids)], ["wait", i]]
            if number < 3:
                entries += [["send", number + 1, 8, i := next(ids)]] + ([["wait", i]] if waits else [])
        return entries

    assert replay.steps([rank(r, 1, True) for r in range(4)]) == 3
    assert replay.steps([rank(r, 8, False) for r in range(4)]) == 8 + 4 - 2


def test_a_send_that_is_waited_for_holds_up_the_next_receive():
    """With blocking calls a rank in the middle of a chain receives and sends in turn: two steps a part."""
    first = [entry for i in range(8) for entry in (["send", 1, 8, i], ["wait", i])]
    middle = [
        entry
        for i in range(8)
        for entry in (["recv", 0, 8, 2 * i], ["wait", 2 * i], ["send", 2, 8, 2 * i + 1], ["wait", 2 * i + 1])
    ]
    last = [entry for i in range(8) for entry in (["recv", 1, 8, i], ["wait", i])]
    assert replay.steps([first, middle, last]) == 16


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
def test_slow_motion_agrees_with_the_formula(algorithm):
    arguments = (8, 80_000, 1e-3, 1e-7)
    assert slow_motion(algorithm, *arguments) == pytest.approx(formula_seconds(algorithm, *arguments), rel=1e-9)
