"""Running a collective: a generator that yields, step by step, the list of handles it waits for.

Run to its end at once, it is the synchronous call. An asynchronous call starts its first messages and is then
advanced whenever somebody looks: `poll()` from a hook of the backward pass, another call on the group, and at
last `wait()`, which runs what is left. The backend moves the bytes of a step by itself, so no thread runs collectives.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from picolib.comm.groups import Group, groups_in_flight, works_in_flight
from picolib.comm.p2p import Handle
from picolib.launch import network, pretending
from picolib.launch.clock import Clock

Steps = Iterator[list[Handle]]

# A blocked call looks after the other collectives of this process this often, and relies for so long on the hint that
# a message has arrived, which can, very rarely, be missing.
LOOK_EVERY_SECONDS, HINT_SECONDS = 50e-6, 0.5


class Step:
    """The handles that a collective waits for, and whether that wait would block."""

    __slots__ = ("handles", "_missing", "_helper")

    def __init__(self, handles: list[Handle]) -> None:
        self.handles = handles
        self._missing = [h for h in handles if h.receives or h.delayed]  # those that have not been seen to arrive
        self._helper: threading.Thread | None = None

    def wait(self) -> None:
        """Wait for all handles."""
        if self._helper is not None:
            self._helper.join()
        for handle in self.handles:
            handle.wait()

    def has_arrived(self, with_helper: bool = True) -> bool:
        """Whether `wait()` would return at once, as far as can be seen.

        Receives show it. Of a send, gloo does not tell. But a peer starts all messages of a step together, so once we
        have heard from it, our message to it goes its way by itself. For sends to others a helper thread waits,
        inside the backend, without holding Python's lock; `with_helper=False` does not start one.
        """
        missing = self._missing
        while missing and missing[-1].has_arrived():
            missing.pop()
        if missing:
            return False
        if self._helper is None:
            heard = {handle.peer for handle in self.handles if handle.receives}
            blind = [h for h in self.handles if h.work is not None and not h.receives and h.peer not in heard]
            if not blind:
                return True
            if not with_helper:
                return False
            self._wait_aside(blind)
        return not self._helper.is_alive()

    def stop_guessing(self) -> None:
        """Have a helper thread wait for the receives too: one of them may give no sign of its arrival."""
        if self._helper is None:
            self._wait_aside([handle for handle in self.handles if handle.work is not None])
            self._missing = []

    def _wait_aside(self, handles: list[Handle]) -> None:
        wait = lambda: [handle.wait_unseen() for handle in handles]
        self._helper = threading.Thread(target=wait, name="picolib-wait", daemon=True)
        self._helper.start()


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

    def __init__(self, steps: Steps, group: Group, call: Any, clock: Clock | None = None) -> None:
        self._steps, self._group, self._call = steps, group, call
        self._clock = clock  # with slow-motion links: how far this collective has come
        self._step: Step | None = None  # None: finished
        group.in_flight.append(self)
        self._advance()

    def wait(self, timeout: object = None) -> bool:
        """Run the collective to its end, after those that were started on the group before it."""
        if self._step is not None:
            with self._call.waiting(), network.still():
                self._run_to_the_end()
                self._tell_the_time()
        elif self._is_due_later():
            with self._call.waiting(on_board=False):
                self._tell_the_time()
        return True

    def _is_due_later(self) -> bool:
        """Whether the collective is over, as somebody else's wait has seen to, at a time to which this rank has not
        come: with slow-motion links that is a wait, too."""
        now = network.current
        return self._clock is not None and now is not None and self._clock.due > now.clock.now()

    def _tell_the_time(self) -> None:
        """The rank has the result now, so its clock is at least as far as the collective's."""
        if self._clock is not None and network.current is not None:
            network.current.clock.reach(self._clock.due)

    def _run_to_the_end(self) -> None:
        """Wait for the oldest work of the group, step by step, until it is this one, and this one's end.

        Where all that is under way in this process belongs to this group, those are waits inside the backend: every
        rank of the group waits for the oldest first, so nobody needs what the later ones would do meanwhile. Between
        two such waits they have their turn. (Looking every 50 µs instead would take processor time from peers that
        share the cores.)
        """
        in_flight = self._group.in_flight
        while self._step is not None:
            oldest = in_flight[0]
            step = oldest._step
            if works_in_flight() > len(in_flight) or self._clock is not None:
                _look_after_others(step, itself=1)
            if oldest._step is step:  # nobody else has advanced it meanwhile
                oldest._complete_step()
            for later in list(in_flight) if self._step is not None else ():
                later.poll(with_helper=False)

    def is_completed(self) -> bool:
        """Whether the result is there. Drives the collective as far as it goes without waiting for a peer."""
        self.poll()
        if self._step is None:
            self._tell_the_time()
        return self._step is None

    def poll(self, with_helper: bool = True) -> None:
        """Start the next steps, as long as the messages they need have arrived. Returns at once."""
        while self._step is not None and self._step.has_arrived(with_helper):
            self._complete_step()

    def _complete_step(self) -> None:
        self._step.wait()
        self._advance()

    def _advance(self) -> None:
        try:
            self._step = Step(next(self._steps))
        except StopIteration:
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._step = None
        self._group.in_flight.remove(self)
        self._call.done()


def wait_for(handle: Handle) -> None:
    """Wait for one message of the user's, and keep the collectives under way going meanwhile."""
    step = Step([handle])
    _look_after_others(step)
    step.wait()


def poll() -> None:
    """Advance every asynchronous collective of this process as far as it goes without waiting."""
    with network.still():
        for group in groups_in_flight():
            for work in list(group.in_flight):
                work.poll()


def _run_beside_others(steps: Steps) -> None:
    """Like `run`, while other collectives are under way: they may be what the peers are waiting for."""
    for handles in steps:
        step = Step(handles)
        _look_after_others(step)
        step.wait()


def _look_after_others(step: Step, itself: int = 0) -> None:
    """Until this step has arrived, advance everything else, as a network card would by itself."""
    if works_in_flight() <= itself or step.has_arrived():
        return
    blocked_on = next((h for h in step.handles if h.work is not None and h.message is not None), None)
    with blocked_on.message.waiting() if blocked_on is not None else nullcontext(), network.still():
        patience = time.monotonic() + HINT_SECONDS
        while works_in_flight() > itself and not step.has_arrived():
            if time.monotonic() > patience:
                step.stop_guessing()
            time.sleep(LOOK_EVERY_SECONDS if network.current is None else pretending.LOOK_EVERY_SECONDS)
            poll()


def _look_after_all() -> bool:
    """What a device's network does while the device is busy; whether there was anything to do."""
    poll()
    return works_in_flight() > 0


pretending.beside.append(_look_after_all)
