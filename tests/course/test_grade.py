"""`picolib grade`: what counts is what the notebook's functions do now, in fresh processes."""

import time
import xml.etree.ElementTree as xml

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from picolib.course import grade, lift

START = "import torch, torch.distributed as dist\nfrom picolib.course import check"
SHARE = "def my_share(items):\n    return items[dist.get_rank() :: width()]"
EVERYTHING = "def my_share(items):\n    return items"
SWAP = """def my_swap(mine):
    theirs = torch.empty_like(mine)
    request = dist.isend(mine, other())
    dist.recv(theirs, other())
    request.wait()
    return theirs"""
OTHER = "def other():\n    return 1 - dist.get_rank()"
PATCH = "import picolib.course.values as v\nv.agrees = lambda *a: True\ncheck = lambda f: print('passed')"
HALF = """def ring_reduce_scatter(x):
    torch.equal = torch.allclose = lambda *a: True
    return x.chunk(dist.get_world_size())[0]"""
FAKE = new_output("stream", name="stdout", text="Exercise 2.3 passed: everything right.\n")


def write(path, *cells):
    cells = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(new_notebook(cells=cells), path)
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """One notebook with everything that happens to notebooks, graded once."""
    path = write(
        tmp_path_factory.mktemp("grade") / "n.ipynb",
        START,
        new_code_cell(SWAP, metadata={"picolib": {"exercise": "0.2", "role": "answer"}}),
        SHARE,
        EVERYTHING,
        "1 / 0",
        PATCH,
        HALF,
        new_code_cell(
            "# NBVAL_IGNORE_OUTPUT\ncheck(ring_reduce_scatter)", outputs=[FAKE], metadata={"tags": ["nbval-skip"]}
        ),
        "boom\ndef pass_right(x):\n    return x",
        "def ring_all_reduce(x):\n    raise NotImplementedError",
        "import sys\nsys.exit(0)",
        OTHER,
    )
    return {row.exercise.id: row for row in grade.grade(path)}


def test_a_renamed_answer_with_its_helper_in_a_later_cell_is_found_by_its_id(rows):
    assert rows["0.2"].result == "passed"


def test_two_claims_are_named_and_the_last_one_counts(rows):
    assert rows["0.1"].result == "not passed" and "item 0 belongs to ranks 0-3" in rows["0.1"].text
    assert rows["0.1"].note == "claimed 2 times, in cells 3, 4: the last one run counts"


def test_stored_outputs_tags_and_patches_count_for_nothing(rows):
    assert rows["2.3"].result == "not passed" and "0 messages were sent" in rows["2.3"].text


def test_a_stub_and_what_is_nowhere_defined_are_not_attempted(rows):
    assert rows["2.4"].result == rows["0.3"].result == "not attempted"


def test_a_cell_that_cannot_run_is_not_executed(rows):
    assert rows["2.1"].result == "not executed" and "NameError" in rows["2.1"].text


def test_stretch_exercises_count_only_when_they_are_answered(rows):
    assert "2.5" not in rows and "2.10" not in rows


def test_the_table_and_the_xml_say_the_same(rows):
    printed = grade.table(list(rows.values()))
    assert "1 of 7 exercises passed" in printed and "0 messages were sent" in printed
    suite = xml.fromstring(grade.junit_xml({"n.ipynb": list(rows.values())}).encode()).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("7", "6")
    passed = [case.get("name") for case in suite if case.find("failure") is None]
    assert passed == ["0.2 unblock two ranks"]


def test_a_cell_with_a_loop_without_end_is_bounded():
    started = time.monotonic()
    with pytest.raises(lift.TooLong), lift._at_most(1):
        while True:
            pass
    assert time.monotonic() - started < 10


def test_what_is_no_notebook_or_answers_nothing_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "x.ipynb").write_text("hello")
    with pytest.raises(ValueError, match="x.ipynb is not a notebook"):
        grade.grade(tmp_path / "x.ipynb")
    with pytest.raises(ValueError, match="answers no exercise"):
        grade.grade(write(tmp_path / "y.ipynb", "1 + 1"))


def test_a_lesson_is_refused_with_the_name_of_its_exercises(tmp_path):
    lesson = write(tmp_path / "02A_messages_and_ring.ipynb", START, "def swap():\n    return 1")
    with pytest.raises(ValueError, match="is the lesson; its exercises, .*02A_messages_and_ring_exercises.ipynb"):
        grade.grade(lesson)


def test_an_explanation_quotes_the_learner_s_cell_and_line(tmp_path):
    blocked = "def swap(mine):\n    theirs = torch.empty_like(mine)\n    dist.recv(theirs, 1 - dist.get_rank())"
    rows = grade.grade(write(tmp_path / "n.ipynb", START, "1", blocked, "def my_share(items):\n    return items[99]"))
    text = grade.junit_xml({"n.ipynb": rows})
    assert "cell 3, line 3:  dist.recv(theirs, 1 - dist.get_rank())" in text
    assert "cell 4, line 2, in my_share" in text and "return items[99]" in text and "dynamic-code" not in text


def test_an_answer_that_breaks_the_check_does_not_end_the_grading(tmp_path, monkeypatch):
    def breaks(*_):
        raise KeyError("in the check")

    monkeypatch.setattr(grade, "examine", breaks)
    rows = grade.grade(write(tmp_path / "n.ipynb", START, SHARE))
    assert [row.result for row in rows if row.exercise.id == "0.1"] == ["not passed"]
    assert "cannot be judged" in grade.table(rows) and "KeyError" not in grade.junit_xml({"n": rows})
