"""The picture of what a message costs."""

import pytest

from picolib.course.figures.fit import message_cost

POINTS = [(1024.0, 5e-5), (65536.0, 8e-5), (4194304.0, 2e-3)]


def test_the_picture_names_both_numbers_and_the_size_where_they_meet():
    drawn = message_cost(POINTS, alpha=5e-5, beta=0.5e-9).svg()
    assert "α = 50 µs" in drawn and "1/β = 2 GB/s" in drawn and "α/β = 128 KB" in drawn


def test_its_text_does_not_depend_on_what_was_measured():
    assert repr(message_cost(POINTS, 5e-5, 0.5e-9)) == repr(message_cost(POINTS, 7e-5, 1e-9))


def test_a_fit_that_is_no_cost_is_refused():
    with pytest.raises(ValueError, match="alpha and beta must be positive"):
        message_cost(POINTS, alpha=-1e-6, beta=0.5e-9)
