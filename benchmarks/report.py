"""Tables, means and the folder that results go to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean under which 2x and 0.5x cancel."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def size_text(nbytes: int) -> str:
    """1024 -> "1 KB", 4194304 -> "4 MB"."""
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"


def time_text(seconds: float) -> str:
    """Three digits, in µs, ms or s."""
    unit, factor = next((u, f) for u, f in (("s", 1), ("ms", 1e3), ("µs", 1e6)) if seconds * f >= 1 or u == "µs")
    return f"{seconds * factor:.3g} {unit}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [f"| {' | '.join(map(str.rjust, row, widths))} |" for row in [header, *rows]]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def keep(name: str, text: str, data: Any) -> None:
    """Leave the table and the raw figures in benchmarks/results/."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
