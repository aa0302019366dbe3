"""Point-to-point messages in a run with slow-motion links: the same as in `p2p.py`, and each waits until it is due.

A collective in the background has a clock of its own: its next step starts when the messages of this one arrived,
not when somebody looked (as if the network card went on by itself).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch

from picolib.comm.p2p import NOTHING_TO_WAIT_FOR, Handle, Link
from picolib.launch import monitor, network
from picolib.launch.board import RECV, SEND
from picolib.launch.clock import Clock
from picolib.launch.monitor import NOTHING
from picolib.launch.network import Delay, Received, Sent


class SlowHandle(Handle):
    """A message under way that arrives when its links say."""

    __slots__ = ("delay",)
    delayed = True

    def __init__(self, work: Any, message: Any, receives: bool, peer: int, delay: Delay) -> None:
        super().__init__(work, NOTHING if message is None else message, receives, peer)
        self.delay: Delay | None = delay

    def wait(self, timeout: object = None) -> bool:
        """Block until the message has gone through the backend and is due. Waiting again returns at once."""
        delay, message = self.delay, self.message
        if delay is None:
            return True
        with message.waiting(), network.still():
            if self.work is not None:
                self.work.wait()
            delay.wait()
        message.done_at(delay.end)
        self.work = self.message = self.delay = self._window = None
        return True

    def wait_unseen(self) -> None:
        """`wait()` for a helper thread, which leaves clock and monitor to the thread that runs the collective."""
        super().wait_unseen()
        if self.work is None and self.delay is not None:
            time.sleep(max(0.0, self.delay.end - time.monotonic()))

    def has_arrived(self) -> bool:
        """Whether `wait()` would return at once, as far as can be seen."""
        if self.delay is None:
            return True
        return (not self.receives or super().has_arrived()) and self.delay.is_over()


class SlowLink(Link):
    """One collective's access to its group, through links that take their time."""

    __slots__ = ("clock", "_network", "_channel", "_numbers")
    _fields = (*Link.__slots__, *__slots__)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._polled = True  # so that each receive's arrival can be seen, also where a collective just waits
        self._network = network.current
        self._channel = network.channel_of(self._process_group, self._tag)
        self._numbers: Counter[tuple[int, int]] = Counter()
        self.clock = self._network.clock

    def in_background(self) -> Clock:
        """The collective goes on beside the rank from now on; its own clock."""
        self.clock = Clock(self.clock.now(), counts_work=False)
        return self.clock

    def send(self, tensor: torch.Tensor, to: int, chunk: int | None = None, step: int | None = None) -> Handle:
        """As `Link.send`; the handle's wait ends when the message is there."""
        if not tensor.numel():
            return NOTHING_TO_WAIT_FOR
        to = self._members[to]
        message = self._tell(SEND, tensor, to, chunk, step)
        peer, nbytes = self._group.ranks[to], tensor.numel() * tensor.element_size()
        delay = Sent(self._network, self.clock, peer, nbytes, self._channel, self._next_number(SEND, peer))
        return SlowHandle(self._backend.send([tensor], to, self._tag), message, False, to, delay)

    def recv(self, tensor: torch.Tensor, source: int, chunk: int | None = None, step: int | None = None) -> Handle:
        """As `Link.recv`; the handle's wait ends when the message is due."""
        if not tensor.numel():
            return NOTHING_TO_WAIT_FOR
        source = self._members[source]
        message = self._tell(RECV, tensor, source, chunk, step)
        peer = self._group.ranks[source]
        delay = Received(self._network, self.clock, peer, self._channel, self._next_number(RECV, peer))
        return self._receive(tensor, source, SlowHandle(None, message, True, source, delay))

    def _next_number(self, direction: int, peer: int) -> int:
        self._numbers[direction, peer] += 1
        return self._numbers[direction, peer] - 1

    def post_send(self, tensor: torch.Tensor, to: int) -> Handle:
        """Start to send a message of the user's, which may be empty."""
        peer = self._group.ranks[to]
        message = monitor.send(tensor, self._process_group, peer, self._tag)
        delay = network.of_learner(SEND, tensor, self._process_group, peer, self._tag)
        return SlowHandle(self._backend.send([tensor], to, self._tag), message, False, to, delay)

    def post_recv(self, tensor: torch.Tensor, source: int) -> Handle:
        """Start to receive a message of the user's, which may be empty."""
        peer = self._group.ranks[source]
        message = monitor.recv(tensor, self._process_group, peer, self._tag)
        delay = network.of_learner(RECV, tensor, self._process_group, peer, self._tag)
        return self._receive(tensor, source, SlowHandle(None, message, True, source, delay))


def link_kind() -> type[Link]:
    """What collectives of this run go through."""
    return Link if network.current is None else SlowLink
