"""`make course`: execute notebooks in place and store their outputs, so that they read well where nothing runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

# What the kernel adds to an execution but no reader needs; it would make every refresh a change.
VOLATILE_METADATA = ("execution", "widgets", "language_info")


def notebooks(paths: Iterable[str]) -> list[Path]:
    """The .ipynb files named, or inside the folders named, in order."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(path.glob("*.ipynb")) if path.is_dir() else [path]
    return found


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs from one execution to the next without meaning anything."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        | {k: v for k, v in notebook.metadata.items() if k not in (*VOLATILE_METADATA, "kernelspec")}
    )
    for cell in notebook.cells:
        for name in VOLATILE_METADATA:
            cell.metadata.pop(name, None)
        if cell.cell_type == "code":
            cell.outputs = _visible(cell.outputs)


def _visible(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Without outputs that hold nothing (the live view of a long run), and streams that were cut put together."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type == "display_data" and not output.data:
            continue
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def execute(path: Path, timeout: int = 120) -> None:
    """Run every cell of the notebook at `path` in a fresh kernel and store the outputs; a failing cell raises."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(path.parent)}}).execute()
    tidy(notebook)
    nbformat.write(notebook, path)


def main(arguments: Sequence[str]) -> int:
    """Execute each notebook; say which one failed and go on with the rest."""
    os.environ.pop("PICOLIB_WORKSPACE", None)  # what is stored must not tell of somebody's progress
    failed = 0
    for path in notebooks(arguments):
        print(path, flush=True)
        try:
            execute(path)
        except Exception as error:  # the traceback of the learner's cell is in the text
            failed += 1
            print(error, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
