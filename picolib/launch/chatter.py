"""Lines that libraries write on a rank's streams: chatter is dropped, crash reports are set aside, the rest is kept."""

from __future__ import annotations

import re

CHATTER = re.compile(
    r"^\[Gloo\] Rank \d+ is connected to"  # gloo, on connecting
    r"|^(\[rank\d+\]:)?\[[WIE]\d{4} [\d:.]+ (\d+ )?(\w+\.\w+:\d+)\]"  # torch's C++ log
    r"|^\[c10d\] "
    r"|DeprecationWarning: This process \(pid=\d+\) is multi-threaded, use of fork"
)
CRASH = re.compile(r"^(Fatal Python error: |Stack \(most recent|Current thread 0x|Thread 0x|terminate called )")
CRASH_MORE = re.compile(r'^(  File ".*", line \d+ in |  what\(\):|  <|  \.\.\.|Extension modules: |$)')
STACK = re.compile(r"^(Stack|Current thread|Thread)")
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


class Filter:
    """Decides line by line. What faulthandler and C++ report of a crash is collected in `crash`."""

    def __init__(self) -> None:
        self.crash: list[str] = []
        self._in_crash = False

    def keeps(self, line: str) -> bool:
        """Whether the learner should see this line."""
        if CRASH.match(line) or (self._in_crash and CRASH_MORE.match(line)):
            self._in_crash = True
            self.crash.append(line)
            return False
        self._in_crash = False
        return not CHATTER.search(line)

    def stack(self) -> list[tuple[str, int, str, str]]:
        """Frames (file, line, function, source) of the last reported stack, outermost first."""
        starts = [
            index for index, line in enumerate(self.crash) if line.startswith(("Stack", "Current thread", "Thread"))
        ]
        if not starts:
            return []
        found = (FRAME.match(line) for line in self.crash[starts[-1] :])
        return [(match["file"], int(match["line"]), match["name"], "") for match in found if match][::-1]
