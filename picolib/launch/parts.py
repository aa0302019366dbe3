"""The messages that a collective of picolib is made of.

The collectives themselves have been announced and compared, so counting is enough here: how many messages this call
has sent to and received from each rank stands behind the call's entry on the board.
"""

from __future__ import annotations

from typing import Any

from picolib.launch.board import CALL_RECV, CALL_SEND, SEND
from picolib.launch.misuse import NAMES


class Part:
    """One message inside a collective. As a context manager: this rank is blocked until it has gone through.

    `index` is how many messages of this call went the same way before. `start` (0.0: nobody records events) and
    `note` are for the trace.
    """

    __slots__ = ("call", "kind", "peer", "nbytes", "index", "start", "end", "note", "before")

    def __init__(self, call: Any, kind: int, peer: int, nbytes: int) -> None:
        self.call, self.kind, self.peer, self.nbytes = call, kind, peer, nbytes
        self.index, self.start, self.end, self.note = 0, 0.0, None, None

    def waiting(self) -> Part:
        """What surrounds the wait: itself, since every object more would be felt in short messages."""
        return self

    def __enter__(self) -> None:
        if self.call.threads is not None:
            self.before = self.call.threads.begin(self)

    def __exit__(self, *exc: object) -> None:
        if self.call.threads is not None:
            self.call.threads.end(self.before)

    def on_board(self) -> tuple[int, int, int, int, int, str]:
        """The fields of a wait (`slot.Wait`), the last one as text."""
        post = self.call.post
        kind = CALL_SEND if self.kind == SEND else CALL_RECV
        return kind, post.channel, post.number, self.peer, self.index, self.call.place.text

    def done(self) -> None:
        """The message has been handed over (sender) or has arrived (receiver)."""
        if self.start:
            name, label = NAMES[self.kind], self.call.label
            record = self.call.observer.recorder.event
            note, nbytes = self.note, self.nbytes
            record(name, self.start, peer=self.peer, nbytes=nbytes, label=name, call=label, note=note, end=self.end)

    def done_at(self, moment: float) -> None:
        """The same at a time that was planned (slow-motion links)."""
        self.end = max(self.start, moment)
        self.done()
