"""Running a collective: a generator that yields, step by step, the list of handles it waits for.

Run to its end at once, it is the synchronous call. An asynchronous call starts its first messages and is then
advanced whenever somebody looks: `poll()` from a hook of the backward pass, another call on the group, and at
last `wait()`, which runs what is left. No thread is involved, as the backend moves the bytes of a step by itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from picolib.comm.groups import Group, known_groups, works_in_flight
from picolib.comm.p2p import Handle

Steps = Iterator[list[Handle]]

# While other collectives of this process are under way, a blocked one looks after them this often. If nothing at all
# has arrived for that long, it waits in the backend after all: the hint of arrival can, very rarely, be missing.
LOOK_EVERY_SECONDS, LOOK_AT_MOST_SECONDS = 50e-6, 2.0


def run(steps: Steps) -> None:
    """Run a collective to its end: wait for each step's handles, then let it start the next step."""
    if works_in_flight():
        return _run_beside_others(steps)
    for handles in steps:
        for handle in handles:
            handle.wait()


def side_by_side(collectives: Iterable[Steps], at_once: int) -> Steps:
    """Several collectives as one, the first `at_once` of them started together.

    They take turns: while one waits for its step, the messages of the others are on their way. Ranks that
    run the same list take the same turns, so messages between two ranks keep their order.
    """
    todo, running = iter(collectives), deque()
    while True:
        while len(running) < at_once and (steps := next(todo, None)) is not None:
            running.append((steps, next(steps, None)))
        if not running:
            return
        steps, handles = running.popleft()
        if handles is not None:
            yield handles
            running.append((steps, next(steps, None)))


class Work:
    """An asynchronous collective, with the methods of torch.distributed's handle of that name."""

    def __init__(self, steps: Steps, group: Group, call: Any) -> None:
        self._steps, self._group, self._call = steps, group, call
        self._waiting_for: list[Handle] = []
        self._finished = False
        group.in_flight.append(self)
        self._advance()

    def wait(self, timeout: object = None) -> bool:
        """Run the collective to its end, after those that were started on the group before it."""
        while not self._finished:
            oldest = self._group.in_flight[0]
            handles = oldest._waiting_for
            _look_after_others(handles, itself=1)
            if oldest._waiting_for is handles:  # nobody else has advanced it meanwhile
                oldest._complete_step()
        return True

    def is_completed(self) -> bool:
        """Whether the result is there. Drives the collective as far as it goes without waiting for a peer.

        A rank that only has sends left waits for them here, as gloo cannot be asked about them.
        """
        self.poll()
        if not self._finished and not any(handle.receives for handle in self._waiting_for):
            self._complete_step()
        return self._finished

    def poll(self) -> None:
        """Start the next steps, as long as the messages they need have arrived. Returns at once."""
        while not self._finished and _has_arrived(self._waiting_for):
            self._complete_step()

    def _complete_step(self) -> None:
        for handle in self._waiting_for:
            handle.wait()
        self._advance()

    def _advance(self) -> None:
        try:
            self._waiting_for = next(self._steps)
        except StopIteration:
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._finished, self._waiting_for = True, []
        self._group.in_flight.remove(self)
        self._call.done()


def wait_for(handle: Handle) -> None:
    """Wait for one message of the user's, and keep the collectives under way going meanwhile."""
    if works_in_flight() and handle.work is not None:
        _look_after_others([handle])
        if not handle.receives:  # gloo cannot be asked about a send, so somebody else has to wait for it
            waiting = threading.Thread(target=handle.wait)
            waiting.start()
            while waiting.is_alive():
                poll()
                waiting.join(LOOK_EVERY_SECONDS)
    handle.wait()


def poll() -> None:
    """Advance every asynchronous collective of this process as far as it goes without waiting."""
    for group in known_groups():
        for work in list(group.in_flight):
            work.poll()


def _has_arrived(handles: list[Handle]) -> bool:
    """Peers post a step's receives before its sends: once theirs are here, ours are on their way too."""
    pending = [handle for handle in handles if handle.work is not None]
    receives = [handle for handle in pending if handle.receives]
    return not pending or (bool(receives) and all(handle.has_arrived() for handle in receives))


def _run_beside_others(steps: Steps) -> None:
    """Like `run`, while other collectives are under way: they may be what the peers are waiting for."""
    for handles in steps:
        _look_after_others(handles)
        for handle in handles:
            handle.wait()


def _look_after_others(handles: list[Handle], itself: int = 0) -> None:
    """Until these handles have arrived, advance everything else, as a network card would by itself."""
    if not any(handle.receives for handle in handles):
        return
    until = time.monotonic() + LOOK_AT_MOST_SECONDS
    while works_in_flight() > itself and not _has_arrived(handles) and time.monotonic() < until:
        poll()
        time.sleep(LOOK_EVERY_SECONDS)
