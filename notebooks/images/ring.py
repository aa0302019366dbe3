"""Draws ring.png, the README's picture, from a real run: `python notebooks/images/ring.py`."""

from pathlib import Path

import torch
import torch.distributed as dist

import picolib
from picolib import comm
from picolib.course import figures


def all_reduce() -> None:
    """What each rank runs: its own number, added up around the ring."""
    comm.all_reduce(torch.full((800,), 10.0 ** dist.get_rank()), algorithm="ring")


if __name__ == "__main__":
    run = picolib.run(all_reduce, 4, trace=True)
    picture = figures.overview(figures.walk_trace(run.trace))
    Path(__file__).with_suffix(".png").write_bytes(picture.png(scale=1.25))  # 1,000 pixels wide
