"""Messages that take as long as their links say: queues that all ranks share, and a stamp for every message.

The sender books its message on the two queues of its way (`Links.path`), each first come, first served, and writes
down when it will arrive, before the backend has it. Both ends sleep until then: sending is over when the message is
there. The stamp does not travel with the message: it stands in memory that all ranks share, in a ring for each pair
of ranks, under the message's channel (group and tag) and its number there. So tags may come out of order, and a
receive from anyone looks its stamp up when it knows the sender. A lock that the system takes away from a process
that dies guards the queues; a ring has one writer and one reader.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import defaultdict
from typing import Any

import torch.distributed as dist

from picolib.launch.board import RECV, SEND
from picolib.launch.clock import Clock
from picolib.launch.links import Links
from picolib.launch.slot import U64, text_hash

current: Network | None = None  # this rank's, in a run with links

BOOKINGS = 128  # of a queue; with more of them, the first gaps are forgotten
STAMPS = 1024  # how many messages of one rank to another may be on their way at once
FORGET_SECONDS = 1.0  # a queue's past that nobody can book any more
_STAMP = struct.Struct("<QQd")  # channel, number, arrival
_QUEUE_BYTES = 8 + 16 * BOOKINGS
_RING_BYTES = 8 + _STAMP.size * STAMPS


def fit(booked: list[tuple[float, float]], earliest: float, seconds: float) -> float:
    """The first moment, not before `earliest`, from which a queue is free for so long. `booked`: sorted (start, end).

    >>> fit([(1.0, 2.0), (3.0, 4.0)], 0.5, 1.0)
    2.0
    """
    for start, end in booked:
        if earliest + seconds <= start:
            break
        earliest = max(earliest, end)
    return earliest


class Network:
    """One rank's access to the links of its run.

    path: of the file that all ranks map; it is made by whoever comes first, and goes with the run's folder.
    """

    def __init__(self, path: str, links: Links, rank: int) -> None:
        self.links, self.rank, self.clock = links, rank, Clock()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        size = links.queues * _QUEUE_BYTES + links.world_size**2 * _RING_BYTES
        os.ftruncate(self.file, size)  # holes are zeros, and cost nothing
        self.memory = mmap.mmap(self.file, size)
        self.numbers: defaultdict[tuple, int] = defaultdict(int)  # of messages on each (direction, peer, channel)
        self.read = [0] * links.world_size  # how many stamps of each sender have been read
        self.stamps: dict[tuple[int, int, int], float] = {}  # of those, the ones that nobody has asked for
        self.mutex = threading.Lock()

    def next_number(self, direction: int, peer: int, channel: int) -> int:
        """How many of the learner's own messages came before on this channel."""
        self.numbers[direction, peer, channel] += 1
        return self.numbers[direction, peer, channel] - 1

    def depart(self, target: int, nbytes: int, channel: int, number: int, at: float) -> float:
        """Send a message at time `at`, as soon as its way is free; return when it arrives."""
        link = self.links.between(self.rank, target)
        start, seconds = at, nbytes / link.bandwidth
        with self.mutex, _Locked(self.file):
            for queue in self.links.path(self.rank, target):
                start = self._book(queue, start, seconds)
        arrival = start + seconds + link.latency
        ring = self._ring(self.rank, target)
        (count,) = U64.unpack_from(self.memory, ring)
        _STAMP.pack_into(self.memory, ring + 8 + count % STAMPS * _STAMP.size, channel, number, arrival)
        U64.pack_into(self.memory, ring, count + 1)
        return arrival

    def _book(self, queue: int, earliest: float, seconds: float) -> float:
        """Take the first stretch of a queue that is free for so long; return its start."""
        where = queue * _QUEUE_BYTES
        (count,) = U64.unpack_from(self.memory, where)
        times = struct.unpack_from(f"<{2 * count}d", self.memory, where + 8)
        old = time.monotonic() - FORGET_SECONDS
        booked = [pair for pair in zip(times[::2], times[1::2], strict=True) if pair[1] > old]
        start = fit(booked, earliest, seconds)
        booked = joined(sorted([*booked, (start, start + seconds)]))
        struct.pack_into(f"<{2 * len(booked)}d", self.memory, where + 8, *[t for pair in booked for t in pair])
        U64.pack_into(self.memory, where, len(booked))
        return start

    def arrival(self, source: int, channel: int, number: int) -> float:
        """When a message arrives that the backend has delivered already; now, if its stamp has been overwritten."""
        with self.mutex:
            self._read_stamps(source)
            return self.stamps.pop((source, channel, number), time.monotonic())

    def _read_stamps(self, source: int) -> None:
        ring = self._ring(source, self.rank)
        (count,) = U64.unpack_from(self.memory, ring)
        for index in range(max(self.read[source], count - STAMPS), count):
            channel, number, arrival = _STAMP.unpack_from(self.memory, ring + 8 + index % STAMPS * _STAMP.size)
            self.stamps[source, channel, number] = arrival
        self.read[source] = count

    def _ring(self, source: int, target: int) -> int:
        place = source * self.links.world_size + target
        return self.links.queues * _QUEUE_BYTES + place * _RING_BYTES


