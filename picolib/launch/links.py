"""Links in slow motion: which ranks share a node, and what a message costs inside it and between nodes.

Only the description and its checks; `network.py` lets messages wait.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Link:
    """What one message costs on one kind of link: `latency + bytes / bandwidth` seconds, the alpha-beta model.

    latency: seconds until the first byte is there, however few there are (alpha).
    bandwidth: bytes per second in one direction (1 / beta).
    """

    latency: float
    bandwidth: float

    NVLINK4: ClassVar[Link]
    PCIE5: ClassVar[Link]
    ETHERNET_100G: ClassVar[Link]

    def __post_init__(self) -> None:
        _check_number("latency", self.latency, "0 seconds or more", lambda value: 0 <= value < float("inf"))
        _check_number("bandwidth", self.bandwidth, "more than 0 bytes per second", lambda value: value > 0)

    def seconds(self, nbytes: float) -> float:
        """How long a message of `nbytes` takes on a link that is free.

        >>> Link(latency=0.002, bandwidth=1e6).seconds(8000)
        0.01
        """
        return self.latency + nbytes / self.bandwidth

    def slowed(self, factor: float) -> Link:
        """The same link `factor` times as slow: latency up, bandwidth down."""
        _check_factor("factor", factor)
        return Link(self.latency * factor, self.bandwidth / factor)


@dataclass(frozen=True)
class Links:
    """The machines of a run in slow motion: `nodes` nodes of `per_node` ranks, numbered node by node.

        picolib.run(train, 8, links=picolib.Links(nodes=2, per_node=4, intra=(1e-3, 1e8), inter=(5e-3, 1e7)))

    Inside a node every rank has a port to send and a port to receive. Each node has one uplink and one downlink,
    which its ranks share: what goes to another node crosses this node's uplink and the other's downlink. Messages
    that cross the same port, uplink or downlink queue there; the others don't notice one another.

    intra, inter: the `Link` inside a node and between nodes, also as (latency in seconds, bytes per second).
        `inter` may be left out where there is one node.
    """

    nodes: int = 1
    per_node: int = 1
    intra: Link | tuple[float, float] = (2e-6, 450e9)
    inter: Link | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "per_node"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")
        object.__setattr__(self, "intra", _link("intra", self.intra))
        if self.inter is None and self.nodes > 1:
            raise ValueError(f"inter must be given with {self.nodes} nodes, as (latency in seconds, bytes per second)")
        object.__setattr__(self, "inter", self.intra if self.inter is None else _link("inter", self.inter))

    @property
    def world_size(self) -> int:
        """The number of ranks on all nodes together."""
        return self.nodes * self.per_node

    def slowed(self, factor: float) -> Links:
        """The same machines with links `factor` times as slow, so that microseconds become milliseconds."""
        return Links(self.nodes, self.per_node, self.intra.slowed(factor), self.inter.slowed(factor))

    def between(self, source: int, target: int) -> Link:
        """The link that a message from rank `source` to rank `target` crosses."""
        return self.intra if source // self.per_node == target // self.per_node else self.inter

    def path(self, source: int, target: int) -> tuple[int, int]:
        """The two queues on a message's way, as numbers: ports to send, to receive, then uplinks and downlinks."""
        here, there = source // self.per_node, target // self.per_node
        if here == there:
            return source, self.world_size + target
        return 2 * self.world_size + here, 2 * self.world_size + self.nodes + there

    @property
    def queues(self) -> int:
        """How many numbers `path` uses."""
        return 2 * (self.world_size + self.nodes)

    def plain(self) -> list[Any]:
        """As numbers, for the way to the ranks; `Links(*plain)` is the same again."""
        pairs = ((link.latency, link.bandwidth) for link in (self.intra, self.inter))
        return [self.nodes, self.per_node, *(list(pair) for pair in pairs)]


def options(links: Any, slow: Any, world_size: int, device: str) -> dict[str, Any]:
    """The arguments `links` and `slow` of `run`, checked, as plain data for the ranks; empty without them."""
    found: dict[str, Any] = {}
    if links is not None:
        _check_links(links, world_size, device)
        found["links"] = links.plain()
    if slow is not None:
        found["slow"] = _factors(slow, world_size)
    return found


def _check_links(links: Any, world_size: int, device: str) -> None:
    if not isinstance(links, Links):
        raise TypeError(f"links must be a picolib.Links(nodes=..., per_node=..., ...), got {type(links).__name__}")
    if links.world_size != world_size:
        there = f"{links.nodes} nodes of {links.per_node} ranks are {links.world_size}"
        raise ValueError(f"links must describe as many ranks as world_size: {there}, and world_size is {world_size}")
    if str(device).partition(":")[0] != "cpu":
        raise ValueError(f"links need ranks on processors, device='cpu', got device={device!r}")


def _factors(slow: Any, world_size: int) -> list[float]:
    if not isinstance(slow, Mapping):
        raise TypeError(f"slow must be a dict from ranks to factors, such as {{3: 1.5}}, got {slow!r}")
    for rank, factor in slow.items():
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ValueError(f"slow must name ranks from 0 to {world_size - 1}, got rank {rank!r}")
        _check_factor(f"slow[{rank}]", factor)
    return [float(slow.get(rank, 1.0)) for rank in range(world_size)]


def _link(name: str, value: Any) -> Link:
    if isinstance(value, Link):
        return value
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} must be a picolib.Link or (latency in seconds, bytes per second), got {value!r}")
    return Link(*value)


def _check_number(name: str, value: Any, wanted: str, is_fine: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, {wanted}, got {value!r}")
    if not is_fine(value):
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _check_factor(name: str, value: Any) -> None:
    _check_number(name, value, "more than 0 and finite", lambda factor: 0 < factor < float("inf"))


# Bandwidths per direction from the data sheets of the H100 (NVLink 4: 900 GB/s in both directions together) and of
# PCI Express 5 with 16 lanes; latencies as programs see them, some microseconds, differ from system to system.
Link.NVLINK4 = Link(2e-6, 450e9)
Link.PCIE5 = Link(3e-6, 63e9)
Link.ETHERNET_100G = Link(10e-6, 12.5e9)
