"""Minutes of a sitting: what the header, the start page and the README tell is what the lesson takes."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from picolib.course import lessons, minutes

SITTINGS = {one.id: one for one in minutes.sittings()}


@pytest.mark.parametrize("sitting", SITTINGS)
def test_no_header_tells_less_than_the_sitting_takes(sitting):
    one = SITTINGS[sitting]
    assert one.told >= one.rounded, f"{sitting} takes {one.minutes:.0f} minutes"


def test_no_sitting_takes_more_than_fifty_minutes():
    assert not [one.id for one in SITTINGS.values() if one.rounded > minutes.LONGEST]


def test_the_start_page_and_the_readme_tell_what_the_headers_tell():
    start = nbformat.read(lessons.root() / "notebooks" / "START.ipynb", as_version=4)
    readme = (lessons.root() / "README.md").read_text(encoding="utf-8")
    for text in ("\n".join(cell.source for cell in start.cells), readme):
        rows = dict(re.findall(r"^\| (\d\d[AB]?) \|.*\| (\d+) \|$", text, re.MULTILINE))
        assert rows == {one.id: str(one.told) for one in SITTINGS.values()}


def test_what_goes_deeper_is_no_part_of_the_sitting():
    texts = ["# 09 · Title", "## 1 · Core", "## Go deeper: more", "### still deeper", "## Take away"]
    cells = [new_markdown_cell(text) for text in texts] + [new_code_cell("1 + 1")]
    kept = [cell.source for cell in minutes.core(new_notebook(cells=cells))]
    assert kept == ["# 09 · Title", "## 1 · Core", "## Take away", "1 + 1"]


def test_a_mystery_counts_once_and_a_blank_line_not_at_all(tmp_path):
    said = lambda *texts: [nbformat.v4.new_output("display_data", {"text/plain": text}) for text in texts]
    mystery = new_code_cell(
        "mystery(1)", outputs=said("[figure: A mystery: a]", "[widget: question 1, answers A to C]")
    )
    shown = new_code_cell("show(f)\n\n", outputs=said("# picolib/f.py, lines 1-2\ndef f():\n    pass"))
    path = tmp_path / "09_title.ipynb"
    nbformat.write(
        new_notebook(cells=[new_markdown_cell("# 09\n\n*7 minutes with the exercises.*"), mystery, shown]), path
    )
    one = minutes.sitting(path)
    assert one.shown == {"mystery": 1, "question or widget": 0, "prediction": 0, "figure": 0}
    assert (one.id, one.told, one.lines) == ("09", 7, 5)
    assert one.minutes == pytest.approx(2 + one.words / minutes.WORDS + 5 / minutes.LINES + 1)
