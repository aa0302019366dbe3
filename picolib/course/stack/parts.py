"""The parts of a run with `use="mine"`: your functions, how often each was called, and where one was missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

# What takes a place in the stack: function -> exercise. (Others, such as 2.2, are answers and no parts.)
PARTS = {
    "ring_reduce_scatter": "2.3",
    "ring_all_reduce": "2.4",
    "recursive_doubling": "2.6",
    "pipelined_broadcast": "2.10",
    "halving_doubling": "2.11",
    "bruck_all_gather": "2.12",
    "wrap": "3.1",
    "average_in_buckets": "3.3",
    "overlap": "3.4",
    "zero1_step": "4.1",
    "clip": "4.2",
    "forward": "4.3",
    "sharded_linear": "4.4",
    "prefetched": "4.5",
    "f_and_g": "5.1",
    "my_heads": "5.3",
    "vocab_loss": "5.4",
}

NO_PARTS = "Exercises that are no piece of a model in training, such as 1.4, 3.2 or 3.5, have no place in a run."


class Parts(dict[str, Any]):
    """function -> your function, which counts its calls."""

    def __init__(self, texts: Mapping[str, list[str]]) -> None:
        """texts: function -> [path, text] of a saved file.

        Raises:
            ValueError: a file is no Python any more, or no longer defines its function.
        """
        self.calls: Counter[str] = Counter()
        self.missed: set[str] = set()
        self.remarks: dict[str, None] = {}  # in order, each once
        self.changed = [name for name, (_, _, state) in texts.items() if state == "changed"]
        functions = {name: load(name, *where[:2]) for name, where in texts.items()}
        self.within = {name: _helpers(fn) for name, fn in functions.items()}
        super().__init__({name: self._counted(fn, name) for name, fn in functions.items()})

    def _counted(self, fn: Any, name: str) -> Any:
        def part(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return fn(*args, **kwargs)

        return part

    def wanted(self, name: str) -> Any:
        """Your function for a place that this run has come to; None where there is none yet, which is noted."""
        if name not in self:
            self.missed.add(name)
        return self.get(name)

    def report(self) -> str:
        """A line: what of yours ran, what stood idle, and what is missing."""
        used = [f"{_called(name)} {_times(self.calls[name])}" for name in PARTS if self.calls[name]]
        inside = {name: self._user_of(name) for name in PARTS if name in self and not self.calls[name]}
        idle = [PARTS[name] for name, user in inside.items() if user is None]
        missed = [_called(name) for name in PARTS if name in self.missed]
        text = f"Yours in this run: {', '.join(used) or 'nothing'}."
        text += "".join(f" {PARTS[name]} is inside {PARTS[user]}." for name, user in inside.items() if user)
        text += "".join(f" {remark}" for remark in self.remarks)
        text += f" Not called: {', '.join(idle)}." if idle else ""
        text += f" Not yours yet: {', '.join(missed)}." if missed else ""
        text += f" The rest is the library's. ({NO_PARTS})"
        for name in self.changed:
            text += f" mine/{name}.py was changed after it had passed: check({name}) tries what is in your notebook."
        return text

    def _user_of(self, name: str) -> str | None:
        """The part that was called and has brought this function along as its own helper: a copy in its file."""
        return next((user for user in PARTS if self.calls[user] and name in self.within[user]), None)


def _helpers(fn: Any) -> set[str]:
    """The other parts that are defined in a part's file, because it calls them."""
    return {name for name in PARTS if name in getattr(fn, "__globals__", {})}


def load(name: str, path: str, text: str) -> Any:
    """Run a saved file, under its own name, so that an error in it shows its lines."""
    module = {"__name__": f"mine.{name}", "__file__": path}
    try:
        exec(compile(text, path, "exec"), module)
    except SyntaxError as error:
        raise ValueError(f'use="mine": {_file(name, path)} is no Python any more (line {error.lineno})') from None
    if not callable(module.get(name)):
        raise ValueError(f'use="mine": {_file(name, path)} no longer defines {name}')
    return module[name]


def wrong(name: str, does: str) -> ValueError:
    """For a part that does not do what its exercise asks for: it was changed by hand since it passed."""
    return ValueError(f'use="mine": {name} ({PARTS[name]}) {does}. check({name}) writes mine/{name}.py anew.')


def is_the_world(group: Any) -> bool:
    """Whether this group has all ranks, in their order, as the exercises have them."""
    return group is None or dist.get_process_group_ranks(group) == list(range(dist.get_world_size()))


def _file(name: str, path: str) -> str:
    return f"mine/{Path(path).name} (check({name}) writes it anew)"


def _called(name: str) -> str:
    return f"{name} ({PARTS[name]})"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")
