"""What collectives and pipelines cost on links, by the alpha-beta model: seconds, no ranks.

A message of `b` bytes takes `latency + b / bandwidth` (Hockney 1994), both for its sender and for its receiver.
Vectors are taken to split evenly, and combining to cost nothing. A run with the same `Links` takes as long.
"""

from __future__ import annotations

from picolib.launch.links import Links


def ring_all_reduce(links: Links, nbytes: float) -> float:
    """All-reduce around one ring of all n ranks: 2(n-1) steps of S/n bytes, each as slow as the slowest link.

    (Patarasuk & Yuan 2009.) One message of each step leaves each node, however many ranks it has.

    >>> round(ring_all_reduce(Links(1, 4, intra=(1e-3, 1e6)), nbytes=64_000), 6)
    0.102
    """
    n = links.world_size
    on_the_way = [links.intra] * (links.per_node > 1) + [links.inter] * (links.nodes > 1)
    return 2 * (n - 1) * max((link.seconds(nbytes / n) for link in on_the_way), default=0.0)


def hierarchical_all_reduce(links: Links, nbytes: float) -> float:
    """Reduce-scatter inside each node, all-reduce of each chunk across nodes, all-gather inside each node.

    With k ranks on each of m nodes: 2(k-1) steps of S/k bytes inside; across, 2(m-1) steps in which k messages of
    S/(km) bytes share an uplink. While they queue there, the latency of the first is hidden behind the others: that
    is so if they queue in one order on all nodes. In a run chance decides, and a step takes at most the latency and
    S/(m·bandwidth).

    >>> round(hierarchical_all_reduce(Links(2, 4, intra=(1e-3, 1e6), inter=(5e-3, 2e5)), nbytes=6400), 6)
    0.0526
    """
    k, m = links.per_node, links.nodes
    inside = 2 * (k - 1) * links.intra.seconds(nbytes / k)
    if m == 1:
        return inside
    message = nbytes / (k * m) / links.inter.bandwidth
    step = max(k * message, links.inter.latency + message)  # from one step's first message to the next one's
    return inside + (2 * (m - 1) - 1) * step + links.inter.latency + k * message


def tree_all_reduce(links: Links, nbytes: float) -> float:
    """All-reduce up a binary tree and down again, on one node, for a vector that goes in one segment (up to 1 MB).

    Rank r's children are 2r+1 and 2r+2. For a full tree of h levels: 2(h-1) times (latency + 2S/bandwidth), as
    two messages to one rank, or from one, queue at its port.

    Raises:
        ValueError: more than one node, as it then depends on which ranks share an uplink.

    >>> round(tree_all_reduce(Links(1, 7, intra=(1e-3, 1e6)), nbytes=4000), 6)
    0.036
    """
    if links.nodes > 1:
        raise ValueError(f"links must have one node for this formula, got {links.nodes}")
    n, latency, message = links.world_size, links.intra.latency, nbytes / links.intra.bandwidth
    ready = [0.0] * n  # when each rank has combined what its children sent
    for rank in reversed(range(n)):
        port = 0.0
        for sent in sorted(ready[child] for child in children(rank, n)):
            port = max(port, sent) + message
            ready[rank] = port + latency
    finished = [ready[0]] * n  # when each rank has the result
    for rank in range(n):
        for place, child in enumerate(children(rank, n), start=1):
            finished[child] = finished[rank] + place * message + latency
    return max(finished)


def children(rank: int, n: int) -> list[int]:
    """The ranks below one in the tree."""
    return [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]


def pipeline(
    stages: int, micro_batches: int, compute: float, message: float, overlapped: bool = True
) -> float:  # fmt: skip
    """One pass through a pipeline, filling and draining included: (m+p-1) steps for p stages and m micro-batches.

    Args:
        compute: seconds that a stage computes for one micro-batch.
        message: seconds that its result takes to the next stage (`Link.seconds`).
        overlapped: a stage goes on computing while it sends (isend); then the message must not take longer than the
            computation. Without, it waits until its message has arrived.

    >>> round(pipeline(4, 8, compute=0.1, message=0.01), 6)
    1.13
    """
    message = message if stages > 1 else 0.0
    if overlapped:
        return (micro_batches + stages - 1) * compute + (stages - 1) * message
    return (micro_batches + stages - 1) * (compute + message) - message


def idle_share(stages: int, micro_batches: int) -> float:
    """The share of its time in which a stage has nothing to compute: (p-1)/(m+p-1), the bubble (Huang et al. 2019).

    >>> idle_share(4, 9)
    0.25
    """
    return (stages - 1) / (micro_batches + stages - 1)
