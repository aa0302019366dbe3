"""One line of progress, updated in place, that ends as a line which is the same in every run."""

from __future__ import annotations

import os
import sys

from picolib.launch import monitor
from picolib.launch.live import LiveView


class Progress:
    """Where the newest line goes, by where the output goes:

    - a terminal, or the kernel that watches the ranks of `picolib.run`: over the line before
    - a notebook that trains in its own process: into a display that is empty in the end
    - a file or a pipe (torchrun's logs): below the line before, since nothing there can be updated

    `PICOLIB_LIVE=0` keeps only the last line of all. `speaks` is False on all ranks but one, which stay silent.
    """

    def __init__(self, speaks: bool = True) -> None:
        self._speaks = speaks
        self._live = LiveView()
        self._shows = speaks and os.environ.get("PICOLIB_LIVE", "1") != "0"
        self._overwrites = sys.stdout.isatty() or monitor.observer() is not None
        self._width = 0

    def show(self, line: str) -> None:
        """The newest state."""
        if not self._shows:
            return
        if self._overwrites:
            print(self._cover() + line, end="", flush=True)
            self._width = len(line)
        elif self._live.possible:
            self._live.show(lambda: [line])
        else:
            print(line, flush=True)

    def close(self, line: str) -> None:
        """What stays. It should hold no time and no speed, so that a stored notebook keeps its output."""
        self._live.close()
        if self._speaks:
            print(self._cover() + line, flush=True)

    def _cover(self) -> str:
        """Blanks over the line that stands there, and back to its start."""
        return f"\r{' ' * self._width}\r" if self._width else ""
