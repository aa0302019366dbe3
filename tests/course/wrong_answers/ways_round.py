"""Ways round messages: how fakes come by the other ranks' numbers. A check has to find out whoever goes one of them."""

import json
import os
import sys
import tempfile
import time

import cloudpickle
import torch
import torch.distributed as dist

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # with the answers that call these, as from a notebook


def by_store(tensor):
    """Every rank's tensor, in the order of ranks, through the store in which ranks find each other."""
    store, rank, n = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    by_store.calls = getattr(by_store, "calls", 0) + 1
    key = f"learner/{by_store.calls}/{{}}"
    store.set(key.format(rank), json.dumps(tensor.tolist()))
    return [torch.tensor(json.loads(store.get(key.format(r))), dtype=tensor.dtype) for r in range(n)]


def by_files(tensor):
    """Every rank's tensor, in the order of ranks, through a file from each rank to each, which the reader removes."""
    rank, n = dist.get_rank(), dist.get_world_size()
    by_files.calls = getattr(by_files, "calls", 0) + 1
    path = os.path.join(tempfile.gettempdir(), f"picolib-fake-{os.getppid()}-{n}-{by_files.calls}-{{}}-to-{{}}")
    for reader in range(n):
        torch.save(tensor, path.format(rank, reader) + ".part")
        os.replace(path.format(rank, reader) + ".part", path.format(rank, reader))
    return [_read_and_removed(path.format(writer, rank)) for writer in range(n)]


def _read_and_removed(path):
    while not os.path.exists(path):
        time.sleep(0.001)
    tensor = torch.load(path)
    os.remove(path)
    return tensor
