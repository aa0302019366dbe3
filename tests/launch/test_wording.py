"""How lists of ranks read: in one way, whoever lists them."""

import pytest

from picolib.course.words import ranks_text
from picolib.launch import wording


@pytest.mark.parametrize(
    "numbers, text",
    [
        ([2], "rank 2"),
        ([2, 0], "ranks 0 and 2"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2], "ranks 0-2"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ({0, 1, 2, 3, 4, 5, 8}, "ranks 0-5 and 8"),
        (range(64), "ranks 0-63"),
        ([0, 2, 3, 4, 6, 7], "ranks 0, 2-4, 6 and 7"),
        ([1, 1], "rank 1"),
    ],
)
def test_three_ranks_in_a_row_are_a_span_and_others_are_listed(numbers, text):
    assert wording.ranks(numbers) == text


def test_the_course_lists_ranks_as_the_launcher_does():
    assert ranks_text is wording.ranks
