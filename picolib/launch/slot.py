"""What stands in a slot of the board: the records that `writer.py` writes and `reader.py` reads.

The order of writes is what readers rely on: an entry first, then the counter that announces it; a
wait's fields first, then its id. An entry that was overwritten by a later lap of its ring shows
another number, and a text another hash: then the reader answers "unknown", never something wrong.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

U32, U64, I32, PAIR = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<i"), struct.Struct("<QQ")

# Offsets of the header's fields (board.HEADER).
STATE, FREE, PROGRESS, COLLECTIVES, MESSAGES, OVERFLOW, COMPLAINT, ISSUED = 0, 4, 8, 16, 20, 24, 32, 40


class Text(NamedTuple):
    """A text of the board: where it stands in the slot's text area, and its hash."""

    offset: int
    hash: int


NO_TEXT = Text(0, 0)


class Channel(NamedTuple):
    """A conversation, as a reader sees it: `peer` and `tag` are 0 for collectives."""

    index: int
    kind: int
    group: int
    peer: int
    tag: int
    members: Text


class Entry(NamedTuple):
    """One post of a channel."""

    number: int
    signature: Text
    stack: int
    place: Text
    detail: Text
    flags: int
    nbytes: int


class Wait(NamedTuple):
    """What a thread is blocked on: post `number` of a channel, or message `index` of that collective."""

    id: int
    kind: int
    channel: int
    number: int
    peer: int
    index: int
    place: Text
    since: float


def text_hash(data: bytes) -> int:
    """A 64-bit hash that is the same in every process (Python's own is salted)."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1
