"""Ranks for tests of picolib.comm: forked, on gloo, without the launcher (which has tests of its own)."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist


def run_forked(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Call `function(*args)` on forked ranks; return what each rank returned, or fail with its traceback."""
    with tempfile.TemporaryDirectory() as folder:
        pids = [_fork(function, args, rank, world_size, Path(folder)) for rank in range(world_size)]
        for pid in pids:
            os.waitpid(pid, 0)
        results = [pickle.loads((Path(folder) / f"result{r}").read_bytes()) for r in range(world_size)]
    failures = [text for ok, text in results if not ok]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    return [value for _, value in results]


def _fork(function: Callable[..., Any], args: tuple, rank: int, world_size: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        result = (True, function(*args))
        store.set(f"done{rank}", "1")
        store.wait([f"done{r}" for r in range(world_size)])  # nobody closes sockets that another still needs
    except BaseException:
        result = (False, f"rank {rank} of {world_size}:\n{traceback.format_exc()}")
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    sys.stdout.flush()
    os._exit(0)


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """`run_ranks(function, world_size, *args)`, see `run_forked`."""
    return run_forked
