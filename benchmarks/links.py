"""Slow-motion links against their formulas: what a run really takes, on a laptop's cores.

    python -m benchmarks.links

Every row is a case at a scale of 100 ms or more: the formula (`picolib.plan.links`), the planned time (by the ranks'
clocks, as in a trace) and the real one, from the common start to the last rank's end. Medians of some rounds, and the
worst ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

import picolib
from benchmarks import report
from picolib import Links, comm
from picolib.launch import monitor
from picolib.plan import links as formulas

ONE_NODE = Links(1, 8, intra=(6e-3, 1e6))
TWO_NODES = Links(2, 4, intra=(1e-3, 2e6), inter=(3e-3, 2e5))
LINE = Links(1, 4, intra=(2e-3, 1e6))
NBYTES, STAGE_SECONDS, MICRO_BATCHES = 16_000, 0.1, 4


class Case(NamedTuple):
    """A program for ranks, the links it runs on, and how long it should take."""

    name: str
    links: Links
    program: Callable[[], None]
    seconds: float


def all_reduce(algorithm: str) -> None:
    """One all-reduce of 16 KB."""
    comm.all_reduce(torch.ones(NBYTES // 8, dtype=torch.float64), algorithm=algorithm)


def beside_compute(seconds: float) -> None:
    """An all-reduce in the background of pretended compute."""
    work = comm.all_reduce(torch.ones(NBYTES // 8, dtype=torch.float64), algorithm="ring", async_op=True)
    picolib.pretend(seconds)
    work.wait()


def pipeline(api: object, overlapped: bool) -> None:
    """A forward pass through one stage a rank, with picolib's messages or torch's."""
    rank, x, sent = dist.get_rank(), torch.ones(500, dtype=torch.float64), []
    for _ in range(MICRO_BATCHES):
        if rank > 0:
            api.recv(x, rank - 1)
        picolib.pretend(STAGE_SECONDS)
        if rank < dist.get_world_size() - 1:
            sent.append(api.isend(x.clone(), rank + 1))
            if not overlapped:
                sent.pop().wait()
    for handle in sent:
        handle.wait()


def cases() -> list[Case]:
    """What is measured."""
    flow = partial(formulas.pipeline, LINE.world_size, MICRO_BATCHES, STAGE_SECONDS, LINE.intra.seconds(4000))
    ring = formulas.ring_all_reduce(ONE_NODE, NBYTES)
    return [
        Case("ring, 8 ranks", ONE_NODE, partial(all_reduce, "ring"), ring),
        Case("tree, 8 ranks", ONE_NODE, partial(all_reduce, "tree"), formulas.tree_all_reduce(ONE_NODE, NBYTES)),
        Case("ring, 2 x 4", TWO_NODES, partial(all_reduce, "ring"), formulas.ring_all_reduce(TWO_NODES, NBYTES)),
        Case("hierarchical, 2 x 4", TWO_NODES, partial(all_reduce, "hierarchical"),
             formulas.hierarchical_all_reduce(TWO_NODES, NBYTES)),
        Case("ring beside compute of 0.1 s", ONE_NODE, partial(beside_compute, 0.1), max(0.1, ring)),
        Case("pipeline, 4 stages of 0.1 s", LINE, partial(pipeline, comm, True), flow()),
        Case("the same, blocking sends", LINE, partial(pipeline, comm, False), flow(overlapped=False)),
        Case("the same, torch's messages", LINE, partial(pipeline, dist, True), flow()),
    ]  # fmt: skip


def together() -> float:
    """All ranks' clocks show the time that is returned."""
    moment = torch.tensor([monitor.now() + 0.3], dtype=torch.float64)
    comm.all_reduce(moment, dist.ReduceOp.MAX)
    picolib.pretend(max(0.0, moment.item() - monitor.now()))
    return moment.item()


def measure(program: Callable[[], None], rounds: int) -> list[tuple[float, float]]:
    """On every rank and for each round: planned and real seconds from the common start. One round to warm up."""
    found = []
    for _ in range(rounds + 1):
        start = together()
        program()
        found.append((monitor.now() - start, time.monotonic() - start))
    return found[1:]


def row(case: Case, rounds: int) -> dict[str, float | str]:
    """One case: medians over the rounds of the last rank's times, and the ratio to the formula at its worst."""
    run = picolib.run(measure, case.links.world_size, case.program, rounds, links=case.links)
    planned, real = ([max(times[kind] for times in ranks) for ranks in zip(*run, strict=True)] for kind in (0, 1))
    return {
        "case": case.name,
        "formula": case.seconds,
        "planned": statistics.median(planned),
        "real": statistics.median(real),
        "ratio": statistics.median(real) / case.seconds,
        "worst": max(real) / case.seconds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    data = [row(case, options.rounds or (2 if options.quick else 7)) for case in cases()]
    milliseconds = [[f"{1e3 * found[kind]:.1f} ms" for kind in ("formula", "planned", "real")] for found in data]
    rows = [[found["case"], *times, f"{found['ratio']:.3f}", f"{found['worst']:.3f}"]
            for found, times in zip(data, milliseconds, strict=True)]  # fmt: skip
    text = report.table(["case", "formula", "planned", "real", "real/formula", "worst"], rows)
    print(text)
    report.keep("links", text, data)


if __name__ == "__main__":
    main()
