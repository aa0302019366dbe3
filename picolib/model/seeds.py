"""Random numbers that depend on a seed and a name, and on nothing else.

Every random choice in the model (first weights, batches, sampled text) draws from a generator of its own. So the
choice is the same on every rank, in every order, and for every way of splitting the work.
"""

import hashlib

import torch


def named_generator(seed: int, name: str) -> torch.Generator:
    """A fresh CPU generator for `name`: equal arguments give equal random numbers, on every rank and machine."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
