"""Writing one's own slot of the board."""

from __future__ import annotations

import struct
import time
from typing import Any

from picolib.launch import slot
from picolib.launch.board import (
    CHANNEL,
    COLLECTIVE,
    COLLECTIVE_CHANNELS,
    COMPLAINT_BYTES,
    ENTRY,
    MESSAGE_CHANNELS,
    RUNNING,
    TALLIED,
    TEXT_BYTES,
    WAIT,
    WAITS,
    Board,
)
from picolib.launch.slot import I32, NO_TEXT, PAIR, U32, U64, Text, text_hash


class Writer:
    """The only writer of a slot. Callers hold a lock where several threads of the rank may write."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.layout, self.memory = board, rank, board.layout, board.memory
        self.base = self.layout.start(rank)
        self.progress = 0
        self.progress_at = self.base + slot.PROGRESS
        self.wait_at = [self.layout.wait(rank, thread) for thread in range(WAITS)]
        self.used = {True: 0, False: 0}
        self.texts: dict[str, Text] = {}
        self.text_end, self.text_lap = 0, 0
        self.tallied_entry = struct.Struct(f"{ENTRY.format}{self.layout.tally}x")  # with nothing tallied yet
        self.set_state(RUNNING)

    def set_state(self, state: int) -> None:
        """RUNNING, RETURNED (the learner's function is through) or ENDED."""
        U32.pack_into(self.memory, self.base + slot.STATE, state)
        self.step()

    def step(self) -> None:
        """Something has happened."""
        self.progress += 1
        U64.pack_into(self.memory, self.progress_at, self.progress)

    def set_free_threads(self, count: int) -> None:
        """How many threads of this rank may still start some communication."""
        I32.pack_into(self.memory, self.base + slot.FREE, count)

    def set_issued(self, count: int) -> None:
        """How many collectives torch has started in the world group, as of now."""
        PAIR.pack_into(self.memory, self.base + slot.ISSUED, count, self.progress)

    def text(self, text: str) -> Text:
        """Write a text once and give its name; when the area is full it starts anew."""
        known = self.texts.get(text)
        return known if known is not None else self._new_text(text)

    def _new_text(self, text: str) -> Text:
        data = text.encode("utf-8", "replace")[:8000]
        if self.text_end + len(data) + 4 > TEXT_BYTES:
            self.texts.clear()
            self.text_end = 0
            self.text_lap += 1
        start = self.base + self.layout.texts + self.text_end
        U32.pack_into(self.memory, start, len(data))
        self.memory[start + 4 : start + 4 + len(data)] = data
        name = self.texts[text] = Text(self.text_end, text_hash(data))
        self.text_end += 4 + len(data)
        return name

    def open_channel(self, kind: int, group: int, peer: int, tag: int, members: Text) -> int | None:
        """A new channel's index, or None when all are in use (then readers know that they can't know)."""
        collective = kind == COLLECTIVE
        index = self.used[collective]
        if index >= (COLLECTIVE_CHANNELS if collective else MESSAGE_CHANNELS):
            U32.pack_into(self.memory, self.base + slot.OVERFLOW, 1)
            return None
        where = self.layout.channel(self.rank, kind, index)
        CHANNEL.pack_into(self.memory, where, 0, kind, 0, group, peer, tag, members.offset, 0, members.hash)
        self.used[collective] = index + 1
        U32.pack_into(self.memory, self.base + (slot.COLLECTIVES if collective else slot.MESSAGES), index + 1)
        return index

    def post(
        self,
        lane: Any,
        number: int,
        signature: Text,
        stack: int = 0,
        place: Text = NO_TEXT,
        detail: Text = NO_TEXT,
        flags: int = 0,
        nbytes: int = 0,
    ) -> None:
        """Write entry `number` of a channel (an `announce.Lane`), then raise its counter."""
        where = lane.ring + number % lane.length * lane.entry_size
        entry = self.tallied_entry if flags & TALLIED else ENTRY
        entry.pack_into(
            self.memory, where, number + 1, signature.hash, stack, place.hash,
            signature.offset, place.offset, detail.offset, flags, nbytes, detail.hash,
        )  # fmt: skip
        U64.pack_into(self.memory, lane.counter, number + 1)
        self.step()

    def tally(self, where: int, receives: bool, peer: int) -> int:
        """Count one more message of a picolib collective to or from `peer`; how many there were before.

        `where` is the offset behind the collective's entry (`announce.Post.tally`).
        """
        where += 4 * (peer + self.layout.world_size if receives else peer)
        before = U32.unpack_from(self.memory, where)[0]
        U32.pack_into(self.memory, where, before + 1)
        self.step()
        return before

    def begin_wait(
        self, thread: int, kind: int, channel: int, number: int, peer: int, index: int, place: Text, since: float = 0.0
    ) -> None:
        """Thread number `thread` of this rank is blocked (the fields are those of `Wait`; `since` 0: from now on)."""
        where, since = self.wait_at[thread], since or time.monotonic()
        WAIT.pack_into(self.memory, where, 0, kind, channel, number, peer, index, place.offset, 0, place.hash, since)
        self.step()
        U64.pack_into(self.memory, where, self.progress)

    def end_wait(self, thread: int) -> None:
        """Thread number `thread` runs again."""
        U64.pack_into(self.memory, self.wait_at[thread], 0)
        self.step()

    def complain(self, text: str) -> None:
        """Leave the text of a mistake for the launcher."""
        data = text.encode("utf-8", "replace")[: COMPLAINT_BYTES - 4]
        where = self.base + self.layout.complaint
        self.memory[where : where + len(data)] = data
        U64.pack_into(self.memory, self.base + slot.COMPLAINT, len(data))
