"""What two ranks' posts for the same call disagree about, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from picolib.launch import wording
from picolib.launch.board import COLLECTIVE
from picolib.launch.reader import Reader
from picolib.launch.slot import Entry

_PATIENCE = 0.5  # seconds for the others to reach the call, so that a difference names all of them


def collective_mismatch(readers: Sequence[Reader], group: Any, number: int, rank: int, peer: int) -> str:
    """The group's call `number` is not the same on `rank` and on `peer`."""
    _wait_for_the_others(readers, group, number)
    posts = {r: _post(readers[r], group.key, number) for r in group.members}
    posts = {r: entry for r, entry in posts.items() if entry is not None}
    rank, peer = _first_to_differ(posts) or (rank, peer)
    mine, theirs = (wording.fields(readers[r], posts.get(r)) for r in (rank, peer))
    where = f"call number {number + 1} of {wording.group(group.name, group.members)}"
    headline, hint = _difference(mine, theirs, rank, peer, where)
    return "\n".join([headline, *_table(readers, posts), hint])


def _first_to_differ(posts: Mapping[int, Entry]) -> tuple[int, int] | None:
    """The lowest rank, and the first that differs from it: the same words whoever has noticed."""
    first = min(posts, default=None)
    others = [rank for rank in sorted(posts) if posts[rank].signature.hash != posts[first].signature.hash]
    return (first, others[0]) if others else None


def _wait_for_the_others(readers: Sequence[Reader], group: Any, number: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if all(readers[r].count(readers[r].find(COLLECTIVE, group.key)) > number for r in group.members):
            return
        time.sleep(0.01)


def _post(reader: Reader, group: int, number: int) -> Entry | None:
    channel = reader.find(COLLECTIVE, group)
    return reader.entry(channel, number) if channel is not None and reader.count(channel) > number else None


def _table(readers: Sequence[Reader], posts: Mapping[int, Entry]) -> list[str]:
    """One line for all ranks that called the same from the same line."""
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, entry in posts.items():
        alike.setdefault((entry.signature.hash, entry.place.hash), []).append(rank)
    lines = []
    for same in alike.values():
        entry, reader = posts[same[0]], readers[same[0]]
        lines.append(f"  {wording.ranks(same)}: {wording.call(wording.fields(reader, entry))}")
        place = wording.place(reader, entry.place)
        lines += [f"      {place}"] if place else []
    return lines


_SAME_ORDER = "Every rank of a group must make the same calls in the same order."
_HINTS = {
    "shapes": "Every rank must bring a tensor of the same shape; the backend does not check it and would mix the data.",
    "dtypes": "Every rank must bring the same dtype; the backend would read one rank's bytes as the other's numbers.",
    "op": "Every rank must ask for the same operation; each would get another result.",
    "root": "Every rank must name the same root rank.",
    "ranks": "Every rank must call new_group for every group, in the same order, also for groups it isn't in.",
    "label": "Every rank must reduce the same thing at the same time; two of them have changed places.",
    "algorithm": "Every rank must use the same algorithm.",
    "strides": "Every rank must lay out its tensor in the same way: call .contiguous() first.",
}
_WORDS = {"shapes": "shape", "dtypes": "dtype", "op": "operation", "root": "root", "ranks": "list of ranks"}


def _difference(mine: Mapping, theirs: Mapping, rank: int, peer: int, where: str) -> tuple[str, str]:
    low, high = sorted([(rank, mine), (peer, theirs)], key=lambda pair: pair[0])
    if mine.get("name") != theirs.get("name"):
        text = f"Rank {high[0]} called {high[1].get('name')} where rank {low[0]} called {low[1].get('name')} ({where})."
        return text, _SAME_ORDER
    for field in _HINTS:
        if mine.get(field) != theirs.get(field):
            values = [f"rank {r} has {_value(call.get(field))}" for r, call in (low, high)]
            name = _WORDS.get(field, field)
            return f"The {name} differs under {mine.get('name')}: {' and '.join(values)} ({where}).", _HINTS[field]
    return f"Ranks {low[0]} and {high[0]} disagree about {mine.get('name')} ({where}).", _SAME_ORDER


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return "none" if value is None else str(value)


def splits_mismatch(
    readers: Sequence[Reader], group: Any, rank: int, mine: Entry, peer: int, theirs: Entry
) -> str | None:
    """All-to-all: what one rank sends another must be what that one expects."""
    own, other = wording.detail(readers[rank], mine), wording.detail(readers[peer], theirs)
    if not own or not other or "send" not in own or "send" not in other:
        return None
    me, them = group.members.index(rank), group.members.index(peer)
    unit = own.get("unit", "rows")
    for source, target, sent, expected in (
        (rank, peer, own["send"][them], other["recv"][me]),
        (peer, rank, other["send"][me], own["recv"][them]),
    ):
        if sent != expected:
            name = wording.fields(readers[rank], mine).get("name", "all_to_all")
            headline = f"{name}: rank {source} sends {sent} {unit} to rank {target}, which expects {expected}."
            return "\n".join([headline, *_table(readers, {rank: mine, peer: theirs})])
    return None


def swapped(
    readers: Sequence[Reader], group: Any, rank: int, mine: tuple[Entry, Entry], peer: int, theirs: tuple[Entry, Entry]
) -> str:
    """Two calls of the same kind stand in opposite orders on two ranks."""
    name = wording.fields(readers[rank], mine[1]).get("name")
    first, second = mine[0].number + 1, mine[1].number + 1
    lines = [
        f"Ranks {min(rank, peer)} and {max(rank, peer)} make two {name} calls in opposite orders, so their data "
        f"are mixed (calls number {first} and {second} of {wording.group(group.name, group.members)})."
    ]
    for r, pair in sorted([(rank, mine), (peer, theirs)], key=lambda x: x[0]):
        for entry in pair:
            lines.append(f"  rank {r}, call number {entry.number + 1}: {wording.place(readers[r], entry.place)}")
    return "\n".join([*lines, _SAME_ORDER])


def message_mismatch(
    readers: Sequence[Reader], sender: tuple[int, Entry], receiver: tuple[int, Entry], number: int
) -> str | None:
    """The k-th message of a sender is not what its receiver has made room for; None when it fits."""
    (src, sent), (dst, room) = sender, receiver
    message, buffer = wording.fields(readers[src], sent), wording.fields(readers[dst], room)
    if not message or not buffer or (sent.nbytes == room.nbytes and message["dtypes"] == buffer["dtypes"]):
        return None
    what = f"the {wording.ordinal(number + 1)} message" if number else "the message"
    if sent.nbytes != room.nbytes:
        headline = f"rank {dst}: {what} from rank {src} has {sent.nbytes} bytes, the buffer {room.nbytes}."
        hint = "The buffer of a receive must have the size of the message."
    else:
        kinds = message["dtypes"][0], buffer["dtypes"][0]
        headline = f"rank {dst}: {what} from rank {src} is {kinds[0]}, the buffer {kinds[1]}."
        hint = "The buffer of a receive must have the dtype of the message: bytes are copied as they are."
    lines = [
        f"  rank {src} sends {wording.tensors(message)}:  {wording.place(readers[src], sent.place)}",
        f"  rank {dst} receives into {wording.tensors(buffer)}:  {wording.place(readers[dst], room.place)}",
    ]
    return "\n".join([headline, *lines, hint])
