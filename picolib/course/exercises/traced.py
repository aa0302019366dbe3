"""Bytes of Python's own objects (numbers, lists, bytes, numpy's arrays), by tracemalloc, in a rank."""

from __future__ import annotations

import tracemalloc

import torch.distributed as dist


def begin() -> None:
    """Count from here on: what is there already counts nothing, neither now nor when it goes."""
    if tracemalloc.is_tracing():
        tracemalloc.clear_traces()
    else:
        tracemalloc.start()


def now() -> int:
    """Bytes that are alive of what was made since `begin()`."""
    return tracemalloc.get_traced_memory()[0]


def peak() -> int:
    """The most that lived at a time since `begin()`."""
    return tracemalloc.get_traced_memory()[1]


def end() -> None:
    """Stop, but not in a rank.

    A thread of gloo's lets go of tensors, and may wait for the interpreter in the middle of an allocation. If tracing
    has been stopped by the time it goes on, it writes into tables that are gone, and the process crashes (seen with
    Python 3.11). A rank ends soon anyway.
    """
    if not dist.is_initialized():
        tracemalloc.stop()
