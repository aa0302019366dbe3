"""A training step with picolib's fully_shard beside PyTorch's FSDP2, alternating.

    python -m benchmarks.fsdp

The small Llama, every layer a unit, and a stack of wide layers: forward and backward on every rank. "native" is
picolib's fully_shard on torch's own collectives. A ratio above 1: picolib's step is the faster one. Nothing watches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import picolib
from benchmarks.ddp import Job, compare
from benchmarks.side_by_side import alternate, medians
from picolib.launch import monitor


def by_layer(shard: Callable[..., nn.Module], model: nn.Module) -> nn.Module:
    """Every layer a unit, and the rest one more."""
    for layer in model.model.layers if hasattr(model, "model") else list(model):
        shard(layer)
    return shard(model)


def measure(name: str, reshard: bool, rounds: int) -> dict[str, float]:
    """On every rank: median seconds of a step, by each way."""
    from torch.distributed.fsdp import fully_shard

    monitor.stop()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
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
    compare("fsdp", "reshard after forward", {"yes": True, "no": False}, measure, __doc__)


if __name__ == "__main__":
    main()
