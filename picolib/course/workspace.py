"""`workspace/`: where a learner works. Copies are made once; what the learner has written is never overwritten.

workspace/
    START.ipynb             the map
    02A_….ipynb             the lesson, to read and run; without outputs, for you are asked to predict them
    02A_…_exercises.ipynb   its exercises, to do
    mine/                   what the learner has built and passed
    .picolib/               progress, and how each cell was when it was delivered
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from picolib.course import lessons, state

MAP = "START.ipynb"


class Delivery(NamedTuple):
    """One notebook of the course, and its name in the workspace."""

    source: Path
    name: str


def deliveries(root: Path) -> list[Delivery]:
    """Every lesson and every exercise notebook."""
    found = [Delivery(path, path.name) for path in sorted((root / "notebooks").glob("*.ipynb"))]
    found += [Delivery(path, f"{path.stem}_exercises.ipynb") for path in sorted((root / "exercises").glob("*.ipynb"))]
    return found


def fill(folder: str | Path, root: Path | None = None) -> list[str]:
    """Copy into the workspace what is not there yet; returns the names of what was copied."""
    folder, root = Path(folder), root or lessons.root()
    for part in (folder / state.MARK, folder / "mine"):
        part.mkdir(parents=True, exist_ok=True)
    baseline, copied = _baseline(folder), []
    for delivery in deliveries(root):
        if not (folder / delivery.name).exists():
            notebook = _adapted(delivery)
            _write(folder / delivery.name, notebook)
            baseline[delivery.name] = hashes(notebook)
            copied.append(delivery.name)
    _copy_images(root, folder)
    _save_baseline(folder, baseline)
    return copied


def update(folder: str | Path, root: Path | None = None) -> str:
    """Bring new and changed cells into the workspace; cells that the learner has touched stay. Says what it did."""
    folder, root = Path(folder), root or lessons.root()
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; picolib lab makes it")
    copied = set(fill(folder, root))
    lines = [f"{name}: new" for name in sorted(copied)]
    baseline = _baseline(folder)
    for delivery in deliveries(root):
        if delivery.name not in copied:
            lines += _update_one(folder / delivery.name, _adapted(delivery), baseline)
    _save_baseline(folder, baseline)
    return "\n".join(lines) or "Everything is up to date."


def _update_one(path: Path, new: NotebookNode, baseline: dict[str, dict[str, str]]) -> list[str]:
    try:
        current = nbformat.read(path, as_version=4)
    except Exception as error:  # a notebook that cannot be read is the learner's to repair
        return [f"{path.name}: left alone, it cannot be read ({type(error).__name__})"]
    merged, replaced, kept = merge(current, new, baseline.get(path.name, {}))
    baseline[path.name] = hashes(new)
    if not replaced:
        return []
    _write(path, merged)
    return [f"{path.name}: {replaced} cell{'s' * (replaced != 1)} brought up to date, {kept} of yours kept"]


def key_of(cell: NotebookNode) -> str:
    """What a cell is recognised by: its exercise and role, else its id."""
    tag = cell.metadata.get("picolib", {})
    return f"{tag['exercise']} {tag['role']}" if tag else cell.get("id", "")


def hash_of(cell: NotebookNode) -> str:
    """A short hash of a cell's source."""
    return hashlib.sha256(cell.source.encode()).hexdigest()[:16]


def hashes(notebook: NotebookNode) -> dict[str, str]:
    """key -> hash of every cell."""
    return {key_of(cell): hash_of(cell) for cell in notebook.cells}


def merge(current: NotebookNode, new: NotebookNode, baseline: dict[str, str]) -> tuple[NotebookNode, int, int]:
    """The new notebook with every cell the learner has touched or added; how many cells changed, how many were kept.

    baseline: how the cells were when they were delivered. A delivered cell that the learner has removed stays away.
    """
    mine = {key_of(cell): cell for cell in current.cells}
    touched = {key for key, cell in mine.items() if baseline.get(key) != hash_of(cell)}
    cells: list[NotebookNode] = []
    replaced = 0
    for cell in new.cells:
        key = key_of(cell)
        if key in touched:
            cells.append(mine[key])
        elif key in mine:
            replaced += mine[key].source != cell.source
            cells.append(mine[key] if mine[key].source == cell.source else cell)
        elif key not in baseline:
            replaced += 1
            cells.append(cell)
    gone = set(mine) - {key_of(cell) for cell in new.cells} - touched
    replaced += len(gone)
    _insert_own(cells, current.cells, {key_of(cell) for cell in cells} | gone)
    merged = nbformat.from_dict({**current, "cells": cells})
    return merged, replaced, len(touched)


