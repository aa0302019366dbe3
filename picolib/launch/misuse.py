"""Mistakes that one rank can see by itself, in words."""

from __future__ import annotations

import json
from typing import Any

from picolib.launch.board import RECV, SEND
from picolib.launch.wording import source_line

NAMES = {SEND: "send", RECV: "recv"}


def _where(text: str) -> str:
    return source_line(*json.loads(text)[:2]) if text else ""


def _verb(message: Any) -> str:
    return f"{'i' if message.pending else ''}{NAMES[message.kind]}"


def to_oneself(message: Any, place: Any) -> str:
    """A message whose other end is the same rank."""
    name = "send" if message.kind == SEND else "recv"
    rank = message.peer
    return (
        f"rank {rank}: {name} to or from rank {rank} itself; ranks can only exchange messages with others.\n"
        f"      {_where(place.text)}\nCopy the tensor instead: buffer.copy_(tensor)."
    )


def changed(message: Any) -> str:
    """The tensor of an isend was written to too early."""
    rank = message.observer.rank
    return (
        f"rank {rank}: the tensor was changed after isend to rank {message.peer} and before wait(), "
        f"so nobody knows what was sent.\n      {_where(message.place)}\n"
        "Wait for the handle first, or send a copy: isend(tensor.clone(), ...)."
    )


def overlap(message: Any, other: Any) -> str:
    """A message uses memory that another one in flight still needs."""
    rank, new = message.observer.rank, NAMES[message.kind]
    return (
        f"rank {rank}: {new} {'to' if message.kind == SEND else 'from'} rank {message.peer} uses memory that the "
        f"{_verb(other)} {'to' if other.kind == SEND else 'from'} rank {other.peer} still needs.\n"
        f"      {_where(other.place)}\n      {_where(message.place)}\n"
        "Wait for the first handle before the memory is used again, or receive into another tensor."
    )


def not_waited_for(messages: list[Any]) -> str:
    """Handles that are left when the learner's function returns."""
    lines = []
    for message in messages[:5]:
        way = "to" if message.kind == SEND else "from"
        lines.append(f"      {_verb(message)} {way} rank {message.peer}:  {_where(message.place)}")
    first = messages[0]
    count = f"{len(messages)} handles were" if len(messages) > 1 else f"the handle of {_verb(first)} was"
    headline = f"rank {first.observer.rank}: {count} never waited for, so the data may never arrive."
    return "\n".join([headline, *lines, "Keep the handle and call wait() before the function returns."])
