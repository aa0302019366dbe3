"""Numbers in texts."""

import pytest

from picolib.course.words import apart


@pytest.mark.parametrize(
    "wrong, right, texts",
    [
        (1111.0001831, 1111.0, ("1111.0002", "1111")),
        (2.0, 1.0, ("2", "1")),
        (float("nan"), 1.0, ("nan", "1")),
    ],
)
def test_two_numbers_that_differ_never_read_alike(wrong, right, texts):
    assert apart(wrong, right) == texts
