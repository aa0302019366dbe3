"""Asynchronous all-reduces under a backward pass: picolib's beside torch's own, and both beside synchronous ones.

    python -m benchmarks.overlap

A stand-in for a backward pass: for each bucket of gradients some matrix products, layer by layer, then the all-reduce
of the bucket. Synchronous, the ranks wait for each; asynchronous, they go on, and wait for all at the end. picolib's
collectives advance when they are polled, here after each layer, as autograd hooks will do it; torch's have a thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import picolib
from benchmarks import report
from benchmarks.side_by_side import alternate, medians
from picolib import comm
from picolib.launch import monitor

WORLDS = [2, 4]
LAYERS_PER_BUCKET = 4


class Backward:
    """Buckets of gradients, and layers whose products take about as long as one bucket's all-reduce."""

    def __init__(self, buckets: int, bucket_bytes: int, width: int) -> None:
        self.gradients = [torch.empty(bucket_bytes // 4).fill_(0.0) for _ in range(buckets)]
        self.weight, self.activations = torch.randn(width, width), torch.randn(width, width)
        self.out = torch.empty(width, width)

    def run(self, reduce: Callable[[torch.Tensor], Any] | None, after_layer: Callable[[], None] = lambda: None) -> None:
        """The whole pass. `reduce` may return a handle, which is waited for at the end."""
        handles = []
        for gradient in self.gradients:
            for _ in range(LAYERS_PER_BUCKET):
                torch.mm(self.weight, self.activations, out=self.out)
                after_layer()
            if reduce is not None:
                handles.append(reduce(gradient))
        for handle in handles:
            if handle is not None:
                handle.wait()

    def only_reduce(self, reduce: Callable[[torch.Tensor], Any]) -> None:
        """The communication alone."""
        for gradient in self.gradients:
            reduce(gradient)


def measure(buckets: int, bucket_bytes: int, width: int, rounds: int) -> dict[str, float]:
    """On every rank: median seconds of a pass, by each way. Nothing watches or counts."""
    monitor.stop()
    backward = Backward(buckets, bucket_bytes, width)
    direct = partial(comm.all_reduce, algorithm="direct")
    ways = {
        "compute alone": lambda: backward.run(None),
        "picolib alone": lambda: backward.only_reduce(comm.all_reduce),
        "torch alone": lambda: backward.only_reduce(dist.all_reduce),
        "picolib sync": lambda: backward.run(comm.all_reduce),
        "torch sync": lambda: backward.run(dist.all_reduce),
        "picolib async": lambda: backward.run(partial(comm.all_reduce, async_op=True), comm.poll),
        "direct async": lambda: backward.run(partial(direct, async_op=True), comm.poll),
        "torch async": lambda: backward.run(partial(dist.all_reduce, async_op=True)),
    }
    return medians(alternate(ways, rounds, turn_seconds=0.05))


def row(ranks: int, nbytes: int, seconds: dict[str, float]) -> list[str]:
    """One line of the table. A ratio above 1: picolib's asynchronous pass is the faster one."""
    ours = min("picolib async", "direct async", key=seconds.get)
    against = [seconds["torch async"] / seconds[ours], seconds["picolib sync"] / seconds[ours]]
    times = [report.time_text(t) for t in seconds.values()]
    return [str(ranks), report.size_text(nbytes), *times, *(f"{ratio:.2f}" for ratio in against)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 ranks, one size, few rounds")
    parser.add_argument("--ranks", nargs="+", type=int, default=None)
    parser.add_argument("--buckets", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    worlds = options.ranks or (WORLDS[:1] if options.quick else WORLDS)
    # The width of the layers is such that a bucket's layers take about as long as its all-reduce, on a small machine.
    cases = [(1 << 20, 256)] if options.quick else [(1 << 18, 192), (1 << 20, 256), (1 << 22, 448)]
    rounds, rows, data = options.rounds or (5 if options.quick else 15), [], []
    for ranks in worlds:
        for nbytes, width in cases:
            found = picolib.run(measure, ranks, options.buckets, nbytes, width, rounds, checked=False, timeout=600)[0]
            rows.append(row(ranks, nbytes, found))
            data.append({"ranks": ranks, "nbytes": nbytes, "buckets": options.buckets, "seconds": found})
    text = report.table(["ranks", "bucket", *data[0]["seconds"], "torch/picolib", "sync/async"], rows)
    print(text)
    report.keep("overlap", text, data)


if __name__ == "__main__":
    main()
