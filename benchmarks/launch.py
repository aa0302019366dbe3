"""How fast ranks are ready, beside torch.multiprocessing.spawn, and how much memory each has to itself.

Ready means: the world's group is made and one all-reduce is through. `--quick` leaves out 64 ranks and repeats less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import picolib


def ready() -> int:
    """What every rank does; returns its private memory in bytes (0 where the system does not tell)."""
    x = torch.ones(1)
    dist.all_reduce(x)
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        private = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
    except OSError:
        private = 0
    dist.barrier()  # measured while all of them live
    return private


def _spawned(rank: int, world_size: int, path: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    ready()
    dist.destroy_process_group()


def seconds_spawn(world_size: int) -> float:
    """torch.multiprocessing.spawn for the same job."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        mp.spawn(_spawned, (world_size, os.path.join(folder, "store")), nprocs=world_size)
        return time.perf_counter() - start


def seconds_run(world_size: int) -> tuple[float, list[int]]:
    """picolib.run, from the call to its return, and the ranks' private memory."""
    start = time.perf_counter()
    run = picolib.run(ready, world_size)
    return time.perf_counter() - start, list(run)


def seconds_import(statement: str) -> float:
    """A new interpreter that imports something."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    cold, _ = seconds_run(2)
    print(f"first run of a session (the fork server imports torch): {cold:.2f} s")
    print(f"{'ranks':>5} {'picolib.run':>12} {'mp.spawn':>10} {'ratio':>7} {'private MB a rank (median, most)':>34}")
    for world_size, rounds, spawn in ((4, 7, 1), (8, 7, 1 if quick else 3), *([] if quick else [(64, 3, 0)])):
        ours, theirs, private = [], [], []
        for number in range(rounds):
            seconds, memory = seconds_run(world_size)
            ours.append(seconds)
            private += memory
            if number < spawn:
                theirs.append(seconds_spawn(world_size))
        mine = statistics.median(ours)
        other = statistics.median(theirs) if theirs else float("nan")
        memory = f"{statistics.median(private) / 1e6:.1f}, {max(private) / 1e6:.1f}"
        print(f"{world_size:>5} {mine:>10.2f} s {other:>8.2f} s {other / mine:>6.0f}x {memory:>34}", flush=True)
    pairs = [(seconds_import("import torch"), seconds_import("import picolib, torch; picolib.run")) for _ in range(5)]
    torch_only, both = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"import torch {torch_only:.2f} s; import torch and picolib.run {both:.2f} s")


if __name__ == "__main__":
    main()
