"""`init`: the process group that `run` would have made, in processes that something else has started."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist

from picolib.launch import nodes

SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def init(backend: str = "auto") -> None:
    """Join the world of torchrun or SLURM; alone, make a world of one rank; inside `picolib.run`, do nothing.

    How many ranks share a node (LOCAL_WORLD_SIZE) is what `algorithm="hierarchical"` then goes by.

    Args:
        backend: "auto" (NCCL when this rank has a GPU of its own, else gloo), "gloo" or "nccl".

    Raises:
        ValueError: the launcher has set some of its variables but not all.
    """
    if dist.is_initialized():
        return
    known = _coordinates(os.environ)
    local = int(known.get("LOCAL_RANK", 0))
    if backend == "auto":
        own_gpu = torch.cuda.is_available() and int(known.get("LOCAL_WORLD_SIZE", 1)) <= torch.cuda.device_count()
        backend = "cpu:gloo,cuda:nccl" if own_gpu else "gloo"
    if "nccl" in backend:
        torch.cuda.set_device(local)
    if "RANK" not in known:
        _alone(backend)
        return
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in known]
    if missing:
        raise ValueError(f"RANK is set but {', '.join(missing)} is not: start this script with torchrun or srun")
    address = f"tcp://{known['MASTER_ADDR']}:{known['MASTER_PORT']}"
    dist.init_process_group(backend, init_method=address, rank=int(known["RANK"]), world_size=int(known["WORLD_SIZE"]))
    nodes.agree(int(known.get("LOCAL_WORLD_SIZE", 1)), local)


def _coordinates(variables: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """RANK and its companions, from torchrun's variables or else from SLURM's."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    known = {name: variables[name] for name in names if variables.get(name)}
    if "RANK" not in known and "SLURM_PROCID" in variables and "SLURM_STEP_ID" in variables:
        known |= {name: variables[slurm] for name, slurm in SLURM.items() if slurm in variables}
        nodes = int(variables.get("SLURM_NNODES", 1))
        known.setdefault("LOCAL_WORLD_SIZE", str(-(-int(known["WORLD_SIZE"]) // nodes)))
        known.setdefault("MASTER_ADDR", variables.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
        known.setdefault("MASTER_PORT", str(20000 + int(variables.get("SLURM_JOB_ID", 0)) % 20000))
    return known


def _alone(backend: str) -> None:
    folder = tempfile.mkdtemp(prefix="picolib-")
    store = dist.FileStore(os.path.join(folder, "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    os.unlink(os.path.join(folder, "store"))
    os.rmdir(folder)
