"""picolib's collectives against gloo's own: the same tensors, in turns, in one run, with the board off.

    python -m benchmarks.collectives                    all sizes and worlds; table and figure
    python -m benchmarks.collectives --algorithms       every algorithm, to see which is fastest where

A size is that of the whole vector: what all ranks' blocks make together for all-gather, reduce-scatter and all-to-all.
A ratio above 1 means that picolib is faster. The shipped constants of `picolib/comm/auto.py` come from here.
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

NAMES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
WORLDS = [2, 4, 8]
SIZES = [1 << power for power in range(10, 27, 2)]  # 1 KB to 64 MB
TARGETS = {"all_reduce": 1.2, "all_gather": 1.2, "reduce_scatter": 1.2, "broadcast": 0.9, "all_to_all": 0.9}
TARGET_OVERALL, TARGET_CELL = 1.2, 0.7

Cell = dict[str, Any]  # name, ranks, nbytes, seconds: {algorithm: seconds a call}


def ways(name: str, nbytes: int, algorithms: list[str]) -> dict[str, Callable[[], object]]:
    """The same collective on the same tensors, by each algorithm. "native" is a plain call of torch's own."""
    n = dist.get_world_size()
    whole = torch.empty(nbytes // 4 // n * n).fill_(0.0)  # written once, so that every page of memory is there
    other = torch.empty_like(whole).fill_(0.0)
    part = torch.empty(len(whole) // n).fill_(0.0)
    arguments = {
        "all_reduce": ("all_reduce", [whole]),
        "all_gather": ("all_gather_into_tensor", [whole, part]),
        "reduce_scatter": ("reduce_scatter_tensor", [part, whole]),
        "broadcast": ("broadcast", [whole, 0]),
        "all_to_all": ("all_to_all_single", [other, whole]),
    }
    function, tensors = arguments[name]
    return {
        algorithm: partial(getattr(dist, function), *tensors)
        if algorithm == "native"
        else partial(getattr(comm, function), *tensors, algorithm=algorithm)
        for algorithm in algorithms
    }


def measure(names: list[str], sizes: list[int], rounds: int, every: bool) -> list[Cell]:
    """On every rank: all cells of one world size. Nothing watches or counts: torch's calls are as torch has them."""
    monitor.stop()
    cells = []
    for name in names:
        algorithms = comm.algorithms(name) if every else ["auto", "native"]
        for nbytes in sizes:
            if every and nbytes > 1 << 20:
                algorithms = [a for a in algorithms if a != "naive"]
            fewer = rounds if nbytes <= 1 << 20 else max(3, rounds // 2)
            seconds = medians(alternate(ways(name, nbytes, algorithms), fewer))
            cells.append({"name": name, "ranks": dist.get_world_size(), "nbytes": nbytes, "seconds": seconds})
    return cells


def ratio(cell: Cell) -> float:
    """How many times faster picolib is than gloo."""
    return cell["seconds"]["native"] / cell["seconds"]["auto"]


def ratios_table(cells: list[Cell]) -> str:
    """One row a collective and world, one column a size."""
    sizes = sorted({cell["nbytes"] for cell in cells})
    found = {(cell["name"], cell["ranks"], cell["nbytes"]): cell for cell in cells}
    rows = []
    for name, ranks in dict.fromkeys((cell["name"], cell["ranks"]) for cell in sorted_cells(cells)):
        row = [ratio(found[name, ranks, nbytes]) for nbytes in sizes]
        rows.append([name, str(ranks), *(f"{r:.2f}" for r in row), f"{report.geometric_mean(row):.2f}"])
    return report.table(["collective", "ranks", *map(report.size_text, sizes), "mean"], rows)


def sorted_cells(cells: list[Cell]) -> list[Cell]:
    """By collective, in the order of NAMES, then by world and size."""
    return sorted(cells, key=lambda cell: (NAMES.index(cell["name"]), cell["ranks"], cell["nbytes"]))


def verdicts(cells: list[Cell]) -> str:
    """Geometric means against their targets, and the worst cell."""
    rows = []
    for name in dict.fromkeys(cell["name"] for cell in sorted_cells(cells)):
        rows.append((name, report.geometric_mean(ratio(c) for c in cells if c["name"] == name), TARGETS[name]))
    rows.append(("all", report.geometric_mean(map(ratio, cells)), TARGET_OVERALL))
    worst = min(cells, key=ratio)
    where = f"worst: {worst['name']}, {worst['ranks']} ranks, {report.size_text(worst['nbytes'])}"
    rows.append((where, ratio(worst), TARGET_CELL))
    lines = [[what, f"{got:.2f}", f"{target:.1f}", "met" if got >= target else "missed"] for what, got, target in rows]
    return report.table(["geometric mean", "ratio", "target", ""], lines)


def times_table(cells: list[Cell]) -> str:
    """Seconds a call for every algorithm, the fastest of ours marked."""
    rows = []
    for cell in sorted_cells(cells):
        ours = {name: t for name, t in cell["seconds"].items() if name != "native"}
        best = min(ours, key=ours.get)
        times = [f"{name} {report.time_text(t)}{'*' if name == best else ''}" for name, t in cell["seconds"].items()]
        rows.append([cell["name"], str(cell["ranks"]), report.size_text(cell["nbytes"]), *times])
    width = max(map(len, rows))
    return report.table(
        ["collective", "ranks", "size", *[""] * (width - 3)], [r + [""] * (width - len(r)) for r in rows]
    )


def draw(cells: list[Cell]) -> None:
    """Ratio over size, one panel a collective, one line a world, in benchmarks/results/collectives.png and .svg."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(cell["name"] for cell in sorted_cells(cells)))
    figure, panels = pyplot.subplots(1, len(names), figsize=(3.2 * len(names), 3.4), sharey=True, squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for ranks, color, marker in zip(WORLDS, ("#0072B2", "#E69F00", "#009E73"), "os^", strict=True):
            line = [(c["nbytes"], ratio(c)) for c in sorted_cells(cells) if (c["name"], c["ranks"]) == (name, ranks)]
            if line:
                panel.plot(*zip(*line, strict=True), color=color, marker=marker, markersize=4, label=f"{ranks} ranks")
        panel.axhline(1, color="0.4", linewidth=1)
        panel.axhline(TARGET_CELL, color="0.6", linewidth=1, linestyle=":")
        panel.set(xscale="log", yscale="log", title=name.replace("_", "-"), xlabel="size")
        panel.set_xticks([1 << 10, 1 << 16, 1 << 20, 1 << 26], ["1 KB", "64 KB", "1 MB", "64 MB"], fontsize=8)
        panel.set_xticks([], minor=True)
        panel.set_yticks([0.5, 0.7, 1, 1.5, 2, 3, 4], ["0.5", "0.7", "1", "1.5", "2", "3", "4"])
        panel.set_yticks([], minor=True)
    panels[0][0].set_ylabel("times as fast as gloo's own")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    report.RESULTS.mkdir(exist_ok=True)
    for ending in ("png", "svg"):
        figure.savefig(report.RESULTS / f"collectives.{ending}", dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 sizes, 2 and 4 ranks, few rounds")
    parser.add_argument("--algorithms", action="store_true", help="time every algorithm instead")
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--ranks", nargs="+", type=int, default=None)
    parser.add_argument("--largest", type=int, default=1 << 26, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    worlds = options.ranks or (WORLDS[:2] if options.quick else WORLDS)
    sizes = [size for size in (SIZES[:8:2] if options.quick else SIZES) if size <= options.largest]
    rounds = options.rounds or (5 if options.quick else 15)
    cells = []
    for ranks in worlds:
        found = picolib.run(
            measure, ranks, options.names, sizes, rounds, options.algorithms, checked=False, timeout=600
        )
        cells += found[0]
        print(f"{ranks} ranks: {found.seconds:.0f} s", flush=True)
    if options.algorithms:
        text = times_table(cells)
    else:
        text = f"{ratios_table(cells)}\n\n{verdicts(cells)}"
        draw(cells)
    print(f"\n{text}")
    report.keep("collectives_algorithms" if options.algorithms else "collectives", text, cells)


if __name__ == "__main__":
    main()
