"""The running comparison of strategies: `table()` shows it, `table("data parallel", splits="...", ...)` fills a row.

You fill the rows; below what you have filled, and nowhere else, the course's own words appear: a later column is for a
later lesson. What you wrote is kept in the workspace, in `mine/table.json`; outside a workspace (the lessons as they
are) it is kept as long as the kernel runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from picolib.course import mine, state
from picolib.course.strategies import STRATEGIES

COLUMNS = {
    "splits": "splits",
    "replicates": "replicates",
    "collective": "collective, when",
    "bytes": "numbers sent per rank (× their bytes)",
    "critical_path": "on the critical path?",
    "saves": "saves",
    "stop_when": "stop using it when",
}


ROWS = {strategy.name: strategy for strategy in STRATEGIES}
_of_this_kernel: dict[str, dict[str, str]] = {}  # what was filled outside a workspace


class Comparison:
    """The table as it stands; shows itself as Markdown."""

    def __init__(self, filled: Mapping[str, Mapping[str, str]]) -> None:
        self.filled = filled

    def _repr_markdown_(self) -> str:
        lines = [_line("strategy", COLUMNS.values()), _line("---", ["---"] * len(COLUMNS))]
        for row in ROWS.values():
            yours = self.filled.get(row.name)
            if yours is None:
                where = f"lesson{'s' * (' and ' in row.lesson)} {row.lesson}"
                lines.append(_line(row.name, [where] + ["·"] * (len(COLUMNS) - 1)))
            else:
                lines.append(_line(f"**{row.name}**", [yours.get(column, "·") for column in COLUMNS]))
                beside = [f"*{getattr(row, column)}*" if yours.get(column) else "·" for column in COLUMNS]
                lines.append(_line("*the course's words*", beside))
        return "\n".join(lines)

    __repr__ = _repr_markdown_


def _line(first: str, cells: Iterable[str]) -> str:
    return "| " + " | ".join([first, *(cell.replace("|", "/").replace("\n", " ") for cell in cells)]) + " |"


def table(strategy: str | None = None, *, folder: str | Path | None = None, **cells: str) -> Comparison:
    """The comparison table; with a strategy and your words for its columns, that row filled.

    Columns: splits, replicates, collective, bytes (as numbers, each of which has its bytes), critical_path, saves,
    stop_when. folder: where `table.json` is (default: `mine` in the workspace).
    Raises ValueError for a strategy or column that the table does not have, or an empty row.
    """
    folder = mine.folder() if folder is None else Path(folder)
    filled = _read(folder)
    if strategy is not None:
        _check(strategy, cells)
        filled[strategy] = filled.get(strategy, {}) | cells
        _write(folder, filled)
    return Comparison(filled)


def _check(strategy: str, cells: Mapping[str, str]) -> None:
    if strategy not in ROWS:
        raise ValueError(f"strategy={strategy!r} is no row of the table; its rows are {', '.join(ROWS)}")
    unknown = [name for name in cells if name not in COLUMNS]
    if unknown:
        raise ValueError(f"{unknown[0]}= is no column of the table; its columns are {', '.join(COLUMNS)}")
    if not any(cells.values()):
        raise ValueError(f'give your words for the row, such as table("{strategy}", splits="...", saves="...")')


def _read(folder: Path | None) -> dict[str, dict[str, str]]:
    if folder is None:
        return dict(_of_this_kernel)
    if not (folder / "table.json").exists():
        return {}
    return json.loads((folder / "table.json").read_text(encoding="utf-8"))


def _write(folder: Path | None, filled: Mapping[str, Mapping[str, str]]) -> None:
    if folder is None:
        _of_this_kernel.update(filled)
    else:
        state.write_text(folder / "table.json", json.dumps(filled, indent=1, ensure_ascii=False) + "\n")
