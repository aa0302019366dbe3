"""Every row of the table of answers: the right ones pass, the wrong ones are told what is wrong with them."""

from collections import Counter
from pathlib import Path

import pytest

from picolib.course.catalogue import by_id, exercises
from picolib.course.check import examine, failed_text

from .wrong_answers import Answer, load, to_markdown

ANSWERS = load()


@pytest.mark.parametrize("answer", [a for a in ANSWERS if a.says], ids=lambda a: a.label)
def test_a_wrong_answer_is_rejected_in_words_that_name_its_fault(answer: Answer):
    verdict = examine(by_id(answer.exercise), answer.function)
    assert not verdict.passed
    text = failed_text(verdict)
    for words in answer.says:
        assert words in text, text


@pytest.mark.parametrize("answer", [a for a in ANSWERS if not a.says], ids=lambda a: a.label)
def test_a_right_answer_passes_however_it_is_written(answer: Answer):
    verdict = examine(by_id(answer.exercise), answer.function)
    assert verdict.passed, failed_text(verdict)


def test_each_exercise_has_at_least_two_right_answers_and_at_least_three_wrong_ones():
    wrong, right = (Counter(a.exercise for a in ANSWERS if bool(a.says) is kind) for kind in (True, False))
    assert [id_ for id_ in exercises() if right[id_] < 2] == []
    assert [id_ for id_ in exercises() if wrong[id_] < 3] == []


def test_the_page_of_the_docs_is_this_table():
    page = Path(__file__).parents[2] / "docs" / "answers.md"
    assert page.read_text(encoding="utf-8") == to_markdown() + "\n", (
        "python -m tests.course.wrong_answers > docs/answers.md"
    )
