"""How many threads a rank may use, and whether the machine can hold that many ranks."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: the affinity mask, cut by a container's quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(float(quota) / float(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        pass
    return max(1, cores)


def threads_per_rank(world_size: int) -> int | None:
    """Cores divided by ranks, at least one; None when the learner has set it in the environment.

    Eight ranks with torch's default (every rank uses every core) run several times slower than with one thread each.
    """
    if os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS"):
        return None
    return max(1, usable_cores() // world_size)


def usable_memory() -> int | None:
    """Bytes that can still be allocated here; None where the system does not tell."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def refuse_too_many(world_size: int, bytes_per_rank: int) -> None:
    """Check the memory before the start.

    Raises:
        ValueError: that many ranks do not fit.
    """
    free = usable_memory()
    if free is not None and world_size * bytes_per_rank > free:
        wanted = world_size * bytes_per_rank / 1e9
        raise ValueError(
            f"{world_size} ranks need about {wanted:.1f} GB of memory to start and {free / 1e9:.1f} GB are free: "
            f"start fewer ranks or free some memory"
        )
