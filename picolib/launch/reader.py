"""Reading any rank's slot of the board."""

from __future__ import annotations

from picolib.launch import slot
from picolib.launch.board import (
    CALL_RECV,
    CHANNEL,
    COLLECTIVE,
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    TALLIED,
    TEXT_BYTES,
    WAIT,
    WAITS,
    Board,
)
from picolib.launch.slot import PAIR, U32, U64, Channel, Entry, Text, Wait, text_hash


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

    def issued(self) -> int | None:
        """Collectives that torch has started in the world group; None when that isn't known for this moment."""
        count, progress = PAIR.unpack_from(self.memory, self.base + slot.ISSUED)
        return count if progress == self.header()[2] else None

    def overflow(self) -> bool:
        """Whether this rank has conversations that the board could not hold."""
        return U32.unpack_from(self.memory, self.base + slot.OVERFLOW)[0] != 0

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
        used = U32.unpack_from(self.memory, self.base + (slot.COLLECTIVES if collective else slot.MESSAGES))[0]
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
        return U64.unpack_from(self.memory, self.layout.channel(self.rank, channel.kind, channel.index))[0]

    def entry(self, channel: Channel, number: int) -> Entry | None:
        """Post `number` of a channel; None when it does not exist yet or was overwritten."""
        where = self.layout.entry(self.rank, channel.kind, channel.index, number)
        fields = ENTRY.unpack_from(self.memory, where)
        if fields[0] != number + 1 or U64.unpack_from(self.memory, where)[0] != number + 1:
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
        return U32.unpack_from(self.memory, where)[0]

    def waits(self) -> list[Wait]:
        """What the threads of this rank are blocked on."""
        waits = []
        for thread in range(WAITS):
            where = self.layout.wait(self.rank, thread)
            id_, kind, channel, number, peer, index, offset, _, hash_, since = WAIT.unpack_from(self.memory, where)
            if id_ and U64.unpack_from(self.memory, where)[0] == id_:
                waits.append(Wait(id_, kind, channel, number, peer, index, Text(offset, hash_), since))
        return waits

    def text(self, name: Text) -> str | None:
        """The text behind a name; None when it has been overwritten since."""
        if not name.hash or name.offset + 4 > TEXT_BYTES:
            return None
        start = self.base + self.layout.texts + name.offset
        size = U32.unpack_from(self.memory, start)[0]
        data = bytes(self.memory[start + 4 : start + 4 + min(size, 8000)])
        return data.decode("utf-8", "replace") if text_hash(data) == name.hash else None

    def complaint(self) -> str | None:
        """The mistake that this rank has found, if any."""
        size = U64.unpack_from(self.memory, self.base + slot.COMPLAINT)[0]
        where = self.base + self.layout.complaint
        return bytes(self.memory[where : where + size]).decode("utf-8", "replace") if size else None
