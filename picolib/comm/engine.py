"""Running a collective: a generator that yields, step by step, the list of handles it waits for.

Run to its end at once, it is the synchronous call. An asynchronous call starts its first messages and is then
advanced whenever somebody looks: `poll()` from a hook of the backward pass, another call on the group, and at
last `wait()`, which runs what is left. No thread is involved, as the backend moves the bytes of a step by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from picolib.comm.groups import Group, known_groups
from picolib.comm.p2p import Handle
from picolib.launch import monitor

Steps = Iterator[list[Handle]]


def run(steps: Steps) -> None:
    """Run a collective to its end: wait for each step's handles, then let it start the next step."""
    for handles in steps:
        for handle in handles:
            handle.wait()


class Work:
    """An asynchronous collective, with the methods of torch.distributed's handle of that name."""

    def __init__(self, steps: Steps, group: Group, call: monitor.Call | None = None) -> None:
        self._steps, self._group, self._call = steps, group, call
        self._waiting_for: list[Handle] = []
        self._finished = False
        group.in_flight.append(self)
        self._advance()

    def wait(self, timeout: object = None) -> bool:
        """Run the collective to its end, after those that were started on the group before it."""
        while not self._finished:
            self._group.in_flight[0]._complete_step()
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
        while not self._finished and self._step_has_arrived():
            self._complete_step()

    def _step_has_arrived(self) -> bool:
        """Peers post a step's receives before its sends: once theirs are here, ours are on their way too."""
        receives = [handle for handle in self._waiting_for if handle.receives]
        return bool(receives) and all(handle.has_arrived() for handle in receives)

    def _complete_step(self) -> None:
        for handle in self._waiting_for:
            handle.wait()
        self._advance()

    def _advance(self) -> None:
        try:
            self._waiting_for = next(self._steps)
        except StopIteration:
            self._finished = True
            self._group.in_flight.remove(self)
            if self._call is not None:
                self._call.done()


def poll() -> None:
    """Advance every asynchronous collective of this process as far as it goes without waiting."""
    for group in known_groups():
        for work in list(group.in_flight):
            work.poll()


def no_grad_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without its autograd history: collectives write in place, as torch's own do."""
    return tensor.detach()
