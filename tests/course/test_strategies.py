"""The table of strategies names lessons that exist, or that come after the last one."""

import sys

import pytest

from picolib.course import lessons
from picolib.course.strategies import STRATEGIES
from picolib.course.table import COLUMNS, table

SITTINGS = sorted(path.stem.split("_")[0] for path in (lessons.root() / "notebooks").glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_row_names_sittings_that_there_are_or_that_come_later(strategy):
    for sitting in strategy.lesson.split(" and "):
        assert sitting in SITTINGS or sitting > SITTINGS[-1]


def test_two_sittings_are_lessons_and_one_is_a_lesson():
    shown = repr(table(folder="nowhere"))
    assert "| data parallel | lessons 03A and 03B |" in shown and "| averaging by hand | lesson 00 |" in shown


def test_outside_a_workspace_rows_stay_as_long_as_the_kernel_runs(monkeypatch):
    monkeypatch.setattr(sys.modules["picolib.course.table"], "_of_this_kernel", {})
    monkeypatch.setattr("picolib.course.mine.folder", lambda: None)
    table("recomputation", splits="nothing")
    both = repr(table("accumulation", splits="the batch, in time"))
    assert "| **recomputation** | nothing |" in both and "| **accumulation** | the batch, in time |" in both
    table("accumulation", bytes="0")
    assert "| the batch, in time | · | · | 0 |" in repr(table())


def test_the_courses_words_stand_below_what_you_have_filled_and_nowhere_else(tmp_path):
    lines = repr(table("FSDP", folder=tmp_path, splits="all model state", bytes="3(N-1)/N·Ψ")).split("\n")
    course = next(line for line in lines if "the course's words" in line).split("|")[2:-1]
    assert [cell.strip() != "·" for cell in course] == [True, False, False, True, False, False, False]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_what_is_sent_is_told_in_numbers(strategy):
    assert "numbers" in COLUMNS["bytes"] and "byte" not in strategy.bytes
