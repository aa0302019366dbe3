"""Handing out inputs: every rank gets its own, and nobody can look up another's.

As an argument of the run all ranks' inputs would stand in every rank's memory, for the learner's function to find. So
they travel in files, and all files are gone before any rank calls that function.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence

import torch.distributed as dist

from picolib.course.exercise import Case


@contextlib.contextmanager
def handed_out(cases: Sequence[Case]) -> Iterator[str]:
    """A folder with a file for each rank, named like it: the inputs it gets in each case (all of one world size)."""
    from picolib.launch import pickling

    with tempfile.TemporaryDirectory(prefix="picolib-inputs-", ignore_cleanup_errors=True) as folder:
        for rank in range(cases[0].world_size):
            with open(os.path.join(folder, str(rank)), "wb") as file:
                file.writelines(pickling.dumps([case.inputs[rank] for case in cases]))
        yield folder


def own_inputs(folder: str) -> list[tuple]:
    """In a rank: its inputs of each case; returns when every rank has removed its file from the folder."""
    from picolib.launch import pickling

    path = os.path.join(folder, str(dist.get_rank()))
    with open(path, "rb") as file:
        packed = bytearray(file.read())
    os.remove(path)
    while os.listdir(folder):
        time.sleep(0.001)
    return pickling.loads(memoryview(packed))
