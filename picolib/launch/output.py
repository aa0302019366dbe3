"""What ranks print: whole lines, in rank order, with a prefix; a flood is cut."""

from __future__ import annotations

import codecs
import sys
from collections import deque

HEAD, TAIL = 80, 20  # lines of a rank that are shown at the beginning and at the end
WIDTH = 2000  # characters of a line that are shown
KEPT = 1 << 24  # characters of a rank that Run.stdout keeps


class Stream:
    """The lines that one rank writes to one of its two streams."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self.text: list[str] = []
        self._kept = 0
        self.shown: deque[str] = deque()  # lines to print next
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.count = 0

    def feed(self, data: bytes, final: bool = False) -> None:
        """Take in bytes as they come out of the pipe."""
        text = self._decoder.decode(data, final)
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._take(line)
        if final and self._partial:
            self._take(self._partial)
            self._partial = ""

    def _take(self, line: str) -> None:
        line = line.removesuffix("\r").rsplit("\r", 1)[-1]  # a progress bar ends as its last state
        if self._kept < KEPT:
            self.text.append(line)
            self._kept += len(line) + 1
        if len(line) > WIDTH:
            line = f"{line[:WIDTH]} … {len(line) - WIDTH:,} characters left out"
        self.count += 1
        (self.shown if self.count <= HEAD else self.tail).append(line)

    def finish(self) -> None:
        """No more bytes will come."""
        self.feed(b"", final=True)
        left_out = self.count - HEAD - len(self.tail)
        if left_out > 0:
            self.shown.append(f"… {left_out:,} lines left out")
        self.shown.extend(self.tail)
        self.tail.clear()


class Output:
    """The output of all ranks: rank 0's lines are printed as they come, rank r's when those before it are done."""

    def __init__(self, world_size: int) -> None:
        self.out = [Stream() for _ in range(world_size)]
        self.err = [Stream() for _ in range(world_size)]
        self._next = 0
        self._finished: set[int] = set()

    def feed(self, kind: str, rank: int, data: bytes) -> None:
        """Bytes from rank `rank` on its stdout ("out") or stderr ("err")."""
        (self.out if kind == "out" else self.err)[rank].feed(data)
        if kind == "out" and rank == self._next:
            self._print(rank)

    def finish(self, rank: int) -> None:
        """Rank `rank` has ended and its pipes are empty."""
        self.out[rank].finish()
        self.err[rank].finish()
        self._finished.add(rank)
        while self._next in self._finished:
            self._print(self._next)
            self._next += 1
            if self._next < len(self.out):
                self._print(self._next)

    def _print(self, rank: int) -> None:
        lines = self.out[rank].shown
        if lines:
            sys.stdout.write("".join(f"[rank {rank}] {line}\n" for line in lines))
            sys.stdout.flush()
            lines.clear()

    def print_errors(self) -> None:
        """The ranks' stderr, after everything else."""
        text = "".join(f"[rank {rank}] {line}\n" for rank, stream in enumerate(self.err) for line in stream.shown)
        if text:
            sys.stderr.write(text)
            sys.stderr.flush()

    def texts(self) -> list[str]:
        """What each rank printed."""
        return ["".join(line + "\n" for line in stream.text) for stream in self.out]
