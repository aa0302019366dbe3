"""What the board costs: a small DDP step with `checked=True` against `checked=False`.

Run: python benchmarks/board.py [--ranks 2] [--rounds 15]

Both kinds alternate inside this one process, so that a busy machine slows both alike; the figure is
the median over rounds of the ratio of their median step times. Target: at most 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

import picolib


def make_model() -> torch.nn.Module:
    """A small multi-layer perceptron, about 0.5 million parameters."""
    torch.manual_seed(0)
    sizes = [128, 512, 512, 128, 10]
    layers = [torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]
    return torch.nn.Sequential(*[m for layer in layers for m in (layer, torch.nn.ReLU())][:-1])


def by_hand(model: torch.nn.Module) -> None:
    """DDP as the lesson starts: one all-reduce a parameter, after backward."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def with_picolib(model: torch.nn.Module) -> None:
    """The same with picolib's all-reduce from point-to-point messages."""
    from picolib import comm

    for parameter in model.parameters():
        comm.all_reduce(parameter.grad, algorithm="ring")
        parameter.grad /= dist.get_world_size()


def train(kind: str, steps: int) -> float:
    """Median seconds of a training step on this rank."""
    model: Any = make_model()
    reduce = {"by hand": by_hand, "picolib": with_picolib, "torch DDP": lambda model: None}[kind]
    if kind == "torch DDP":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, times = torch.randn(64, 128), []
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        reduce(model)
        optimizer.step()
        times.append(time.perf_counter() - started)
    return statistics.median(times[steps // 5 :])


def ratio(kind: str, ranks: int, rounds: int, steps: int) -> tuple[float, float]:
    """(median ratio checked / unchecked, milliseconds of an unchecked step)."""
    ratios, plain = [], []
    for _ in range(rounds):
        seconds = {c: picolib.run(train, ranks, kind, steps, checked=c)[0] for c in (False, True)}
        ratios.append(seconds[True] / seconds[False])
        plain.append(seconds[False] * 1e3)
    return statistics.median(ratios), statistics.median(plain)


def main() -> None:
    """Print one line a kind of DDP."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", default=["by hand", "picolib", "torch DDP"])
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        value, plain = ratio(kind, arguments.ranks, arguments.rounds, arguments.steps)
        print(f"{kind:10}  {arguments.ranks} ranks  step {plain:6.2f} ms  with the board x{value:.3f}  (target 1.05)")


if __name__ == "__main__":
    main()
