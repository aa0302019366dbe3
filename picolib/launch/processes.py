"""What the operating system offers so that no process outlives its run."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """On Linux, sub-processes of dead ranks become children of this process, which can then end them."""
    if LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def become_a_rank() -> None:
    """In a fresh fork: an own session, an end when the parent ends, and first in line when memory runs out."""
    parent = os.getppid()
    os.setsid()
    if LINUX:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prefer_for_oom_killer()
    else:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it went before the system was asked to watch it
        os._exit(1)


def prefer_for_oom_killer() -> None:
    """When memory runs out, the system should end this process rather than the kernel with the learner's work."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def send(process: int, number: int) -> None:
    """Send a signal to a rank; where orphans cannot be adopted, a deadly one goes to all it has started."""
    try:
        if number == signal.SIGKILL and not LINUX:
            os.killpg(process, number)
        os.kill(process, number)
    except ProcessLookupError:
        pass


def is_stopped(process: int) -> bool:
    """Whether a process is suspended by a signal (or a debugger); False where the system does not tell."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _children() -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # not Linux, or a kernel that does not tell
        return []


def end_children(seconds: float = 5.0) -> None:
    """Kill all children, and theirs as they become ours. Python's resource tracker gets a second to tidy up."""
    start = time.monotonic()
    while (left := _children()) and time.monotonic() < start + seconds:
        for process in left:
            patient = time.monotonic() < start + 1.0
            if not (patient and _is_resource_tracker(process)):
                send(process, signal.SIGKILL)
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                pass
        time.sleep(0.002)


def _is_resource_tracker(process: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
