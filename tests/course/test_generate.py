"""Exercises are the solutions with the solved parts cut out."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from picolib.course import generate

SOLVED = '''def ring_reduce_scatter(x):
    """Returns chunk r."""
    n = 4
    ### BEGIN SOLUTION
    secret_partial_sum = x.chunk(n)[0]
    return secret_partial_sum
    ### END SOLUTION'''
BUGGY = """def mended_all_reduce(x):
    ### BEGIN SOLUTION
    mended_line_of_code(x)
    ### END SOLUTION
    ### BEGIN GIVEN
    # for step in range(3):
    #     wrong_line_of_code(x)
    ### END GIVEN"""


def solution(*outputs):
    passed = new_output("stream", name="stdout", text="Exercise 2.3 passed: values right.\n")
    return new_notebook(
        cells=[
            new_markdown_cell("# Exercises"),
            new_code_cell(SOLVED, outputs=list(outputs)),
            new_code_cell("check(ring_reduce_scatter)", outputs=[passed]),
            new_code_cell(BUGGY),
        ]
    )


def test_the_solved_part_becomes_a_stub_and_the_rest_stays():
    made = generate.exercise_notebook(solution(), "02A")
    assert made.cells[1].source == (
        'def ring_reduce_scatter(x):\n    """Returns chunk r."""\n    n = 4\n'
        "    # your code here\n    raise NotImplementedError"
    )
    assert made.cells[0].source == "# Exercises"


def test_the_reference_output_and_the_ids_stay():
    source = solution()
    made = generate.exercise_notebook(source, "02A")
    assert made.cells[2].outputs == source.cells[2].outputs
    assert [c.id for c in made.cells] == [c.id for c in source.cells]


def test_cells_carry_the_exercise_s_stable_id():
    made = generate.exercise_notebook(solution(), "02A")
    tags = [cell.metadata.get("picolib") for cell in made.cells]
    assert tags[1:] == [
        {"exercise": "2.3", "role": "answer"},
        {"exercise": "2.3", "role": "check"},
        {"exercise": "2.5", "role": "answer"},
    ]


def test_given_code_comes_alive_in_place_of_the_stub():
    made = generate.exercise_notebook(solution(), "02A")
    assert made.cells[3].source == (
        "def mended_all_reduce(x):\n    for step in range(3):\n        wrong_line_of_code(x)"
    )


@pytest.mark.parametrize("where", ["output", "metadata"])
def test_a_solution_that_leaks_is_found(where):
    line = "return secret_partial_sum"
    source = solution(*([new_output("stream", text=f"    {line}\n")] if where == "output" else []))
    if where == "metadata":
        source.cells[1].metadata["note"] = line
    assert generate.leaks(source, generate.exercise_notebook(source, "02A")) == [line]


def test_check_fails_until_the_exercises_are_what_the_generator_makes(tmp_path):
    (tmp_path / "solutions").mkdir()
    nbformat.write(solution(), tmp_path / "solutions" / "02A.ipynb")
    assert "is not what the generator makes" in generate.generate(tmp_path, check=True)[0]
    assert generate.generate(tmp_path) == []
    assert generate.generate(tmp_path, check=True) == []
    path = tmp_path / "exercises" / "02A.ipynb"
    text = json.loads(path.read_text())
    text["cells"][0]["source"] = "# Edited"
    path.write_text(json.dumps(text))
    assert len(generate.generate(tmp_path, check=True)) == 1


def test_an_exercise_without_a_solution_is_named(tmp_path):
    (tmp_path / "exercises").mkdir()
    nbformat.write(new_notebook(), tmp_path / "exercises" / "99.ipynb")
    assert generate.generate(tmp_path, check=True) == ["exercises/99.ipynb has no solution it could come from"]
