"""Times that one rank leaves for another: of a message, when it arrives, or since when its receiver has asked for it.

They do not travel with the messages. For each pair of ranks there is a ring in shared memory with one writer and one
reader, so nothing is locked. A note carries its message's channel (group and tag) and number there: tags may come
out of order, and a receive from anyone looks its note up when it knows the sender.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

from picolib.launch.slot import U64

NOTES = 512  # how many messages of one rank to another may be on their way at once
_NOTE = struct.Struct("<QQd")  # channel, number, time
RING_BYTES = 8 + _NOTE.size * NOTES


class Notes:
    """What this rank leaves, and what it finds, in the rings that start at `offset` of the shared memory."""

    def __init__(self, memory: Any, offset: int, rank: int, world_size: int) -> None:
        self.memory, self.offset, self.rank, self.world_size = memory, offset, rank, world_size
        self.read = [0] * world_size  # how many notes of each rank have been read
        self.known: dict[tuple[int, int, int], float] = {}  # those of them that nobody has asked for
        self.lock = threading.Lock()  # for the threads of this rank

    @staticmethod
    def bytes(world_size: int) -> int:
        """The memory for the rings between all ranks; a page that nobody has written costs nothing."""
        return world_size**2 * RING_BYTES

    def leave(self, reader: int, channel: int, number: int, moment: float) -> None:
        """Tell rank `reader` a time. (First the note, then the counter that announces it.)"""
        ring = self._ring(self.rank, reader)
        with self.lock:
            (count,) = U64.unpack_from(self.memory, ring)
            _NOTE.pack_into(self.memory, ring + 8 + count % NOTES * _NOTE.size, channel, number, moment)
            U64.pack_into(self.memory, ring, count + 1)

    def find(self, writer: int, channel: int, number: int) -> float | None:
        """What rank `writer` has told, once; None where there is no such note, or no longer."""
        with self.lock:
            self._read(writer)
            return self.known.pop((writer, channel, number), None)

    def _read(self, writer: int) -> None:
        ring = self._ring(writer, self.rank)
        (count,) = U64.unpack_from(self.memory, ring)
        for index in range(max(self.read[writer], count - NOTES), count):
            channel, number, moment = _NOTE.unpack_from(self.memory, ring + 8 + index % NOTES * _NOTE.size)
            self.known[writer, channel, number] = moment
        self.read[writer] = count

    def _ring(self, writer: int, reader: int) -> int:
        return self.offset + (writer * self.world_size + reader) * RING_BYTES
