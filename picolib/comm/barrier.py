"""Barrier: nobody leaves before everybody has come."""

from __future__ import annotations

import torch

from picolib.comm.engine import Steps
from picolib.comm.p2p import Link


def dissemination(link: Link) -> Steps:
    """In step k, tell the rank 2^k places up, hear from the rank 2^k places down (Hensgen, Finkel, Manber 1988).

    After step k a rank has heard, directly or not, of 2^(k+1) ranks. log2(n) steps, rounded up, of one byte each.
    """
    word, heard = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    hop = 1
    while hop < link.size:
        yield [
            link.recv(heard, (link.rank - hop) % link.size, step=hop),
            link.send(word, (link.rank + hop) % link.size, step=hop),
        ]
        hop *= 2
