"""Where the course's notebooks are, and a solution taken from them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from picolib.course.exercise import Exercise

# Code that an exercise starts from, commented out in its solution (see `generate.py`).
GIVEN = re.compile(r"^[ \t]*### BEGIN GIVEN\n(.*?)^[ \t]*### END GIVEN\n?", re.MULTILINE | re.DOTALL)
FOLDERS = ("notebooks", "exercises", "solutions")


def root() -> Path:
    """The folder that holds notebooks/, exercises/ and solutions/: the repository, or what the wheel brought."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent, package / "_lessons"):
        if any((folder / name).is_dir() for name in FOLDERS):
            return folder
    raise FileNotFoundError(f"no lessons beside {package}: the installation lacks notebooks/ and exercises/")


def names(folder: str = "notebooks") -> list[str]:
    """File names of the notebooks in one of the three folders, without .ipynb, in order."""
    return sorted(path.stem for path in (root() / folder).glob("*.ipynb"))


def cell_name(number: int) -> str:
    """What the code of a notebook's cell is called in a traceback where no kernel numbers it; cells count from 1."""
    return f"cell {number}"


def definitions(source: str) -> dict[str, ast.FunctionDef]:
    """Functions defined at the top of a cell; empty for cells that are not plain Python (magics)."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def solution_of(exercise: Exercise) -> str:
    """The solved function as the solutions have it.

    Raises FileNotFoundError where the solutions are not installed.
    """
    path = root() / "solutions" / f"{exercise.lesson}.ipynb"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and exercise.function in definitions(source):
            lines = GIVEN.sub("", source).splitlines()
            return "\n".join(
                line for line in lines if "### BEGIN SOLUTION" not in line and "### END SOLUTION" not in line
            )
    raise FileNotFoundError(f"{path.name} holds no solution of exercise {exercise.id} ({exercise.function})")
