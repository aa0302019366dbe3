"""What makes it safe to look at the frames of this process's other threads.

Python 3.11 makes the object that describes a frame only when somebody asks for it, and making it may start the
garbage collector. That runs destructors, and a destructor may let other threads run on. Then the thread that is
looked at leaves the very frame that is being described (the process crashes later, somewhere), or it starts or ends
a thread and waits for the lock that `sys._current_frames` holds (the process hangs). Both happen within seconds when
threads are short and many. With the collector switched off, nothing else can run between the two.

Before 3.11 frames were objects all along; from 3.12 on the collector starts only between two instructions.
"""

from __future__ import annotations

import gc
import os
import sys

_UNSAFE = sys.version_info[:2] == (3, 11)


class collector_stands_still:
    """Context manager: frames of other threads may be looked at inside. One thread at a time."""

    switched_off = False

    def __enter__(self) -> None:
        self.mine = _UNSAFE and gc.isenabled()
        if self.mine:
            collector_stands_still.switched_off = True
            gc.disable()

    def __exit__(self, *exc: object) -> None:
        if self.mine:
            gc.enable()
            collector_stands_still.switched_off = False


def _switch_on_in_a_fork() -> None:
    """Another thread has forked this process just then: nobody would switch the copy's collector on again."""
    if collector_stands_still.switched_off:
        gc.enable()
        collector_stands_still.switched_off = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_switch_on_in_a_fork)
