"""Where a learner's progress is kept: in `.picolib/progress.json` of their workspace, elsewhere in memory only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MARK = ".picolib"  # the folder that makes a folder a workspace
_memory: dict[str, Any] = {}  # what this kernel knows where there is no workspace


def workspace() -> Path | None:
    """The learner's workspace: $PICOLIB_WORKSPACE, or the nearest folder above the current one that is one."""
    named = os.environ.get("PICOLIB_WORKSPACE")
    if named:
        return Path(named)
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / MARK).is_dir()), None)


def load() -> dict[str, Any]:
    """The record: {"exercises": {id: {...}}, "predictions": [...]}; empty where nothing was recorded."""
    folder = workspace()
    if folder is None:
        return _memory
    try:
        return json.loads((folder / MARK / "progress.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or cut off while it was written: start anew rather than fail a check
        return {}


def save(record: dict[str, Any]) -> None:
    """Keep the record; a workspace that cannot be written (a read-only mount) keeps nothing."""
    folder = workspace()
    if folder is None:
        _memory.update(record)
        return
    try:
        write_text(folder / MARK / "progress.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    except OSError:
        _memory.update(record)


def of_exercise(record: dict[str, Any], id_: str) -> dict[str, Any]:
    """The entry of one exercise, to be changed: attempts, passed, hints, seen."""
    return record.setdefault("exercises", {}).setdefault(
        id_, {"attempts": 0, "passed": False, "hints": 0, "seen": False}
    )


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + f".{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
