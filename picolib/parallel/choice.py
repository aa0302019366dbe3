"""Which algorithm a strategy's collectives take."""

from __future__ import annotations

from typing import Any

import torch

from picolib import comm
from picolib.comm.groups import resolve


def settled_algorithm(algorithm: str, collective: str, device: torch.device, group: Any) -> str:
    """ "auto" as strategies mean it: "direct" on gloo, since two phases overlap best with compute; elsewhere "auto".

    Raises:
        ValueError: the collective has no such algorithm.
    """
    if algorithm not in (known := ["auto", *comm.algorithms(collective)]):
        raise ValueError(f"algorithm must be one of {', '.join(known)}, got {algorithm!r}.")
    if algorithm != "auto":
        return algorithm
    process_group, members = resolve(group)
    backend = members.backend(process_group, device)
    return "direct" if backend is None or backend.name() == "gloo" else "auto"