def _insert_own(cells: list[NotebookNode], current: Iterable[NotebookNode], placed: set[str]) -> None:
    """Put each cell that only the learner has behind the cell it stood behind."""
    before: str | None = None
    for cell in current:
        key = key_of(cell)
        if key not in placed:
            keys = [key_of(c) for c in cells]
            cells.insert(keys.index(before) + 1 if before in keys else 0, cell)
        before = key if key in {key_of(c) for c in cells} else before


LINKS = (  # what the notebooks of the repository say -> what they say side by side, and without outputs
    (re.compile(r"\.\./exercises/(\w+)\.ipynb"), r"\1_exercises.ipynb"),
    (re.compile(r"\.\./notebooks/(\w+)\.ipynb"), r"\1.ipynb"),
    (re.compile(r"\.\./notebooks/images/"), "images/"),
    (
        re.compile(
            r"\n?The outputs below the cells are those of a right answer; run a cell and yours take their place\."
        ),
        "",
    ),
)


def _adapted(delivery: Delivery) -> NotebookNode:
    """As a learner gets it: links that fit, and no outputs but those of the map.

    The lessons in the repository keep their outputs: there they are read. A learner predicts, writes and runs; what a
    run says, and that an exercise passes, is seen when the cell has run.
    """
    notebook = nbformat.read(delivery.source, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for pattern, replacement in LINKS:
                cell.source = pattern.sub(replacement, cell.source)
        elif cell.cell_type == "code" and delivery.name != MAP:
            cell.outputs, cell.execution_count = [], None
    return notebook


def _write(path: Path, notebook: NotebookNode) -> None:
    state.write_text(path, nbformat.writes(notebook, version=4) + "\n")
    try:  # so that stored pictures are shown: Jupyter hides what it has not seen the learner run
        from nbformat.sign import NotebookNotary

        NotebookNotary().sign(notebook)
    except Exception:  # no place to write signatures: pictures appear once the cells have run
        pass


def _copy_images(root: Path, folder: Path) -> None:
    if (root / "notebooks" / "images").is_dir():
        shutil.copytree(root / "notebooks" / "images", folder / "images", dirs_exist_ok=True)


def _baseline(folder: Path) -> dict[str, dict[str, str]]:
    try:
        return json.loads((folder / state.MARK / "baseline.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _save_baseline(folder: Path, baseline: dict[str, Any]) -> None:
    state.write_text(folder / state.MARK / "baseline.json", json.dumps(baseline, indent=1) + "\n")


def open_lab(folder: str | Path, jupyter: Sequence[str] = ()) -> int:
    """Fill the workspace and open JupyterLab on it; returns JupyterLab's exit code."""
    folder = Path(folder).resolve()
    copied = fill(folder)
    print(f"Your workspace: {folder}" + (f" ({len(copied)} notebooks new)" if copied else ""))
    start = next((name for name in (MAP, "00_welcome.ipynb") if (folder / name).exists()), None)
    url = [f"--LabApp.default_url=/lab/tree/{start}"] if start else []
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # containers often are
    command = [sys.executable, "-m", "jupyterlab", f"--notebook-dir={folder}", *url, *as_root, *jupyter]
    beside = Path(sys.executable).parent  # so that `!picolib update` in a cell finds it, without an activated venv
    env = {**os.environ, "PATH": os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])}
    with _interrupts_are_for_jupyter():
        return subprocess.call(command, env=env)


@contextmanager
def _interrupts_are_for_jupyter() -> Iterator[None]:
    """On Ctrl-C JupyterLab asks whether it should stop; meanwhile its parent must not go away."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
