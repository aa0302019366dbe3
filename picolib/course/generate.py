"""From solutions/ to exercises/: the solved parts become stubs, the reference outputs stay.

In a solution, what the learner has to write stands between `### BEGIN SOLUTION` and `### END SOLUTION`. An exercise
that starts from given code (find the bug) has that code, commented out, between `### BEGIN GIVEN` and `### END GIVEN`
right after; in the exercise it takes the place of the stub.

    python -m picolib.course.generate            write exercises/
    python -m picolib.course.generate --check    fail when exercises/ is anything else, or when a solution leaks
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from picolib.course import lessons
from picolib.course.catalogue import exercises

STUB = "# your code here\nraise NotImplementedError"
SOLUTION = re.compile(r"^[ \t]*### BEGIN SOLUTION\n(.*?)^[ \t]*### END SOLUTION", re.MULTILINE | re.DOTALL)
TELLTALE = 12  # a line shorter than this gives nothing away


def exercise_notebook(solution: NotebookNode, lesson: str) -> NotebookNode:
    """The exercise notebook of a solved one: stubs, stable ids, the solution's outputs as reference."""
    made = _clear(nbformat.from_dict(json.loads(json.dumps(solution))))
    made.metadata["picolib"] = {"lesson": lesson}
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.source = _with_given_code(cell.source)
        tag = _tag(cell)
        cell.metadata.pop("nbgrader", None)
        if tag:
            cell.metadata["picolib"] = tag
    return made


def _clear(notebook: NotebookNode) -> NotebookNode:
    """nbgrader's own preprocessor does the cutting."""
    from nbgrader.preprocessors import ClearSolutions

    cutter = ClearSolutions(enforce_metadata=False, code_stub={"python": STUB})
    cutter.begin_solution_delimeter, cutter.end_solution_delimeter = "### BEGIN SOLUTION", "### END SOLUTION"
    made, _ = cutter.preprocess(notebook, {})
    return made


def _with_given_code(source: str) -> str:
    """Given code comes alive, and replaces the stub above it."""
    found = lessons.GIVEN.search(source)
    if found is None:
        return source
    alive = re.sub(r"^([ \t]*)# ?", r"\1", found[1], flags=re.MULTILINE)
    alive = re.sub(r"[ \t]+$", "", alive, flags=re.MULTILINE)  # an empty line is empty
    before = re.sub(r"[ \t]*# your code here\n[ \t]*raise NotImplementedError\n\Z", "", source[: found.start()])
    return (before + alive + source[found.end() :]).rstrip("\n")


def _tag(cell: NotebookNode) -> dict[str, str] | None:
    """Which exercise a cell answers or checks: found again wherever the learner moves it."""
    if cell.cell_type != "code":
        return None
    for exercise in exercises().values():
        if exercise.function in lessons.definitions(cell.source):
            return {"exercise": exercise.id, "role": "answer"}
        if re.search(rf"\bcheck\(\s*{exercise.function}\s*[,)]", cell.source):
            return {"exercise": exercise.id, "role": "check"}
    return None


def leaks(solution: NotebookNode, exercise: NotebookNode) -> list[str]:
    """Lines of the solution that the exercise shows anywhere: in outputs, metadata, attachments or left-over cells."""
    secrets = {
        line.strip() for cell in solution.cells for part in SOLUTION.findall(cell.source) for line in part.splitlines()
    }
    visible = "\n".join(cell.source for cell in exercise.cells)
    secrets = {line for line in secrets if len(line) >= TELLTALE and line not in visible and not line.startswith("#")}
    hidden = json.dumps(
        [[c.get("outputs"), c.metadata, c.get("attachments")] for c in exercise.cells], ensure_ascii=False
    )
    hidden += json.dumps(exercise.metadata, ensure_ascii=False)
    found = [line for line in sorted(secrets) if json.dumps(line, ensure_ascii=False)[1:-1] in hidden]
    return found + [mark for mark in ("BEGIN SOLUTION", "END SOLUTION", "BEGIN GIVEN") if mark in visible + hidden]


def text_of(notebook: NotebookNode) -> str:
    """A notebook as it is written to disk."""
    return nbformat.writes(notebook, version=4) + "\n"


def generate(root: Path, check: bool = False) -> list[str]:
    """Write exercises/ (or only compare); returns complaints, each a sentence."""
    complaints = []
    wanted: set[str] = set()
    for path in sorted((root / "solutions").glob("*.ipynb")):
        solution = nbformat.read(path, as_version=4)
        made = exercise_notebook(solution, path.stem)
        complaints += [f"{path.name}: the solution leaks into the exercise: {line}" for line in leaks(solution, made)]
        complaints += _put(root / "exercises" / path.name, text_of(made), check)
        wanted.add(path.name)
    for path in sorted((root / "exercises").glob("*.ipynb")):
        if path.name not in wanted:
            complaints.append(f"exercises/{path.name} has no solution it could come from")
    return complaints


def _put(path: Path, text: str, check: bool) -> list[str]:
    old = path.read_text(encoding="utf-8") if path.exists() else None
    if old == text:
        return []
    if check:
        return [f"exercises/{path.name} is not what the generator makes: run python -m picolib.course.generate"]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return []


def main(arguments: Sequence[str]) -> int:
    """Write or compare all exercise notebooks; print what is wrong."""
    complaints = generate(lessons.root(), check="--check" in arguments)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
