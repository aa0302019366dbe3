"""What ranks print: whole lines, in rank order, with a prefix; a flood is cut."""

from __future__ import annotations

import codecs
import sys
from collections import deque

from picolib.launch.chatter import Filter
from picolib.launch.live import LiveView

HEAD, TAIL = 80, 20  # lines of a rank that are shown at the beginning and at the end
WIDTH = 2000  # characters of a line that are shown
KEPT = 1 << 24  # characters of a rank that Run.stdout keeps
LONGEST = 1 << 20  # characters without a line end that are waited for


class Stream:
    """The lines that one rank writes to one of its two streams."""

    def __init__(self) -> None:
        self.filter = Filter()
        self.text: list[str] = []  # whole lines, for Run.stdout
        self.shown: deque[str] = deque()  # lines to print next
        self.tail: deque[str] = deque(maxlen=TAIL)  # the last lines of a flood
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._kept = self._count = 0

    def feed(self, data: bytes, final: bool = False) -> None:
        """Take in bytes as they come out of the pipe."""
        *lines, self._partial = (self._partial + self._decoder.decode(data, final)).split("\n")
        for line in lines:
            self._take(line)
        _, _, newest = self._partial.rpartition("\r")
        self._partial = newest or self._partial  # a progress bar may be updated for hours
        if self._partial and (final or len(self._partial) > LONGEST):
            self._take(self._partial)
            self._partial = ""

    def _take(self, line: str) -> None:
        line = line.removesuffix("\r").rsplit("\r", 1)[-1]  # a progress bar ends as its last state
        if not self.filter.keeps(line):
            return
        if self._kept < KEPT:
            self.text.append(line)
            self._kept += len(line) + 1
        if len(line) > WIDTH:
            line = f"{line[:WIDTH]} … {len(line) - WIDTH:,} characters left out"
        self._count += 1
        (self.shown if self._count <= HEAD else self.tail).append(line)

    def finish(self) -> None:
        """No more bytes will come."""
        self.feed(b"", final=True)
        left_out = self._count - HEAD - len(self.tail)
        if left_out > 0:
            self.shown.append(f"… {left_out:,} lines left out")
        self.shown.extend(self.tail)
        self.tail.clear()

    def newest(self) -> str:
        """The last line so far, finished or not: what a progress bar shows now."""
        waiting = self.tail or self.shown
        return self._partial.rsplit("\r", 1)[-1] or (waiting[-1] if waiting else "")


class Output:
    """All ranks' output: rank 0's lines are printed as they come, rank r's when those before it are done.

    So the text that stays is the same every time. Meanwhile a notebook shows what the others print in a live view.
    """

    def __init__(self, world_size: int) -> None:
        self.out = [Stream() for _ in range(world_size)]
        self.err = [Stream() for _ in range(world_size)]
        self.live = LiveView()
        self._next = 0

    def feed(self, kind: str, rank: int, data: bytes) -> None:
        """Bytes from rank `rank` on its stdout ("out") or stderr ("err")."""
        (self.out if kind == "out" else self.err)[rank].feed(data)
        if kind == "out" and rank == self._next:
            self._print(rank)

    def tick(self) -> None:
        """Called some times a second: what is printed between two ticks arrives in a notebook as one output."""
        sys.stdout.flush()
        self.live.show(lambda: [f"[rank {rank}] {s.newest()}" for rank, s in enumerate(self.out) if s.newest()])

    def finish(self) -> None:
        """All ranks have ended: print the rest, stderr last."""
        self.live.close()
        for rank in range(len(self.out)):
            self.out[rank].finish()
            self.err[rank].finish()
            self._print(rank)
        sys.stdout.flush()
        text = "".join(f"[rank {rank}] {line}\n" for rank, stream in enumerate(self.err) for line in stream.shown)
        if text:
            sys.stderr.write(text)
            sys.stderr.flush()

    def returned(self, ranks: set[int]) -> None:
        """These ranks have returned: the lines of the next one may be printed as they come."""
        while self._next in ranks and self._next < len(self.out):
            self.out[self._next].finish()
            self._print(self._next)
            self._next += 1
            if self._next < len(self.out):
                self._print(self._next)

    def _print(self, rank: int) -> None:
        lines = self.out[rank].shown
        if lines:
            sys.stdout.write("".join(f"[rank {rank}] {line}\n" for line in lines))
            lines.clear()

    def texts(self) -> list[str]:
        """What each rank printed."""
        return ["".join(line + "\n" for line in stream.text) for stream in self.out]
