"""What a rank shares with the kernel (working directory, sys.path, environment) and what it must not inherit."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

# Set by torchrun, SLURM, MPI or a cluster's start script: they describe another job, not this run.
LAUNCHER_VARIABLES = frozenset(
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCH_DISTRIBUTED_DEBUG"),
        *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        *("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ]
)
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL")


def is_launcher_variable(name: str) -> bool:
    """Whether `name` tells a process which rank of some other job it is."""
    return name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIXES)


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment for ranks: the kernel's own, less what describes another job."""
    return {name: value for name, value in variables.items() if not is_launcher_variable(name)}


def of_kernel() -> dict[str, Any]:
    """What every rank takes over from the kernel, as it is now."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the notebook's folder has been deleted
        folder = None
    return {"env": without_launcher(os.environ), "cwd": folder, "path": list(sys.path), "argv": list(sys.argv)}


def take_over(surroundings: Mapping[str, Any]) -> None:
    """Become like the kernel that sent `surroundings`."""
    os.environ.clear()
    os.environ.update(surroundings["env"])
    sys.path[:] = surroundings["path"]
    sys.argv[:] = surroundings["argv"]
    if surroundings["cwd"] and os.path.isdir(surroundings["cwd"]):
        os.chdir(surroundings["cwd"])


def use_loopback() -> None:
    """Bind gloo to the loopback interface, whatever the host is called and whichever networks it has.

    Only the C library's copy of the environment changes: gloo reads that one, the learner sees `os.environ`.
    """
    if not hasattr(socket, "if_nameindex"):
        return
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.putenv("GLOO_SOCKET_IFNAME", name)
            return
