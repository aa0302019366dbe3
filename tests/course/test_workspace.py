"""A learner's copies: filled once, brought up to date around what the learner has written."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from picolib.course import lessons, workspace


def lesson(*sources, link="[exercises](../exercises/02A.ipynb#2.3)"):
    cells = [new_markdown_cell(link, id="intro")]
    cells += [new_code_cell(source, id=f"cell{number}") for number, source in enumerate(sources)]
    return new_notebook(cells=cells)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "course"
    for folder in ("notebooks", "exercises"):
        (root / folder).mkdir(parents=True)
    deliver(root, "a = 1", "b = 2")
    nbformat.write(lesson("stub"), root / "exercises" / "02A.ipynb")
    return root


def deliver(root, *sources):
    nbformat.write(lesson(*sources), root / "notebooks" / "02A.ipynb")


def sources(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def edit(path, change):
    notebook = nbformat.read(path, as_version=4)
    change(notebook.cells)
    nbformat.write(notebook, path)


def test_lessons_and_exercises_are_copied_side_by_side_with_their_links(tmp_path, root):
    assert workspace.fill(tmp_path / "w", root) == ["02A.ipynb", "02A_exercises.ipynb"]
    text = (tmp_path / "w" / "02A.ipynb").read_text()
    assert "(02A_exercises.ipynb#2.3)" in text and "../exercises" not in text
    assert (tmp_path / "w" / "mine").is_dir()


def test_filling_again_never_overwrites(tmp_path, root):
    workspace.fill(tmp_path / "w", root)
    (tmp_path / "w" / "02A.ipynb").write_text("mine")
    assert workspace.fill(tmp_path / "w", root) == []
    assert (tmp_path / "w" / "02A.ipynb").read_text() == "mine"


def test_update_replaces_untouched_cells_and_keeps_touched_ones(tmp_path, root):
    path = tmp_path / "w" / "02A.ipynb"
    workspace.fill(tmp_path / "w", root)
    edit(path, lambda cells: cells[1].update(source="my answer"))
    deliver(root, "a = 10", "b = 20", "c = 30")
    assert workspace.update(tmp_path / "w", root) == "02A.ipynb: 2 cells brought up to date, 1 of yours kept"
    assert sources(path) == ["my answer", "b = 20", "c = 30"]


def test_one_cell_is_one_cell(tmp_path, root):
    workspace.fill(tmp_path / "w", root)
    deliver(root, "a = 10", "b = 2")
    assert workspace.update(tmp_path / "w", root) == "02A.ipynb: 1 cell brought up to date, 0 of yours kept"


def test_the_learner_s_own_cells_stay_where_they_were(tmp_path, root):
    path = tmp_path / "w" / "02A.ipynb"
    workspace.fill(tmp_path / "w", root)
    edit(path, lambda cells: cells.insert(2, new_code_cell("my own")))
    deliver(root, "a = 10", "b = 20")
    workspace.update(tmp_path / "w", root)
    assert sources(path) == ["a = 10", "my own", "b = 20"]


def test_a_cell_that_the_learner_removed_stays_away_and_one_withdrawn_goes(tmp_path, root):
    path = tmp_path / "w" / "02A.ipynb"
    workspace.fill(tmp_path / "w", root)
    edit(path, lambda cells: cells.pop(1))
    deliver(root, "a = 10")
    workspace.update(tmp_path / "w", root)
    assert sources(path) == []


def test_an_edit_survives_two_updates(tmp_path, root):
    path = tmp_path / "w" / "02A.ipynb"
    workspace.fill(tmp_path / "w", root)
    edit(path, lambda cells: cells[1].update(source="my answer"))
    for version in ("a = 10", "a = 100"):
        deliver(root, version, "b = 2")
        workspace.update(tmp_path / "w", root)
    assert sources(path) == ["my answer", "b = 2"]
    assert workspace.update(tmp_path / "w", root) == "Everything is up to date."


def test_a_file_that_is_no_notebook_any_more_is_left_alone(tmp_path, root):
    workspace.fill(tmp_path / "w", root)
    (tmp_path / "w" / "02A.ipynb").write_text("{ broken")
    assert "left alone" in workspace.update(tmp_path / "w", root)
    assert (tmp_path / "w" / "02A.ipynb").read_text() == "{ broken"


def ran(source):
    return new_code_cell(source, execution_count=3, outputs=[new_output("stream", text="you said 1, the run says 4")])


def has_run(path):
    cells = nbformat.read(path, as_version=4).cells
    return [bool(cell.outputs or cell.execution_count) for cell in cells if cell.cell_type == "code"]


def test_a_copy_begins_without_outputs_and_the_map_with_its_own(tmp_path, root):
    for path in ("notebooks/02A.ipynb", "exercises/02A.ipynb", "notebooks/START.ipynb"):
        nbformat.write(new_notebook(cells=[ran("guess.compare(4)")]), root / path)
    workspace.fill(tmp_path / "w", root)
    assert has_run(tmp_path / "w" / "02A.ipynb") == has_run(tmp_path / "w" / "02A_exercises.ipynb") == [False]
    assert has_run(tmp_path / "w" / "START.ipynb") == [True]


def test_an_update_brings_no_outputs_and_leaves_those_that_the_learner_has_made(tmp_path, root):
    path = tmp_path / "w" / "02A.ipynb"
    workspace.fill(tmp_path / "w", root)
    edit(path, lambda cells: cells[1].update(outputs=ran("").outputs, execution_count=1))
    nbformat.write(lesson("a = 1", "b = 20", "c = 3"), root / "notebooks" / "02A.ipynb")
    edit(root / "notebooks" / "02A.ipynb", lambda cells: [c.update(outputs=ran("").outputs) for c in cells[1:]])
    workspace.update(tmp_path / "w", root)
    assert sources(path) == ["a = 1", "b = 20", "c = 3"] and has_run(path) == [True, False, False]


def test_no_lesson_tells_its_answers_before_the_learner_has_run_it(tmp_path):
    workspace.fill(tmp_path)
    shown = {path.name for path in tmp_path.glob("*.ipynb") if any(has_run(path))}
    assert shown == {"START.ipynb"}
    assert not [path.name for path in tmp_path.glob("*.ipynb") if "outputs below" in path.read_text(encoding="utf-8")]


def test_the_start_page_names_every_lesson_and_its_exercises():
    text = (lessons.root() / "notebooks" / "START.ipynb").read_text(encoding="utf-8")
    for folder in ("notebooks", "exercises"):
        for name in set(lessons.names(folder)) - {"START"}:
            assert f"(../{folder}/{name}.ipynb)" in text