def joined(booked: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Bookings with those that touch made one, and no more of them than there is room for."""
    result: list[tuple[float, float]] = []
    for start, end in booked:
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    while len(result) > BOOKINGS:
        result[:2] = [(result[0][0], result[1][1])]
    return result


class Delay:
    """One message on its way, at either end: when it arrives, and sleeping until then."""

    __slots__ = ("network", "clock", "source", "channel", "number", "group", "_arrival")

    def __init__(self, network: Network, clock: Clock, source: int, channel: int, number: int) -> None:
        self.network, self.clock = network, clock
        self.source, self.channel, self.number = source, channel, number
        self.group: Any = None  # of a receive from anyone
        self._arrival: float | None = None

    @classmethod
    def sent(
        cls, network: Network, clock: Clock, target: int, nbytes: int, channel: int, number: int
    ) -> Delay:  # fmt: skip
        """For a message that leaves now."""
        delay = cls(network, clock, network.rank, channel, number)
        delay._arrival = network.depart(target, nbytes, channel, number, clock.now())
        return delay

    def arrival(self) -> float:
        """When it arrives. A receiver may ask as soon as the backend has delivered the message."""
        if self._arrival is None:
            self._arrival = self.network.arrival(self.source, self.channel, self.number)
        return self._arrival

    def is_over(self) -> bool:
        """Whether it has arrived; asked by a receiver, once the backend has delivered it."""
        return time.monotonic() >= self.arrival()

    def wait(self) -> None:
        """Sleep until it arrives, and set the clock."""
        sleep_until(self.arrival())
        self.clock.reach(self.arrival())


def of_learner(kind: int, tensor: Any, group: Any, peer: int, tag: int) -> Delay | None:
    """The delay of a message that the learner sends to or receives from global rank `peer`; None without links.

    A receive from anyone (peer -1) is told by `came_from` whose message it was.
    """
    if current is None:
        return None
    channel = channel_of(group, tag)
    if kind == SEND:
        nbytes, number = tensor.numel() * tensor.element_size(), current.next_number(SEND, peer, channel)
        return Delay.sent(current, current.clock, peer, nbytes, channel, number)
    number = current.next_number(RECV, peer, channel) if peer >= 0 else -1
    delay = Delay(current, current.clock, peer, channel, number)
    delay.group = group
    return delay


def came_from(delay: Delay, place: int) -> None:
    """A receive from anyone has got its message from this place in the group."""
    delay.source = dist.get_global_rank(delay.group, place)
    delay.number = delay.network.next_number(RECV, delay.source, delay.channel)


def channel_of(group: Any, tag: int) -> int:
    """A number for (group, tag) that is the same on all ranks."""
    return text_hash(f"{group.group_name}|{tag}".encode())


def sleep_until(moment: float) -> None:
    """Sleep until `time.monotonic()` is `moment`, if it is not past."""
    from picolib.launch import monitor

    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 1.0))
        monitor.goes_on()


def start(spec: list[Any] | None, path: str, rank: int) -> None:
    """Called once in each rank, before the learner's function: with the links of the run, or None."""
    global current
    current = None if spec is None else Network(path, Links(*spec), rank)


def refuse(name: str) -> None:
    """torch's own collectives would cross no link, and take no time: RuntimeError that names picolib's."""
    raise RuntimeError(
        f"{name}: torch's own collectives do not cross the links of this run; call picolib.comm.{name}, "
        'with algorithm="ring" or any other but "native"'
    )


class _Locked:
    """Context manager: no other process is inside. The system gives the lock back when its process dies."""

    def __init__(self, file: int) -> None:
        self.file = file

    if os.name == "nt":

        def __enter__(self) -> None:
            import msvcrt

            os.lseek(self.file, 0, os.SEEK_SET)
            msvcrt.locking(self.file, msvcrt.LK_LOCK, 1)

        def __exit__(self, *exc: object) -> None:
            import msvcrt

            os.lseek(self.file, 0, os.SEEK_SET)
            msvcrt.locking(self.file, msvcrt.LK_UNLCK, 1)

    else:

        def __enter__(self) -> None:
            import fcntl

            fcntl.lockf(self.file, fcntl.LOCK_EX)

        def __exit__(self, *exc: object) -> None:
            import fcntl

            fcntl.lockf(self.file, fcntl.LOCK_UN)
