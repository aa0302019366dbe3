"""How many threads a rank may use, and whether the machine can hold that many ranks."""

from __future__ import annotations

import os
from pathlib import Path

BYTES_PER_RANK = 25_000_000  # a rank that has joined its group and done something
RESERVE = 64_000_000  # bytes that stay free for everybody else


def usable_cores() -> int:
    """Cores this process may use: the affinity mask, cut by a container's quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(float(quota) / float(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        pass
    return max(1, cores)


def threads_per_rank(world_size: int) -> int:
    """Cores divided by ranks, at least one; what OMP_NUM_THREADS or MKL_NUM_THREADS say, where the learner set them.

    Eight ranks with torch's default (every rank uses every core) run several times slower than with one thread each.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return max(1, usable_cores() // world_size)


def usable_memory() -> int | None:
    """Bytes that can still be allocated here; None where the system does not tell."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()) + _reclaimable())
    except (OSError, ValueError):  # not Linux, or no limit
        pass
    return min(found) if found else None


def _reclaimable() -> int:
    """File cache of this container, which the system gives back when memory is needed."""
    for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def refuse_too_many(world_size: int, bytes_per_rank: int = BYTES_PER_RANK) -> None:
    """Check the memory before the start.

    Raises:
        ValueError: that many ranks do not fit.
    """
    free = usable_memory()
    if free is not None and world_size * bytes_per_rank > free - RESERVE:
        wanted = world_size * bytes_per_rank / 1e9
        raise ValueError(
            f"world_size={world_size} needs about {wanted:.1f} GB of memory to start and {max(0, free) / 1e9:.1f} GB "
            f"are free: start fewer ranks or free some memory"
        )


def files_for(world_size: int) -> int:
    """How many files this process opens to talk to so many ranks: a connection and two pipes each, and its own."""
    return 4 * world_size + 20


def oom_kills() -> int:
    """How many processes the system has killed for lack of memory since it was started; 0 where unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def resident_of(process: int) -> int:
    """Resident bytes of another process; 0 where unknown."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
