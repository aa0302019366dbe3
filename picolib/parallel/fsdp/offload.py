"""Where a rank's shards live while nobody computes with them: on the device, on the CPU, or in files on a disk.

    file on disk <-> CPU memory <-> device: gather, compute, reduce

Only shards are offloaded: parameters, their gradients, and so the optimizer's state and step. Whole parameters, whole
gradients and the buffers of collectives are on the compute device, a unit or two at a time.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class FileOffloadPolicy:
    """Offload to memory-mapped files: shards, their gradients, on request optimizer state. DeepSpeed: "NVMe offload".

    The optimizer steps on the files in place. The kernel holds in memory what fits, and writes to the disk and drops
    the rest; a rank's own memory need not hold any of it. A file has lost its name as soon as it is mapped, and goes
    when its tensor goes or the process ends, however it ends.

    Args:
        folder: exists, can be written, and is on a fast local disk; not on tmpfs, which is memory itself (/dev/shm,
            often /tmp). Ranks may have different ones.

    Source: Rajbhandari et al. 2021, "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning".
    """

    folder: str | os.PathLike[str]

    def offload_optimizer_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the optimizer's state into files: what it has now, and after each step what has become new.

        Call it once, on an optimizer just built. The first step still makes the state in memory.
        """
        self._move_state(optimizer)
        optimizer.register_step_post_hook(lambda optimizer, args, kwargs: self._move_state(optimizer))

    def _move_state(self, optimizer: torch.optim.Optimizer) -> None:
        home = InFiles(self.folder)
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() and not home.holds(value):  # no count of steps
                    state[name] = home.keep(value)

    def problem(self) -> str | None:
        """Why this rank can't use the folder, as a sentence."""
        if os.name != "posix":
            return "offload_policy must not be FileOffloadPolicy here: Windows can't remove a file that is mapped."
        try:
            new_in_file(torch.Size([1]), torch.uint8, self.folder)
        except OSError as error:
            why = f"rank {dist.get_rank()} can't make a file in {os.fspath(self.folder)!r} ({error.strerror})"
            return f"offload_policy must have a folder that exists and can be written, but {why}."
        return None


class OnDevice:
    """No offload: shards are where the module's parameters are. `keep` and `holds` are what others have in their way.

    compute_device: where whole parameters are; None means wherever the shards are.
    """

    compute_device: torch.device | None = None
    pins = False  # whether a copy to the device may go on by itself

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy that lives here."""
        return tensor.clone(memory_format=torch.contiguous_format)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lives here already."""
        return True


class OnCPU(OnDevice):
    """In the CPU's memory; pinned if a GPU is to read it, so that the copy overlaps with compute."""

    def __init__(self, compute_device: torch.device, pin_memory: bool) -> None:
        self.compute_device, self.pins = compute_device, pin_memory and compute_device.type == "cuda"

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in CPU memory. It waits for the device: what comes back may be stepped at once."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.pins).copy_(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it is on the CPU."""
        return tensor.device.type == "cpu"


class InFiles(OnDevice):
    """Each tensor in a memory-mapped file of its own, in `folder`."""

    def __init__(self, folder: str | os.PathLike[str], compute_device: torch.device | None = None) -> None:
        self.folder, self.compute_device = folder, compute_device

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in a new file."""
        return new_in_file(tensor.shape, tensor.dtype, self.folder).copy_(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its numbers are in a file; no numbers need none."""
        return not tensor.numel() or tensor.untyped_storage().filename is not None


def new_in_file(shape: torch.Size, dtype: torch.dtype, folder: str | os.PathLike[str]) -> torch.Tensor:
    """A tensor on the CPU whose storage is a file in `folder`, which nobody else can open: it has no name any more.

    Raises:
        OSError: the folder can't be written, or the disk is full (told here, and not by a bus error at the first use).
    """
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    handle, path = tempfile.mkstemp(prefix="picolib-", dir=folder)
    try:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(handle, 0, shape.numel() * dtype.itemsize)
        return torch.from_file(path, shared=True, size=shape.numel(), dtype=dtype).view(shape)
    finally:
        os.close(handle)
        os.unlink(path)


def home_for(policy: Any, device: torch.device, *groups: Any) -> OnDevice:
    """Where the shards of a module that computes on `device` will live.

    Raises:
        ValueError: a rank of the groups (None is no group) can't write into its folder; the same sentence on all ranks.
    """
    if not offloads(policy):
        return OnDevice()
    if not isinstance(policy, FileOffloadPolicy):
        return OnCPU(device, policy.pin_memory)
    problem = policy.problem()
    for group in filter(None, groups):
        told: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(told, problem, group=group)
        problem = next(filter(None, told), None)
    if problem is not None:
        raise ValueError(problem)
    return InFiles(policy.folder, device)


def offloads(policy: Any) -> bool:
    """Whether an offload_policy moves anything: torch's base class OffloadPolicy does not.

    Raises:
        ValueError: it is no such policy.
    """
    if policy is None or isinstance(policy, FileOffloadPolicy):
        return policy is not None
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy  # a second; whoever has a policy has paid it

    if isinstance(policy, CPUOffloadPolicy) or type(policy) is OffloadPolicy:
        return isinstance(policy, CPUOffloadPolicy)
    raise ValueError(
        f"offload_policy must be torch's OffloadPolicy or CPUOffloadPolicy, picolib's FileOffloadPolicy, or None, got "
        f"{policy!r}."
    )


def compute_device(policy: Any, parameter_device: torch.device, mesh: Any) -> torch.device:
    """That of the parameters; with offload, if they are on the CPU still, the kind of device the mesh is made of."""
    if not offloads(policy) or parameter_device.type != "cpu" or mesh is None or mesh.device_type == "cpu":
        return parameter_device
    return torch.device(mesh.device_type, torch.get_device_module(mesh.device_type).current_device())
