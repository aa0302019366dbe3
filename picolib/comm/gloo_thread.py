"""One setting that makes small messages on gloo several times faster where cores are scarce.

gloo moves bytes in a thread of its own (`gloo_tcp_loop`). It wants the lock of a connection that the main thread
holds while it posts a message; when the lock is taken, it does not sleep but asks again and again. If an arriving
message wakes it on the main thread's core, Linux lets it push the main thread aside, and it spins for a whole time
slice (about 3 ms) for a lock whose holder cannot run. A thread of the class SCHED_BATCH never pushes others aside:
it gets the same share of the processor, but waits until the main thread blocks, or until its time is up.

Measured on 2 cores, an exchange of 1 KB with both neighbours: 4.2 ms -> 0.9 ms on 2 ranks, 5.9 ms -> 0.5 ms on 4.
torch's own collectives on the same group gain as well, but less.
"""

from __future__ import annotations

import os
from pathlib import Path

_THREAD_NAME = "gloo_tcp_loop"


def make_polite() -> int:
    """Give every gloo thread of this process the class SCHED_BATCH; return how many have it now.

    Nothing happens on other systems than Linux, and where setting it is forbidden.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return 0
    polite = 0
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() == _THREAD_NAME:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
                polite += 1
        except OSError:  # the thread has ended meanwhile, or the sandbox does not allow it
            continue
    return polite
