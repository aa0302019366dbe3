"""The board: memory that all ranks share, where each notes what it does and waits for.

One slot per rank. A rank writes its own slot only, and everybody reads all of them, so no lock is
shared between processes: a rank that dies while writing can block nobody. What makes unlocked
reading right is that everything a decision rests on only grows (counters), or carries its own
number or hash, which the reader compares (entries, texts). `slot.py` writes and reads a slot.

A slot, from its start:

    header      state, progress, how many channels are in use, ...
    waits       one record per thread of the rank that is blocked
    channels    one per conversation; its counter says how many posts it had, its ring keeps the last
                ones. A conversation is "collectives of this group", "messages that I send to rank 3 in
                this group under tag 0", or "messages that I receive from ...".
    complaint   the text of a mistake that this rank has found
    texts       shapes, lines of code and so on, each written once and then named by (offset, hash)

The file is sparse: a page that nobody has written costs nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile

WAITS = 8  # threads of one rank that can be blocked at once; the last place is for OPAQUE
COLLECTIVE_CHANNELS = 64  # process groups per rank
MESSAGE_CHANNELS = 512  # combinations of (direction, group, peer, tag)
COLLECTIVE_RING = 64  # how far one rank can run ahead and still be compared
MESSAGE_RING = 16
COMPLAINT_BYTES = 16 * 1024
TEXT_BYTES = 1024 * 1024

RUNNING, RETURNED, ENDED = 1, 2, 3  # the state of a rank
COLLECTIVE, SEND, RECV = 1, 2, 3  # the kinds of channel, and of wait
ANY_RANK = -1  # the peer of a receive that takes whatever comes
CALL_SEND, CALL_RECV = 4, 5  # further kinds of wait: for a message inside a collective of picolib
OPAQUE = 6  # and: inside torch's own C++ code
TALLIED, DIRECT = 1, 2  # flags of an entry: its messages are counted one by one; the learner made the call

# state, threads that may still act, progress, channels in use (collectives, messages), overflow, -, complaint's length,
# collectives that torch has started in the world group (as of which progress)
HEADER = struct.Struct("<IiQIIIIQQQ")
# id, kind, channel, number, peer, index in call, place (offset, -, hash), since
WAIT = struct.Struct("<QIIQqQIIQd")
# count, kind, -, group, peer, tag, members (offset, -, hash)
CHANNEL = struct.Struct("<QIIQqqIIQ")
# number + 1, signature, stack, place (hashes), signature, place, detail (offsets), flags, bytes, detail (hash)
ENTRY = struct.Struct("<QQQQIIIIQQ")
HEADER_SIZE = WAIT_SIZE = CHANNEL_SIZE = ENTRY_SIZE = 64
assert max(s.size for s in (HEADER, WAIT, CHANNEL, ENTRY)) <= 64


class Layout:
    """Where everything is, for a world size (bytes from the start of the board)."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.tally = 8 * world_size  # per collective of picolib: messages sent to and received from each rank (u32)
        self.collective_entry = ENTRY_SIZE + self.tally
        self.collective_channel = CHANNEL_SIZE + COLLECTIVE_RING * self.collective_entry
        self.message_channel = CHANNEL_SIZE + MESSAGE_RING * ENTRY_SIZE
        self.collectives = HEADER_SIZE + WAITS * WAIT_SIZE
        self.messages = self.collectives + COLLECTIVE_CHANNELS * self.collective_channel
        self.complaint = self.messages + MESSAGE_CHANNELS * self.message_channel
        self.texts = self.complaint + COMPLAINT_BYTES
        end = self.texts + TEXT_BYTES
        self.slot = (end + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self.size = self.slot * world_size

    def start(self, rank: int) -> int:
        """Offset of the slot of `rank`."""
        return rank * self.slot

    def wait(self, rank: int, index: int) -> int:
        """Offset of a record in the table of blocked threads."""
        return self.start(rank) + HEADER_SIZE + index * WAIT_SIZE

    def channel(self, rank: int, kind: int, index: int) -> int:
        """Offset of a channel; collectives and messages are numbered separately."""
        if kind == COLLECTIVE:
            return self.start(rank) + self.collectives + index * self.collective_channel
        return self.start(rank) + self.messages + index * self.message_channel

    def lane(self, rank: int, kind: int, index: int) -> tuple[int, int, int, int]:
        """A channel's counter and first entry (offsets), the size of an entry, and how many its ring has."""
        start = self.channel(rank, kind, index)
        size, length = (self.collective_entry, COLLECTIVE_RING) if kind == COLLECTIVE else (ENTRY_SIZE, MESSAGE_RING)
        return start, start + CHANNEL_SIZE, size, length

    def entry(self, rank: int, kind: int, index: int, number: int) -> int:
        """Offset of the ring's entry for post `number` of a channel."""
        _, ring, size, length = self.lane(rank, kind, index)
        return ring + number % length * size


class Board:
    """The shared memory itself. The launcher creates it, ranks attach to it by its file descriptor."""

    def __init__(self, fd: int, world_size: int) -> None:
        self.fd = fd
        self.world_size = world_size
        self.layout = Layout(world_size)
        self.memory = mmap.mmap(fd, self.layout.size)

    @classmethod
    def create(cls, world_size: int) -> Board:
        """A new, empty board; its file has no name, so nothing is left when the last process has gone."""
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, Layout(world_size).size)
            return cls(fd, world_size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, world_size: int) -> Board:
        """The board behind an inherited file descriptor (which stays the caller's to close)."""
        return cls(fd, world_size)

    def progress(self) -> int:
        """A number that grows whenever any rank posts something or stops waiting."""
        starts = (self.layout.start(rank) for rank in range(self.world_size))
        return sum(HEADER.unpack_from(self.memory, start)[2] for start in starts)

    def close(self, close_fd: bool = True) -> None:
        """Give the memory back; with `close_fd` the file descriptor too. Closing twice is harmless."""
        if not self.memory.closed:
            self.memory.close()
        if close_fd and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    """Memory on Linux; elsewhere a temporary file whose name is removed at once."""
    if hasattr(os, "memfd_create") and sys.platform == "linux":
        return os.memfd_create("picolib-board")
    fd, path = tempfile.mkstemp(prefix="picolib-board-")
    os.unlink(path)
    return fd
