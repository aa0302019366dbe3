"""Writing one's own slot of the board, and reading everybody's (the layout stands in `board.py`).

The order of writes is what readers rely on: an entry first, then the counter that announces it; a
wait's fields first, then its id. An entry that was overwritten by a later lap of its ring shows
another number, and a text another hash: then the reader answers "unknown", never something wrong.
"""

from __future__ import annotations

import hashlib
import struct
import time
from typing import NamedTuple

from picolib.launch.board import (
    CALL_RECV,
    CHANNEL,
    COLLECTIVE,
    COLLECTIVE_CHANNELS,
    COMPLAINT_BYTES,
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    MESSAGE_CHANNELS,
    RUNNING,
    TALLIED,
    TEXT_BYTES,
    WAIT,
    WAITS,
    Board,
)

_U32, _U64, _I32 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<i")
_STATE, _FREE, _PROGRESS, _COLLECTIVES, _MESSAGES, _OVERFLOW, _COMPLAINT = 0, 4, 8, 16, 20, 24, 32  # header fields


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


class Writer:
    """The only writer of a slot. Callers hold a lock where several threads of the rank may write."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.layout, self.memory = board, rank, board.layout, board.memory
        self.base = self.layout.start(rank)
        self.progress = 0
        self.used = {True: 0, False: 0}
        self.texts: dict[str, Text] = {}
        self.text_end = 0
        self.set_state(RUNNING)

    def set_state(self, state: int) -> None:
        """RUNNING, RETURNED (the learner's function is through) or ENDED."""
        _U32.pack_into(self.memory, self.base + _STATE, state)
        self.step()

    def step(self) -> None:
        """Something has happened."""
        self.progress += 1
        _U64.pack_into(self.memory, self.base + _PROGRESS, self.progress)

    def set_free_threads(self, count: int) -> None:
        """How many threads of this rank may still start some communication."""
        _I32.pack_into(self.memory, self.base + _FREE, count)

    def text(self, text: str) -> Text:
        """Write a text once and give its name; when the area is full it starts anew."""
        known = self.texts.get(text)
        return known if known is not None else self._new_text(text)

    def _new_text(self, text: str) -> Text:
        data = text.encode("utf-8", "replace")[:8000]
        if self.text_end + len(data) + 4 > TEXT_BYTES:
            self.texts.clear()
            self.text_end = 0
        start = self.base + self.layout.texts + self.text_end
        _U32.pack_into(self.memory, start, len(data))
        self.memory[start + 4 : start + 4 + len(data)] = data
        name = self.texts[text] = Text(self.text_end, text_hash(data))
        self.text_end += 4 + len(data)
        return name

    def open_channel(self, kind: int, group: int, peer: int, tag: int, members: Text) -> int | None:
        """A new channel's index, or None when all are in use (then readers know that they can't know)."""
        collective = kind == COLLECTIVE
        index = self.used[collective]
        if index >= (COLLECTIVE_CHANNELS if collective else MESSAGE_CHANNELS):
            _U32.pack_into(self.memory, self.base + _OVERFLOW, 1)
            return None
        where = self.layout.channel(self.rank, kind, index)
        CHANNEL.pack_into(self.memory, where, 0, kind, 0, group, peer, tag, members.offset, 0, members.hash)
        self.used[collective] = index + 1
        _U32.pack_into(self.memory, self.base + (_COLLECTIVES if collective else _MESSAGES), index + 1)
        return index

    def post(
        self,
        kind: int,
        index: int,
        number: int,
        signature: Text,
        *,
        stack: int = 0,
        place: Text = NO_TEXT,
        detail: Text = NO_TEXT,
        flags: int = 0,
        nbytes: int = 0,
    ) -> None:
        """Write entry `number` of a channel, then raise its counter."""
        where = self.layout.entry(self.rank, kind, index, number)
        ENTRY.pack_into(
            self.memory, where, number + 1, signature.hash, stack, place.hash,
            signature.offset, place.offset, detail.offset, flags, nbytes, detail.hash,
        )  # fmt: skip
        if kind == COLLECTIVE and flags & TALLIED:
            start = where + ENTRY_SIZE
            self.memory[start : start + self.layout.tally] = bytes(self.layout.tally)
        _U64.pack_into(self.memory, self.layout.channel(self.rank, kind, index), number + 1)
        self.step()

    def tally(self, index: int, number: int, kind: int, peer: int) -> int:
        """Count one more message of a picolib collective to or from `peer`; how many there were before."""
        where = self.layout.entry(self.rank, COLLECTIVE, index, number) + ENTRY_SIZE
        where += 4 * (peer + (self.layout.world_size if kind == CALL_RECV else 0))
        before = _U32.unpack_from(self.memory, where)[0]
        _U32.pack_into(self.memory, where, before + 1)
        self.step()
        return before

    def begin_wait(self, thread: int, kind: int, channel: int, number: int, peer: int, index: int, place: Text) -> None:
        """Thread number `thread` of this rank is blocked from now on (the fields are those of `Wait`)."""
        where = self.layout.wait(self.rank, thread)
        WAIT.pack_into(
            self.memory, where, 0, kind, channel, number, peer, index, place.offset, 0, place.hash, time.monotonic()
        )
        self.step()
        _U64.pack_into(self.memory, where, self.progress)

    def end_wait(self, thread: int) -> None:
        """Thread number `thread` runs again."""
        _U64.pack_into(self.memory, self.layout.wait(self.rank, thread), 0)
        self.step()

    def complain(self, text: str) -> None:
        """Leave the text of a mistake for the launcher."""
        data = text.encode("utf-8", "replace")[: COMPLAINT_BYTES - 4]
        where = self.base + self.layout.complaint
        self.memory[where : where + len(data)] = data
        _U64.pack_into(self.memory, self.base + _COMPLAINT, len(data))


class Reader:
    """Reads the slot of `rank`; remembers which channels it has seen."""

    def __init__(self, board: Board, rank: int) -> None:
        self.rank, self.layout, self.memory = rank, board.layout, board.memory
        self.base = self.layout.start(rank)
        self.channels: dict[tuple[int, int, int, int], Channel] = {}
        self.by_index: dict[tuple[bool, int], Channel] = {}
        self.seen = {True: 0, False: 0}

    def header(self) -> tuple[int, int, int]:
        """(state, threads that may still act, progress)."""
        state, free, progress, *_ = HEADER.unpack_from(self.memory, self.base)
        return state, free, progress

    def overflow(self) -> bool:
        """Whether this rank has conversations that the board could not hold."""
        return _U32.unpack_from(self.memory, self.base + _OVERFLOW)[0] != 0

    def find(self, kind: int, group: int, peer: int = 0, tag: int = 0) -> Channel | None:
        """The channel of that conversation, if the rank has opened it."""
        key = (kind, group, peer, tag)
        found = self.channels.get(key)
        if found is None:
            self._discover(kind == COLLECTIVE)
            found = self.channels.get(key)
        return found

    def all_channels(self) -> list[Channel]:
        """Every conversation of this rank."""
        self._discover(True)
        self._discover(False)
        return list(self.channels.values())

    def channel(self, kind: int, index: int) -> Channel:
        """A channel by its number."""
        self._discover(kind == COLLECTIVE)
        return self.by_index[(kind == COLLECTIVE, index)]

    def _discover(self, collective: bool) -> None:
        used = _U32.unpack_from(self.memory, self.base + (_COLLECTIVES if collective else _MESSAGES))[0]
        for index in range(self.seen[collective], used):
            where = self.layout.channel(self.rank, COLLECTIVE if collective else 0, index)
            _, kind, _, group, peer, tag, offset, _, hash_ = CHANNEL.unpack_from(self.memory, where)
            channel = Channel(index, kind, group, peer, tag, Text(offset, hash_))
            self.channels[(kind, group, peer, tag)] = self.by_index[(collective, index)] = channel
        self.seen[collective] = used

    def count(self, channel: Channel | None) -> int:
        """How many posts a channel has had."""
        if channel is None:
            return 0
        return _U64.unpack_from(self.memory, self.layout.channel(self.rank, channel.kind, channel.index))[0]

    def entry(self, channel: Channel, number: int) -> Entry | None:
        """Post `number` of a channel; None when it does not exist yet or was overwritten."""
        where = self.layout.entry(self.rank, channel.kind, channel.index, number)
        fields = ENTRY.unpack_from(self.memory, where)
        if fields[0] != number + 1 or _U64.unpack_from(self.memory, where)[0] != number + 1:
            return None
        _, signature, stack, place, s, p, d, flags, nbytes, detail = fields
        return Entry(number, Text(s, signature), stack, Text(p, place), Text(d, detail), flags, nbytes)

    def tally(self, channel: Channel, number: int, kind: int, peer: int) -> int | None:
        """Messages of a picolib collective that this rank has posted to or from `peer`; None when unknown."""
        entry = self.entry(channel, number)
        if entry is None or not entry.flags & TALLIED:
            return None
        where = self.layout.entry(self.rank, COLLECTIVE, channel.index, number) + ENTRY_SIZE
        where += 4 * (peer + (self.layout.world_size if kind == CALL_RECV else 0))
        return _U32.unpack_from(self.memory, where)[0]

    def waits(self) -> list[Wait]:
        """What the threads of this rank are blocked on."""
        waits = []
        for thread in range(WAITS):
            where = self.layout.wait(self.rank, thread)
            id_, kind, channel, number, peer, index, offset, _, hash_, since = WAIT.unpack_from(self.memory, where)
            if id_ and _U64.unpack_from(self.memory, where)[0] == id_:
                waits.append(Wait(id_, kind, channel, number, peer, index, Text(offset, hash_), since))
        return waits

    def text(self, name: Text) -> str | None:
        """The text behind a name; None when it has been overwritten since."""
        if not name.hash or name.offset + 4 > TEXT_BYTES:
            return None
        start = self.base + self.layout.texts + name.offset
        size = _U32.unpack_from(self.memory, start)[0]
        data = bytes(self.memory[start + 4 : start + 4 + min(size, 8000)])
        return data.decode("utf-8", "replace") if text_hash(data) == name.hash else None

    def complaint(self) -> str | None:
        """The mistake that this rank has found, if any."""
        size = _U64.unpack_from(self.memory, self.base + _COMPLAINT)[0]
        where = self.base + self.layout.complaint
        return bytes(self.memory[where : where + size]).decode("utf-8", "replace") if size else None
