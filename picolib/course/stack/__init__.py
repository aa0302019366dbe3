"""`picolib.run(..., use="mine")`: in the ranks of that run, what you have built stands in the library's place.

    picolib.run(train, 4, use="mine")

Whatever `train` calls by the library's name (`picolib.DistributedDataParallel`, `dist.all_reduce`, …) is then yours,
as far as you have built it: the functions that passed their checks, from `workspace/mine/`. The rest is the library's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from picolib.course import mine

# What takes a place in the stack: function -> exercise. (Others, such as 2.2, are answers and no parts.)
PARTS = {
    "ring_all_reduce": "2.4",
    "recursive_doubling": "2.6",
    "wrap": "3.1",
    "average_in_buckets": "3.3",
    "overlap": "3.4",
    "zero1_step": "4.1",
}


def sources() -> dict[str, list[str]]:
    """In the kernel: function -> [path, text] of every part that has passed."""
    folder = mine.folder()
    paths = {name: folder / f"{name}.py" for name in PARTS} if folder else {}
    return {name: [str(path), path.read_text(encoding="utf-8")] for name, path in paths.items() if path.is_file()}


def install(texts: dict[str, list[str]]) -> Callable[[], str]:
    """In a rank, before its function runs: put these parts into place. What comes back tells how often each ran.

    The ranks of a run are processes of their own, so nothing has to be put back.
    """
    from picolib.course.stack import collectives, data_parallel, zero

    calls: Counter[str] = Counter()
    parts = {name: _counted(_load(name, *where), name, calls) for name, where in texts.items()}
    collectives.install(parts)
    data_parallel.install(parts)
    zero.install(parts)
    return lambda: _report(texts, calls)


def _load(name: str, path: str, text: str) -> Any:
    """Run a saved file, under its own name, so that an error in it shows its lines."""
    module = {"__name__": f"mine.{name}", "__file__": path}
    try:
        exec(compile(text, path, "exec"), module)
    except SyntaxError as error:
        raise ValueError(f'use="mine": {_file(name, path)} is no Python any more (line {error.lineno})') from None
    if not callable(module.get(name)):
        raise ValueError(f'use="mine": {_file(name, path)} no longer defines {name}')
    return module[name]


def _file(name: str, path: str) -> str:
    return f"mine/{Path(path).name} (check({name}) writes it anew)"


def _counted(fn: Any, name: str, calls: Counter[str]) -> Any:
    def part(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return fn(*args, **kwargs)

    return part


def _report(texts: dict[str, list[str]], calls: Counter[str]) -> str:
    if not texts:
        return 'use="mine": nothing here is yours yet, so every part is the library\'s.'
    used = [f"{name} ({PARTS[name]}) {_times(calls[name])}" for name in PARTS if calls[name]]
    idle = [f"{name} ({PARTS[name]})" for name in PARTS if name in texts and not calls[name]]
    text = f"Yours in this run: {', '.join(used) or 'nothing'}."
    return text + (f" Not called: {', '.join(idle)}." if idle else "") + " The rest is the library's."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")
