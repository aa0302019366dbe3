"""A training step with picolib's fully_shard beside PyTorch's FSDP2, alternating.

    python -m benchmarks.fsdp

The small Llama, every layer a unit, and a stack of wide layers: forward and backward on every rank. "native" is
picolib's fully_shard on torch's own collectives. A ratio above 1: picolib's step is the faster one. Nothing watches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import picolib
from benchmarks import report
from benchmarks.ddp import Job
from benchmarks.side_by_side import alternate, medians
from picolib.launch import monitor


def by_layer(shard: Callable[..., nn.Module], model: nn.Module) -> nn.Module:
    """Every layer a unit, and the rest one more."""
    for layer in model.model.layers if hasattr(model, "model") else list(model):
        shard(layer)
    return shard(model)


def measure(name: str, ranks: int, reshard: bool, rounds: int) -> dict[str, float]:
    """On every rank: median seconds of a step, by each way."""
    from torch.distributed.fsdp import fully_shard

    monitor.stop()
    mesh = init_device_mesh("cpu", (ranks,))
    ways = {}
    for way, shard in {
        "torch": partial(fully_shard, mesh=mesh, reshard_after_forward=reshard),
        "picolib": partial(picolib.fully_shard, reshard_after_forward=reshard),
        "native": partial(picolib.fully_shard, reshard_after_forward=reshard, algorithm="native"),
    }.items():
        job = Job(name)
        ways[way] = partial(job.step, by_layer(shard, job.model))
    for step in ways.values():
        for _ in range(3):
            step()
    return medians(alternate(ways, rounds, turn_seconds=0.1))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 ranks, the Llama, few rounds")
    parser.add_argument("--ranks", nargs="+", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    worlds = options.ranks or ([2] if options.quick else [2, 4])
    cases = (
        [("llama", True)] if options.quick else [(job, keep) for job in ("llama", "layers") for keep in (True, False)]
    )
    rounds, rows, data = options.rounds or (5 if options.quick else 15), [], []
    for ranks in worlds:
        for job, reshard in cases:
            found = picolib.run(measure, ranks, job, ranks, reshard, rounds, checked=False, timeout=600)[0]
            times = [report.time_text(seconds) for seconds in found.values()]
            ratios = [f"{found['torch'] / found[way]:.2f}" for way in ("picolib", "native")]
            rows.append([str(ranks), job, "yes" if reshard else "no", *times, *ratios])
            data.append({"ranks": ranks, "job": job, "reshard_after_forward": reshard, "seconds": found})
    header = ["ranks", "job", "reshard", *data[0]["seconds"], "torch/picolib", "torch/native"]
    text = report.table(header, rows)
    print(text)
    report.keep("fsdp", text, data)


if __name__ == "__main__":
    main()
