"""Which backend connects the ranks: what works on this machine for that device."""

from __future__ import annotations

from typing import NamedTuple


class Choice(NamedTuple):
    """The backend for init_process_group, GPUs to spread the ranks over (0: none), and a line for the learner."""

    backend: str
    gpus: int = 0
    note: str = ""


def choose(backend: str, device: str, world_size: int, gpus: int | None = None) -> Choice:
    """NCCL when each rank has a GPU of its own, else gloo.

    Args:
        backend: "auto", "gloo" or "nccl".
        device: "cpu" or "cuda".
        gpus: GPUs of this machine; counted (without initialising CUDA here) when None.

    Raises:
        ValueError: no such backend or device, or one that cannot work here.
    """
    if backend not in ("auto", "gloo", "nccl"):
        raise ValueError(f'backend must be "auto", "gloo" or "nccl", got {backend!r}')
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", got {device!r}')
    if device == "cpu":
        if backend == "nccl":
            raise ValueError('backend="nccl" connects GPUs only: pass device="cuda", or backend="gloo"')
        return Choice("gloo")
    gpus = _count() if gpus is None else gpus
    if gpus == 0:
        raise ValueError('device="cuda" needs a GPU that torch can use and there is none here: pass device="cpu"')
    if backend == "nccl" and gpus < world_size:
        raise ValueError(f'backend="nccl" needs a GPU for each of the {world_size} ranks, here are {gpus}: use "auto"')
    if backend != "gloo" and gpus >= world_size:
        return Choice("cpu:gloo,cuda:nccl", gpus)
    shared = f"{world_size} ranks share {gpus} GPU{'s' if gpus > 1 else ''}" if gpus < world_size else "as asked"
    return Choice("gloo", gpus, f"{shared}: messages go through host memory (gloo)")


def _count() -> int:
    import torch

    return torch.cuda.device_count()
