"""Run a learner's notebook in a process of its own and hand out the functions it defines, serialised.

    python -m picolib.course.lift NOTEBOOK FOLDER NAME...

After each cell every function NAME that it has defined is written to FOLDER/NAME.pickle, with the helpers it uses;
FOLDER/cells.json tells which cells raised. Nothing else of this process is trusted: whoever judges the functions never
unpickles them, only the ranks that run them do. `check` and `hint` do nothing here: judging comes later, elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from picolib.course import lessons
from picolib.launch import pickling

CELL_SECONDS = 30


class TooLong(BaseException):
    """A cell took longer than it may; not an Exception, so that no learner's `except` swallows it."""


def main(arguments: Sequence[str]) -> int:
    """Run the cells one after the other; a cell that raises does not keep the later ones from running."""
    path, folder, names = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shell = _shell(path.parent)
    failed: dict[str, str] = {}
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            shell.compile.get_code_name = lambda *_, cell=number: lessons.cell_name(cell)
            error = _run_cell(shell, "".join(cell["source"]))
            if error is not None:
                failed[str(number)] = f"{type(error).__name__}: {error}"[:500]
            _hand_out(shell.user_ns, folder, names)
            (folder / "cells.json").write_text(json.dumps(failed), encoding="utf-8")
    return 0


def _shell(folder: Path) -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    import picolib.course as course

    def silent(*args: Any, **kwargs: Any) -> None:
        """Takes the place of what only speaks to a learner."""

    for name in ("check", "hint", "reveal", "progress", "show", "quiz", "table"):
        setattr(course, name, silent)
    sys.path.insert(0, str(folder.resolve()))
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    assert isinstance(shell.user_module, types.ModuleType)
    return shell


def _run_cell(shell: Any, source: str) -> BaseException | None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            with _at_most(CELL_SECONDS):
                result = shell.run_cell(source, store_history=False)
            return result.error_before_exec or result.error_in_exec
        except BaseException as error:  # also SystemExit, and what interrupts a loop without end
            return error


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise TooLong in the block after so many seconds, where the system has an alarm clock."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(*_: Any) -> None:
        raise TooLong(f"the cell was not through after {seconds} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _hand_out(namespace: dict[str, Any], folder: Path, names: Sequence[str]) -> None:
    for name in names:
        function = namespace.get(name)
        if callable(function):
            with contextlib.suppress(Exception):  # what cannot be sent to ranks stays "not executed"
                (folder / f"{name}.pickle").write_bytes(pickling.to_bytes(function))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
