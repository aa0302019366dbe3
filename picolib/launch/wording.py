"""How calls, places, groups and lists of ranks read in an explanation."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from picolib.launch.frames import place as name_of_place
from picolib.launch.reader import Reader
from picolib.launch.slot import Entry, Text

_CELL_LINE = re.compile(r"(?P<file><ipython-input[^>\n]*>|[^\s\"']*ipykernel_[^\s,\"']*), line (?P<line>\d+)")


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 2", "ranks 0 and 2", "ranks 0-2", "ranks 0, 1 and 3", "ranks 0-5 and 8": three in a row are a span.

    The one way in which every text of picolib lists ranks.
    """
    found = set(numbers)
    return ("rank " if len(found) == 1 else "ranks ") + spans(found)


def spans(numbers: Iterable[int]) -> str:
    """ "2", "0 and 2", "0-5 and 8"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [word for run in runs for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    return listed(words)


def listed(items: Sequence[str], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" {last} {items[-1]}"


def ordinal(number: int) -> str:
    """ "1st", "2nd", "13th"; `number` counts from 1."""
    suffix = "th" if 10 <= number % 100 <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def group(name: str, members: Sequence[int]) -> str:
    """ "the world group" or "the group [1, 3] (made by new_group number 2)"."""
    if name in ("world", "new_group"):
        return "the world group"
    made = f" (made by new_group number {name})" if name.isdigit() and name != "0" else ""
    return f"the group {list(members)}{made}"


def fields(reader: Reader, entry: Entry | None) -> dict[str, Any]:
    """What a post says of its call."""
    text = reader.text(entry.signature) if entry is not None else None
    return json.loads(text) if text else {}


def detail(reader: Reader, entry: Entry | None) -> dict[str, Any]:
    """What a post says beyond the signature."""
    text = reader.text(entry.detail) if entry is not None else None
    return json.loads(text) if text else {}


def tensors(call: Mapping[str, Any]) -> str:
    """ "float32 [4]", or several of them; empty when the call has none."""
    kinds = [f"{d} {s}" for d, s in zip(call.get("dtypes", []), call.get("shapes", []), strict=False)]
    if len(kinds) > 3:
        return f"{len(kinds)} tensors ({kinds[0]}, ...)"
    return ", ".join(kinds) or ", ".join(call.get("dtypes", []))


def call(described: Mapping[str, Any]) -> str:
    """ "all_reduce(SUM) of float32 [4]"."""
    inside = [described["op"]] if described.get("op") else []
    if described.get("root") is not None:
        inside.append(f"root {described['root']}")
    if described.get("algorithm"):
        inside.append(f'algorithm "{described["algorithm"]}"')
    text = described.get("name", "a call") + (f"({', '.join(inside)})" if inside else "")
    if described.get("ranks") is not None:
        text += f"({described['ranks']})"
    kinds = tensors(described)
    text += f" of {kinds}" if kinds else ""
    return text + (f', labelled "{described["label"]}"' if described.get("label") else "")


def place(reader: Reader, name: Text) -> str:
    """ "cell In[3], line 5: dist.recv(x, src=1)"; empty when unknown."""
    text = reader.text(name)
    if not text:
        return ""
    file, line, _ = json.loads(text)
    return source_line(file, line)


def source_line(file: str, line: int) -> str:
    """A line of code: where it is, and how it reads."""
    source = linecache.getline(file, line).strip()
    return name_of_place(file, line) + (f":  {source}" if source else "")


def relabel(text: str) -> str:
    """Put the names and the source of cells into a text that a rank has made: ranks don't know the cells."""

    def named(match: re.Match) -> str:
        return source_line(match["file"], int(match["line"]))

    return _CELL_LINE.sub(named, text)
