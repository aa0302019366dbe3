"""The learning rate in closed form."""

import math

import pytest

from picolib.train import learning_rate


def rates(count: int, **settings: float) -> list[float]:
    return [learning_rate(step, **settings) for step in range(count)]


def test_the_warm_up_is_linear_from_above_zero_to_the_peak():
    assert rates(5, steps=100, peak=1.0, warm_up=4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_without_a_warm_up_the_first_step_has_the_peak():
    assert learning_rate(0, steps=10, peak=3e-4) == 3e-4


def test_the_decay_is_half_a_cosine():
    found = rates(5, steps=4, peak=2.0)
    assert found == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0])


def test_half_way_down_is_the_mean_of_peak_and_final():
    assert learning_rate(60, steps=100, peak=1.0, warm_up=20, final=0.1) == pytest.approx(0.55)


def test_after_the_last_step_it_stays_at_the_final_rate():
    assert rates(3, steps=1, peak=1.0, final=0.25)[1:] == [0.25, 0.25]
    assert learning_rate(10**6, steps=100, peak=1.0, warm_up=10, final=0.1) == 0.1


def test_it_rises_then_falls_and_never_jumps():
    found = rates(100, steps=100, peak=1.0, warm_up=10, final=0.1)
    assert found[:11] == sorted(found[:11]) and found[10:] == sorted(found[10:], reverse=True)
    assert max(found) == found[10] == 1.0
    assert max(abs(a - b) for a, b in zip(found, found[1:], strict=False)) < 0.0911  # the step of the warm-up, 1/11


def test_a_run_that_is_all_warm_up_reaches_no_peak_early():
    assert rates(3, steps=3, peak=1.0, warm_up=3) == pytest.approx([0.25, 0.5, 0.75])


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match="warm_up=11 must be from 0 to steps=10"):
        learning_rate(0, steps=10, peak=1.0, warm_up=11)
