"""How long a sitting takes, from what is in it: `python -m picolib.course.minutes` prints it for each lesson.

A learner reads the lesson without its *go deeper* parts, looks at its figures, answers its questions, waits for its
cells, and does its core exercises. The headers of the lessons, `START.ipynb` and the README tell that, or more.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from picolib.course import lessons
from picolib.course.catalogue import exercises

WORDS = 238  # of prose a minute: silent reading of English non-fiction (Brysbaert 2019, over 190 studies)
LINES = 30  # of code a minute, blank ones left out: two seconds for each (our own guess)
MINUTES = {"mystery": 2.0, "question or widget": 0.5, "prediction": 0.25, "figure": 0.25}  # for each, our guess
LONGEST = 50  # minutes that a sitting should not exceed

# Seconds that the core's cells run: `--measure`, on two cores that had other work, too. 60 where nobody has measured.
WAITS = {"00": 42, "01A": 32, "01B": 51, "02A": 47, "02B": 20, "03A": 29, "03B": 38, "04A": 39, "04B": 74, "05A": 33}


@dataclass(frozen=True)
class Sitting:
    """What a learner meets in one sitting; `minutes` adds it up."""

    id: str
    told: int
    words: int
    lines: int
    shown: dict[str, int]
    exercises: int

    @property
    def rounded(self) -> int:
        """Minutes to the nearest five: no figure here is more exact."""
        return 5 * round(self.minutes / 5)

    @property
    def minutes(self) -> float:
        """Reading, looking, answering, waiting, and the exercises."""
        looking = sum(MINUTES[what] * count for what, count in self.shown.items())
        return self.words / WORDS + self.lines / LINES + looking + WAITS.get(self.id, 60) / 60 + self.exercises


def sittings() -> list[Sitting]:
    """All sittings that there are lessons of, in order."""
    return [sitting(path) for path in sorted((lessons.root() / "notebooks").glob("[0-9]*.ipynb"))]


def sitting(path: Path) -> Sitting:
    """What is in one lesson."""
    id_, cells = path.name.split("_")[0], list(core(nbformat.read(path, as_version=4)))
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    code = [text for cell in cells if cell.cell_type == "code" for text in (cell.source, *_plain(cell, "# picolib/"))]
    header = re.search(r"\*(\d+) minutes with the exercises", prose[0])
    return Sitting(
        id_,
        told=int(header[1]) if header else 0,
        words=sum(bool(re.search(r"\w", word)) for text in prose for word in text.split()),
        lines=sum(bool(line.strip()) for text in code for line in text.splitlines()),
        shown=_shown(cells),
        exercises=sum(e.minutes for e in exercises().values() if e.sitting == id_ and not e.stretch),
    )


def core(notebook: NotebookNode) -> Iterator[NotebookNode]:
    """The cells of a lesson outside its sections "Go deeper"."""
    deeper = False
    for cell in notebook.cells:
        heading = re.search(r"^## (.*)", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        deeper = heading[1].startswith("Go deeper") if heading else deeper
        if not deeper:
            yield cell


def _plain(cell: NotebookNode, start: str = "") -> list[str]:
    """Outputs of a cell as text, those that begin so: what `show` has listed begins with "# picolib/"."""
    texts = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return [text for text in texts if text.startswith(start)]


def _shown(cells: Sequence[NotebookNode]) -> dict[str, int]:
    below = [text for cell in cells if cell.cell_type == "code" for text in _plain(cell)]
    source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    mysteries = sum(text.startswith("[figure: A mystery") for text in below)
    return {
        "mystery": mysteries,
        "question or widget": sum(text.startswith("[widget:") for text in below) - mysteries,  # each has a question
        "prediction": len(re.findall(r"\bpredict\(", source)),
        "figure": sum(text.startswith("[figure:") for text in below) - mysteries,
    }


def measure(path: Path) -> float:
    """Run a lesson; the seconds that its core's cells took."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    times = [cell.metadata["execution"] for cell in core(notebook) if cell.cell_type == "code"]
    at = lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return sum((at(t["shell.execute_reply"]) - at(t["iopub.execute_input"])).total_seconds() for t in times)


def main(arguments: Sequence[str]) -> int:
    """Print the table; with --measure and notebooks, how many seconds their cells take here."""
    if arguments[:1] == ["--measure"]:
        for path in map(Path, arguments[1:]):
            print(f"{path.name}: {measure(path):.0f} seconds")
        return 0
    print("sitting  words  code  exercises  computed  told")
    for one in sittings():
        row = f"{one.id:<7}{one.words:>7}{one.lines:>6}{one.exercises:>11}{one.rounded:>10}{one.told:>6}"
        print(row + f"  more than {LONGEST}" * (one.rounded > LONGEST))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
