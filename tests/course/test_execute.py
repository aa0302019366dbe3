"""What is stored of an execution: nothing empty, nothing that differs from run to run."""

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

from picolib.course.execute import main, tidy


def test_empty_outputs_are_dropped_and_cut_streams_put_together():
    outputs = [
        new_output("display_data", {}),
        new_output("stream", name="stdout", text="step 1\n"),
        new_output("stream", name="stdout", text="step 2\n"),
        new_output("display_data", {"text/plain": "[figure]"}),
        new_output("stream", name="stdout", text="done\n"),
        new_output("stream", name="stderr", text="oh\n"),
    ]
    notebook = new_notebook(cells=[new_code_cell("1", outputs=outputs, metadata={"execution": {"at": "noon"}})])
    tidy(notebook)
    (cell,) = notebook.cells
    assert [o.get("text") or o.data["text/plain"] for o in cell.outputs] == [
        "step 1\nstep 2\n",
        "[figure]",
        "done\n",
        "oh\n",
    ]
    assert cell.metadata == {}


def test_what_is_stored_does_not_depend_on_anybodys_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("PICOLIB_WORKSPACE", str(tmp_path))
    path = tmp_path / "lesson.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("import os; print(os.environ.get('PICOLIB_WORKSPACE'))")]), path)
    assert main([str(path)]) == 0
    (cell,) = nbformat.read(path, as_version=4).cells
    assert [output.text for output in cell.outputs] == ["None\n"]
