"""Messages that take as long as their links say.

The sender books its message on the queues of its way (`queues.py`) and leaves a note of when it will arrive
(`notes.py`), before the backend has it. It travels at once, whether anybody has asked for it or not. Receiving is over
when it has arrived; sending is over when it has arrived and its receiver has asked for it. Both ends sleep until then.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist

from picolib.launch.board import RECV, SEND
from picolib.launch.clock import Clock
from picolib.launch.links import Links
from picolib.launch.notes import Notes
from picolib.launch.queues import QUEUE_BYTES, Queues
from picolib.launch.slot import text_hash

MOMENT = struct.Struct("d")
READY_SECONDS = 5.0  # how long a rank waits at its start for the others
NOTICE_SECONDS = 0.02  # from when the last rank is ready until all start: time to notice

current: Network | None = None  # this rank's, in a run with links


class Network:
    """One rank's access to the links of its run.

    path: of the file that all ranks map; whoever comes first makes it, and it goes with the run's folder.
    """

    def __init__(self, path: str, links: Links, rank: int) -> None:
        self.links, self.rank, self.clock = links, rank, Clock()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        size, queues = links.world_size, links.queues * QUEUE_BYTES
        self.ready = queues + 2 * Notes.bytes(size)  # where each rank writes when it was ready to start
        whole = self.ready + MOMENT.size * size
        os.ftruncate(self.file, whole)  # holes are zeros
        self.memory = mmap.mmap(self.file, whole)
        self.queues = Queues(self.file, self.memory)
        self.arrivals = Notes(self.memory, queues, rank, size)
        self.asked = Notes(self.memory, queues + Notes.bytes(size), rank, size)
        self.numbers: defaultdict[tuple, int] = defaultdict(int)  # of messages on each (direction, peer, channel)
        self.lock = threading.Lock()

    def next_number(self, direction: int, peer: int, channel: int) -> int:
        """How many of the learner's own messages came before on this channel."""
        with self.lock:
            self.numbers[direction, peer, channel] += 1
            return self.numbers[direction, peer, channel] - 1

    def common_start(self) -> float:
        """A moment, the same on all ranks, shortly after the last of them was ready; sleeps until then.

        A rank that does not come is waited for in vain for some seconds: what keeps it is for others to tell.
        """
        MOMENT.pack_into(self.memory, self.ready + MOMENT.size * self.rank, time.monotonic())
        end, moments = self.ready + MOMENT.size * self.links.world_size, [0.0]
        give_up = time.monotonic() + READY_SECONDS
        while 0.0 in moments and time.monotonic() < give_up:
            moments = [moment for (moment,) in MOMENT.iter_unpack(self.memory[self.ready : end])]
            time.sleep(0.001)
        moment = max(moments) + NOTICE_SECONDS
        sleep_until(moment)
        return moment

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()
        os.close(self.file)


class Sent:
    """A message that this rank sends, from its start to its end.

    peer: a rank of the world. channel, number: which message it is, counted alike on both sides (`channel_of`).
    """

    __slots__ = ("network", "clock", "peer", "channel", "number", "arrival", "end")

    def __init__(self, network: Network, clock: Clock, peer: int, nbytes: int, channel: int, number: int) -> None:
        self.network, self.clock, self.peer, self.channel, self.number = network, clock, peer, channel, number
        link = network.links.between(network.rank, peer)
        seconds = nbytes / link.bandwidth
        through = network.queues.book(network.links.path(network.rank, peer), clock.now(), seconds)
        self.arrival = self.end = through + link.latency
        network.arrivals.leave(peer, channel, number, self.arrival)

    def is_over(self) -> bool:
        """Whether the message is there, as far as its links go."""
        return time.monotonic() >= self.arrival

    def wait(self) -> None:
        """Once the backend is through with it: sleep until it is over, and set the clock."""
        asked = self.network.asked.find(self.peer, self.channel, self.number)
        self.end = self.arrival if asked is None else max(self.arrival, asked)
        sleep_until(self.end)
        self.clock.reach(self.end)


class Received:
    """A message that this rank receives, from asking for it to its arrival. peer, channel, number: as of `Sent`."""

    __slots__ = ("network", "clock", "peer", "channel", "number", "arrival")

    def __init__(self, network: Network, clock: Clock, peer: int, channel: int, number: int) -> None:
        self.network, self.clock, self.peer, self.channel, self.number = network, clock, peer, channel, number
        self.arrival: float | None = None
        network.asked.leave(peer, channel, number, clock.now())

    @property
    def end(self) -> float:
        """When it arrives; asked once the backend has delivered it. Now, if its note has been overwritten."""
        if self.arrival is None:
            found = self.network.arrivals.find(self.peer, self.channel, self.number)
            self.arrival = time.monotonic() if found is None else found
        return self.arrival

    def is_over(self) -> bool:
        """Whether it has arrived; asked once the backend has delivered it."""
        return time.monotonic() >= self.end

    def wait(self) -> None:
        """Once the backend has delivered it: sleep until it arrives, and set the clock."""
        sleep_until(self.end)
        self.clock.reach(self.end)


class ReceivedFromAnyone(Received):
    """A message of whoever sends first: only `came_from` tells whose. So no sender sees when it was asked for."""

    __slots__ = ("group",)

    def __init__(self, network: Network, group: Any, channel: int) -> None:
        self.network, self.clock, self.channel = network, network.clock, channel
        self.group, self.arrival = group, None

    def came_from(self, place: int) -> None:
        """It came from this place in the group."""
        self.peer = dist.get_global_rank(self.group, place)
        self.number = self.network.next_number(RECV, self.peer, self.channel)


Delay = Sent | Received


def of_learner(kind: int, tensor: Any, group: Any, peer: int, tag: int) -> Delay | None:
    """The delay of a message that the learner sends to or receives from global rank `peer` (-1: from anyone).

    None in a run without links.
    """
    if current is None:
        return None
    channel = channel_of(group, tag)
    if peer < 0:
        return ReceivedFromAnyone(current, group, channel)
    number = current.next_number(kind, peer, channel)
    if kind == SEND:
        return Sent(current, current.clock, peer, tensor.numel() * tensor.element_size(), channel, number)
    return Received(current, current.clock, peer, channel, number)


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
    """Called once in each rank, before the learner's function: with the links of the run (`Links.plain()`), or None."""
    global current
    if current is not None:
        current.close()
    current = None if spec is None else Network(path, Links(*spec), rank)


def begin() -> None:
    """The learner's function starts now, by the clocks of all ranks at the same moment."""
    if current is not None:
        current.clock.set(current.common_start())


def still() -> AbstractContextManager[None]:
    """The rank waits inside, or does what a network does by itself: its clock only goes by events."""
    return nullcontext() if current is None else current.clock.still()


def refuse(name: str) -> None:
    """torch's own collectives would cross no link, and take no time: RuntimeError that names picolib's."""
    raise RuntimeError(
        f"{name}: torch's own collectives do not cross the links of this run; call picolib.comm.{name}, "
        'with algorithm="ring" or any other but "native"'
    )
