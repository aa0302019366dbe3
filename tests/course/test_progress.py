"""Hints one at a time, progress, predictions, and what is saved of a passed function."""

import importlib.util
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from picolib.course import check, hint, predict, progress, reveal, state
from picolib.course.check import CheckFailed
from picolib.course.progress import is_open
from picolib.course.style import GOOD

cloudpickle.register_pickle_by_value(sys.modules[__name__])
OTHER = 1


def the_other():
    return OTHER - dist.get_rank()


def swap(mine):
    theirs = torch.empty_like(mine)
    request = dist.isend(mine, the_other())
    dist.recv(theirs, the_other())
    request.wait()
    return theirs


def name_the_collectives():
    return {"A": "broadcast"}


def test_three_hints_come_one_at_a_time_then_what_is_wrong(workspace, capsys):
    for _ in range(4):
        hint(name_the_collectives)
    said = capsys.readouterr().out.splitlines()
    assert [line[:11] for line in said[:3]] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3"]
    assert "picture A is not broadcast" in said[3]
    assert said[4] == "To see a solution: reveal(name_the_collectives)"


def test_a_hint_can_be_read_again_without_going_further(workspace, capsys):
    with pytest.raises(ValueError, match="number=1: you have seen no hint so far"):
        hint(name_the_collectives, 1)
    hint(name_the_collectives)
    hint(name_the_collectives, 1)
    hint(name_the_collectives)
    first, again, second = capsys.readouterr().out.splitlines()
    assert first == again and first.startswith("Hint 1 of 3") and second.startswith("Hint 2 of 3")
    with pytest.raises(ValueError, match="number=3: you have seen hints 1 to 2 so far"):
        hint(name_the_collectives, 3)
    with pytest.raises(ValueError, match="number=4: there are hints 1, 2 and 3"):
        hint(name_the_collectives, 4)


def test_a_revealed_solution_is_recorded_as_seen(workspace, capsys):
    reveal(type(swap)(swap.__code__, globals(), "mended_all_reduce"))
    said = capsys.readouterr().out
    assert "def mended_all_reduce(x):" in said and "### " not in said
    assert not is_open("2.5") and not progress().passed
    assert "[ ] 2.5  find the bug: the missing rank (stretch): not attempted, solution seen" in repr(progress())


def test_a_passed_function_is_saved_with_its_helpers_and_runs_from_there(workspace):
    check(swap)
    path = workspace / "mine" / "swap.py"
    spec = importlib.util.spec_from_file_location("mine_swap", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.swap) and module.the_other.__globals__["OTHER"] == 1


def test_progress_counts_attempts_and_what_is_passed(workspace):
    with pytest.raises(CheckFailed):
        check(name_the_collectives)
    check(swap)
    shown = repr(progress())
    assert "[x] 0.2  unblock two ranks: passed" in shown
    assert "[ ] 2.2  name it: 1 attempt" in shown
    assert "Next: 0.1" in shown
    html = progress()._repr_html_()
    assert "&#10003;" in html and 'href="00_welcome_exercises.ipynb"' in html
    assert is_open("2.3") and not is_open("0.2")


def test_the_stack_fills_with_what_has_passed(workspace):
    check(swap)
    filled = [shape for shape in progress().stack.shapes if getattr(shape, "fill", "") == GOOD]
    assert len(filled) == 1 and "1 of its" in progress().stack.alt
    assert "2.4 ring_all_reduce" in progress()._repr_html_()


def test_outside_a_workspace_nothing_is_written(nowhere):
    check(swap)
    assert list(nowhere.iterdir()) == []
    assert not is_open("2.3")


def test_a_record_cut_off_while_it_was_written_does_not_fail_a_check(workspace):
    (workspace / state.MARK / "progress.json").write_text('{"exercises": {')
    check(swap)
    assert progress().passed


def test_a_prediction_is_compared_with_the_run(nowhere, capsys):
    said = predict("bytes rank 0 sends", 7500)
    assert repr(said) == "Your prediction, bytes rank 0 sends: 7,500"
    said.compare(7500)
    said.compare(2500)
    predict("winner", "ring").compare("tree")
    right, wrong, words = capsys.readouterr().out.splitlines()
    assert right == "bytes rank 0 sends: you said 7,500, the run says 7,500: you were right."
    assert wrong.endswith("a surprise (3 times too large).")
    assert words.endswith("the run says tree: a surprise.")
    with pytest.raises(ValueError, match="wants your guess"):
        predict("bytes", ...)


@pytest.mark.parametrize(
    "said, measured, far",
    [
        (6400, 19200, " (3 times too small)"),
        (7, 3, " (2.33 times too large)"),
        (1.2, 1.0, " (20% too large)"),
        (0.9, 1.0, " (10% too small)"),
        (0, 5, ""),
        (-1, 5, ""),
    ],
)
def test_how_far_off_a_prediction_was_is_said_as_people_do(nowhere, capsys, said, measured, far):
    predict("bytes", said).compare(measured)
    assert capsys.readouterr().out.endswith(f": a surprise{far}.\n")


@pytest.mark.parametrize(
    "said, measured",
    [("stay", "stayed"), ("stays", "stayed"), ("Shrink", "shrunk"), ("grow", "grown"), ("grew", "grown"),
     ("same", "the same"), ("it is lower", "lower"), ("low", "lower"), ("fast", "faster"),
     ("ZeRO2 DDP zero 3 and ZeRO1", "ZeRO-2, DDP, ZeRO-3, ZeRO-1"), ("reduce scatter", "reduce-scatter"),
     ("allreduce", "all-reduce")],
)  # fmt: skip
def test_another_form_of_the_right_word_is_right(nowhere, capsys, said, measured):
    predict("it has", said).compare(measured)
    assert capsys.readouterr().out.endswith("you were right.\n")


@pytest.mark.parametrize("said, measured", [("12", 12.0), ("1,024", 1024), ("16_640", 16_640)])
def test_a_number_in_quotes_is_a_number(nowhere, capsys, said, measured):
    predict("bytes", said).compare(measured)
    assert capsys.readouterr().out.endswith("you were right.\n")


@pytest.mark.parametrize(
    "said, measured",
    [("slower", "lower"), ("higher", "lower"), ("left", "right"), ("ring", "tree"), ("same", "some"),
     ("ZeRO-1", "ZeRO-2"), ("ZeRO1, DDP", "DDP, ZeRO-1"), ("1 2", "12"),
     ("not the same", "the same"), ("4", "40"), ("", "stayed"), ("shorter", "stayed"),
     (["stay"], "stayed")],
)  # fmt: skip
def test_another_word_is_another_answer(nowhere, capsys, said, measured):
    predict("it has", said).compare(measured)
    assert capsys.readouterr().out.endswith("a surprise.\n")


def test_the_names_of_the_course_are_functions_whatever_was_imported_first():
    import picolib.course as course

    for name in ("check", "progress", "predict", "hint", "reveal", "show", "quiz", "table"):
        assert callable(getattr(course, name)) and not hasattr(getattr(course, name), "__path__")
