"""What a message costs on this machine: time = α + β · bytes, fitted to a ping-pong between ranks.

α (seconds) is what every message costs however small it is, β (seconds per byte) what its length adds; 1/β is the
bandwidth (Hockney 1994). Only figures and predictions use this: `algorithm="auto"` never measures anything, so
that a run gives the same bits on every machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from picolib.comm import messages
from picolib.launch import run

SIZES = tuple(1 << power for power in range(10, 25, 2))  # bytes: 1 KB to 16 MB


@dataclass(frozen=True)
class Calibration:
    """A fit and the measurements behind it."""

    world_size: int
    alpha: float  # seconds a message
    beta: float  # seconds a byte
    sizes: tuple[int, ...]  # bytes
    seconds: tuple[float, ...]  # measured time of one message of each size

    def predict(self, nbytes: float) -> float:
        """Seconds that one message of `nbytes` bytes takes, by the fit."""
        return self.alpha + self.beta * nbytes

    def __str__(self) -> str:
        lines = [
            f"{self.world_size} ranks, neighbours in pairs, all pairs at once:",
            f"  latency    α = {self.alpha * 1e6:.1f} µs a message",
            f"  bandwidth 1/β = {1e-9 / self.beta:.2f} GB/s (β = {self.beta * 1e9:.3f} ns a byte)",
            "",
            f"{'bytes':>10} {'measured':>12} {'α + β·bytes':>12}",
        ]
        for nbytes, measured in zip(self.sizes, self.seconds, strict=True):
            lines.append(f"{nbytes:>10,} {measured * 1e6:>9.1f} µs {self.predict(nbytes) * 1e6:>9.1f} µs")
        return "\n".join(lines)


def calibrate(world_size: int = 2, sizes: Sequence[int] = SIZES, rounds: int = 15) -> Calibration:
    """Measure α and β between ranks of this machine: ping-pong on `world_size` ranks, 0 with 1, 2 with 3, …

    Takes a few seconds. With more ranks than cores, α contains the wait for a core, as it will in every collective.

    Raises:
        ValueError: fewer than 2 ranks, or fewer than 2 sizes.
    """
    if world_size < 2:
        raise ValueError(f"world_size must be at least 2, as a message needs two ranks, got {world_size}.")
    if len(set(sizes)) < 2:
        raise ValueError(f"sizes must hold at least two different sizes, got {list(sizes)}.")
    measured = run(ping_pong, world_size, tuple(sizes), rounds, checked=False, timeout=300)[0]
    return Calibration(world_size, *fit_alpha_beta(sizes, measured), tuple(sizes), tuple(measured))


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """The α and β of `seconds = α + β · sizes` by least squares on relative errors, neither below zero.

    Each row is divided by its measured time: else a few percent of the largest message would outweigh all of the
    small ones, and α would be lost in them.

    Args:
        sizes: bytes, at least two different ones.
        seconds: the time measured for each, above 0.

    Returns:
        α in seconds, β in seconds per byte.
    """
    nbytes, t = torch.tensor(sizes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    if len(nbytes) != len(t) or len(set(sizes)) < 2 or not bool((t > 0).all()):
        raise ValueError(f"sizes and seconds must be two or more pairs, seconds above 0, got {sizes} and {seconds}.")
    scale = nbytes.max()  # so that both columns have numbers of the same order
    rows = torch.stack([1 / t, nbytes / scale / t], dim=1)
    alpha, slope = torch.linalg.lstsq(rows, torch.ones(len(t), 1, dtype=torch.float64)).solution.flatten().tolist()
    if alpha < 0:  # noise can tilt the line below zero: the best line through the origin is nearest to it
        alpha, slope = 0.0, float(rows[:, 1].sum() / rows[:, 1].square().sum())
    elif slope < 0:
        alpha, slope = float(rows[:, 0].sum() / rows[:, 0].square().sum()), 0.0
    return alpha, slope / float(scale)


def ping_pong(sizes: Sequence[int], rounds: int) -> list[float]:
    """On every rank: the median time of one message of each size (half a round trip), by the slowest pair."""
    partner = dist.get_rank() ^ 1  # 0 and 1, 2 and 3, …; without a partner, a rank only waits for the others
    plays = partner < dist.get_world_size()
    found = [_half_round_trip(nbytes, partner, rounds) if plays else 0.0 for nbytes in sizes]
    slowest = torch.tensor(found, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def _half_round_trip(nbytes: int, partner: int, rounds: int) -> float:
    ball, times = torch.zeros(nbytes, dtype=torch.uint8), []
    for turn in range(rounds + 2):  # the first two connect the pair and touch the memory
        started = time.perf_counter()
        for move in (messages.send, messages.recv) if partner & 1 else (messages.recv, messages.send):
            move(ball, partner)
        if turn >= 2:
            times.append((time.perf_counter() - started) / 2)
    return statistics.median(times)
