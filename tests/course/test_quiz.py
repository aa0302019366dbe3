"""Quizzes and the comparison table: what is stored gives nothing away and is the same each time."""

import pytest

from picolib.course.questions import BANK
from picolib.course.quiz import LETTERS, Answer, Question, buttons, quiz
from picolib.course.strategies import STRATEGIES
from picolib.course.table import COLUMNS, table

ALL = [question for questions in BANK.values() for question in questions]


@pytest.mark.parametrize("question", ALL, ids=lambda q: q.id)
def test_a_question_has_one_right_answer_and_a_reason_for_each(question):
    assert sum(answer.right for answer in question.answers) == 1
    assert len({answer.text for answer in question.answers}) == len(question.answers) >= 3
    assert all(len(answer.why) > 20 for answer in question.answers)


def test_ids_are_numbered_within_their_lesson():
    for lesson, questions in BANK.items():
        assert [q.id for q in questions] == [f"{lesson}.{i + 1}" for i in range(len(questions))]


def test_the_right_answer_is_not_always_at_the_same_place_nor_always_the_longest():
    places = [next(i for i, a in enumerate(q.answers) if a.right) for q in ALL]
    assert max(places.count(place) for place in set(places)) <= len(ALL) / 2
    longest = [max(q.answers, key=lambda a: len(a.text)).right for q in ALL]
    assert sum(longest) <= 0.7 * len(ALL)


@pytest.mark.parametrize("question", ALL, ids=lambda q: q.id)
def test_the_stored_output_gives_no_answer_away(question):
    stored = question.markdown() + buttons(question)._repr_mimebundle_()["text/plain"]
    assert all(answer.why not in stored for answer in question.answers)
    assert "Right" not in stored and question.text in stored


def test_an_answer_is_judged_when_its_button_is_pressed():
    question = quiz("02A.1").questions[0]
    panel = buttons(question)
    row, said = panel.children
    assert said.value == ""
    for letter, button, answer in zip(LETTERS, row.children, question.answers, strict=False):
        button.click()
        assert f"<b>{letter}</b> {'Right' if answer.right else 'Not quite'}: " in said.value


def test_a_quiz_shows_questions_as_text_and_buttons_below_each(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    quiz("02B")._ipython_display_()
    assert [type(output).__name__ for output in shown] == ["Markdown", "Panel"] * len(BANK["02B"])
    assert repr(quiz("02B.2")) == "[quiz: 02B.2]"
    assert repr(quiz("01A.4", "01A.6")) == "[quiz: 01A.4, 01A.6]"


def test_unknown_questions_and_badly_made_ones_are_refused():
    with pytest.raises(ValueError, match="which='02C': there are questions for 00, 01A, 01B, 02A, 02B"):
        quiz("02C")
    with pytest.raises(ValueError, match="exactly one of them right"):
        Question("9.1", "?", (Answer("a", "why"), Answer("b", "why")))


def test_the_table_begins_with_empty_rows_and_keeps_yours(tmp_path):
    empty = repr(table(folder=tmp_path))
    assert all(strategy.name in empty for strategy in STRATEGIES) and "course's words" not in empty
    filled = repr(table("data parallel", folder=tmp_path, splits="the | batch", saves="time"))
    assert "| **data parallel** | the / batch | · |" in filled and filled.count("the course's words") == 1
    table("data parallel", folder=tmp_path, bytes="2(N-1)/N·Ψ")
    again = repr(table(folder=tmp_path))
    assert "2(N-1)/N·Ψ" in again and "the / batch" in again


def test_every_line_of_the_table_has_all_columns(tmp_path):
    lines = repr(table("FSDP", folder=tmp_path, splits="everything")).split("\n")
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 2}


def test_outside_a_workspace_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PICOLIB_WORKSPACE", raising=False)
    assert "**data parallel**" in repr(table("data parallel", splits="the batch"))
    assert list(tmp_path.iterdir()) == []


def test_unknown_rows_and_columns_are_named():
    with pytest.raises(ValueError, match="strategy='ddp' is no row"):
        table("ddp", splits="the batch")
    with pytest.raises(ValueError, match="shards= is no column"):
        table("FSDP", shards="all")
    with pytest.raises(ValueError, match="give your words"):
        table("FSDP")
