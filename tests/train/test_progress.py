"""One line of progress, wherever the output goes, and the same line at the end."""

from __future__ import annotations

import io
import sys

import nbformat
import pytest
from nbclient import NotebookClient

import picolib
from picolib.train import History
from picolib.train.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(progress: Progress) -> None:
    progress.show("step 1 of 2  loss 3.21  9,999 tokens/s")
    progress.show("step 2 of 2  loss 3.20")
    progress.close("2 steps, 64 tokens")


def written_to(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, speaks: bool = True) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    report(Progress(speaks))
    return stream.getvalue()


def screen(text: str) -> list[str]:
    """The lines that a terminal shows: a carriage return goes back, and what comes then goes over what was there."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_a_terminal_has_one_line_that_each_state_covers(monkeypatch):
    text = written_to(Terminal(), monkeypatch)
    assert screen(text) == ["2 steps, 64 tokens", ""]
    before_the_end = text[: text.index("2 steps")]
    assert screen(before_the_end[: before_the_end.index("3.20") + 4]) == ["step 2 of 2  loss 3.20"]


def test_a_file_has_one_line_for_each_state(monkeypatch):
    lines = written_to(io.StringIO(), monkeypatch).splitlines()
    assert lines == ["step 1 of 2  loss 3.21  9,999 tokens/s", "step 2 of 2  loss 3.20", "2 steps, 64 tokens"]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_with_live_output_turned_off_only_the_last_line_stays(stream, monkeypatch):
    monkeypatch.setenv("PICOLIB_LIVE", "0")
    assert written_to(stream(), monkeypatch) == "2 steps, 64 tokens\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_ranks_that_do_not_speak_write_nothing(stream, monkeypatch):
    assert written_to(stream(), monkeypatch, speaks=False) == ""


@pytest.mark.parametrize("checked", [True, False])
def test_in_a_rank_the_last_line_is_all_that_stays(checked):
    run = picolib.run(lambda: report(Progress()), 1, checked=checked)
    assert run.stdout == ["2 steps, 64 tokens\n"]


def test_a_notebook_that_trains_in_its_own_process_keeps_the_last_line_only():
    code = """
import time
from picolib.train.progress import Progress
progress = Progress()
for step in range(3):
    progress.show(f"step {step}")
    time.sleep(0.6)
progress.close("3 steps")
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=60).execute()
    outputs = notebook.cells[0].outputs
    assert [output.text for output in outputs if output.output_type == "stream"] == ["3 steps\n"]
    assert all(not output.data for output in outputs if output.output_type != "stream")


def test_speed_counts_the_tokens_of_the_last_steps():
    history = History(steps=[0, 1, 2], tokens=[10, 20, 40], seconds=[1.0, 2.0, 6.0])
    assert history.tokens_per_second(1) == 10.0
    assert history.tokens_per_second(2) == 12.0
    assert history.tokens_per_second() == history.tokens_per_second(9) == pytest.approx(70 / 6)
