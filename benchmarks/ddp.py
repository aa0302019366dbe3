"""A training step with picolib's DistributedDataParallel beside PyTorch's own, alternating.

    python -m benchmarks.ddp

The small Llama of lesson 00 and a stack of wide layers, forward and backward on every rank, with buckets so small that
there are many and so large that there is one. "native" is picolib's wrapper on torch's own all-reduce. A ratio above 1:
picolib's step is the faster one. Nothing watches or counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import picolib
from benchmarks import report
from benchmarks.side_by_side import alternate, medians
from picolib.launch import monitor
from picolib.model import LlamaConfig, LlamaForCausalLM, sum_of_token_losses

MIB = 1 << 20


class Job:
    """A model and a batch: `step(wrapped)` is forward and backward with fresh gradients."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.name = name
        if name == "llama":
            config = LlamaConfig(
                vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128,
            )  # fmt: skip
            self.model: nn.Module = LlamaForCausalLM(config)
            self.batch = torch.randint(256, (4, 64))
        else:
            self.model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
            self.batch = torch.randn(64, 512)

    def step(self, wrapped: nn.Module) -> None:
        """One step, without the optimizer's."""
        wrapped.zero_grad()
        output = wrapped(self.batch)
        loss = sum_of_token_losses(output, self.batch) if self.name == "llama" else output.square().mean()
        loss.backward()


def measure(name: str, cap_mb: float, rounds: int) -> dict[str, float]:
    """On every rank: median seconds of a step, by each way."""
    monitor.stop()
    ours, theirs = picolib.DistributedDataParallel, nn.parallel.DistributedDataParallel
    jobs = {
        "one process": (Job(name), lambda model: model),
        "torch": (Job(name), partial(theirs, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)),
        "picolib": (Job(name), partial(ours, bucket_cap_mb=cap_mb)),
        "native": (Job(name), partial(ours, bucket_cap_mb=cap_mb, algorithm="native")),
    }
    ways = {}
    for way, (job, wrap) in jobs.items():
        ways[way] = partial(job.step, wrap(job.model))
    for step in ways.values():
        for _ in range(3):  # the first steps settle the buckets
            step()
    return medians(alternate(ways, rounds, turn_seconds=0.1))


def main() -> None:
    """Measure and print."""
    caps = (0.25, 1, 25)
    compare("ddp", "buckets", {f"{cap:g} MiB": cap for cap in caps}, measure, __doc__)


def compare(name: str, what: str, settings: dict[str, Any], measure: Callable[..., Any], about: str | None) -> None:
    """Measure both jobs on 2 and 4 ranks with each setting of `what`, and print how torch's step compares.

    measure: called in ranks as measure(job, setting, rounds), gives the seconds of each way.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 ranks, the Llama, one setting, few rounds")
    parser.add_argument("--ranks", nargs="+", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    cases = [(job, label) for job in ("llama", "layers") for label in settings]
    rounds, rows, data = options.rounds or (5 if options.quick else 15), [], []
    for ranks in options.ranks or ([2] if options.quick else [2, 4]):
        for job, label in cases[:1] if options.quick else cases:
            found = picolib.run(measure, ranks, job, settings[label], rounds, checked=False, timeout=600)[0]
            times = [report.time_text(seconds) for seconds in found.values()]
            ratios = [f"{found['torch'] / found[way]:.2f}" for way in ("picolib", "native")]
            rows.append([str(ranks), job, label, *times, *ratios])
            data.append({"ranks": ranks, "job": job, what: settings[label], "seconds": found})
    header = ["ranks", "job", what, *data[0]["seconds"], "torch/picolib", "torch/native"]
    text = report.table(header, rows)
    print(text)
    report.keep(name, text, data)


if __name__ == "__main__":
    main()
