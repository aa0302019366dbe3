"""What the board costs: a small DDP step with the board against one without.

Run: python benchmarks/board.py [--ranks 2] [--steps 300]

Steps with and without alternate on the same ranks, so that a busy machine slows both alike; the
figure is the ratio of their median times, by the clock and in processor time (all threads of a rank),
which a busy machine disturbs less. Target: at most 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

import picolib
from picolib.launch import monitor
from picolib.launch.observed import Observer


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


def train(kind: str, steps: int) -> list[tuple[float, float]]:
    """Median (seconds, processor seconds) of a training step on this rank, without the board and with it."""
    model: Any = make_model()
    reduce = {"by hand": by_hand, "picolib": with_picolib, "torch DDP": lambda model: None}[kind]
    if kind == "torch DDP":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(64, 128)
    observers = [Observer(None, dist.get_rank(), dist.get_world_size(), events=False), monitor.observer()]
    times: list[list[tuple[float, float]]] = [[], []]
    for step in range(2 * steps):
        monitor.resume(observers[step % 2])
        started = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        reduce(model)
        optimizer.step()
        times[step % 2].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    monitor.resume(observers[1])
    return [tuple(map(statistics.median, zip(*t[steps // 5 :], strict=True))) for t in times]


def main() -> None:
    """Print one line a kind of DDP."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kinds", nargs="+", default=["by hand", "picolib", "torch DDP"])
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    arguments = parser.parse_args()
    arguments.steps = max(10, arguments.steps // 10) if arguments.quick else arguments.steps
    for kind in arguments.kinds:
        run = picolib.run(train, arguments.ranks, kind, arguments.steps, timeout=600)
        (plain, plain_cpu), (checked, checked_cpu) = (
            [max(rank[with_board][i] for rank in run) for i in (0, 1)] for with_board in (0, 1)
        )
        ratios = f"with the board x{checked / plain:.3f} (processor time x{checked_cpu / plain_cpu:.3f}; target 1.05)"
        print(f"{kind:10}  {arguments.ranks} ranks  step {plain * 1e3:6.2f} ms  {ratios}")


if __name__ == "__main__":
    main()
