"""Messages between GPUs through host memory, where ranks share a GPU and NCCL cannot connect them.

gloo's collectives take CUDA tensors by themselves; its send and receive do not. Here they copy to the host first, or
from the host when the message has arrived. It is done on the process group, below everything that sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor has to be staged."""
    return tensor.is_cuda


class StagedWork:
    """A transfer between host copies; a received one goes to its real place when somebody waits for it."""

    def __init__(self, work: Any, copies: Sequence[tuple[torch.Tensor, torch.Tensor]], arriving: bool) -> None:
        self._work = work
        self._copies = copies  # kept alive until the transfer is over
        self._arriving = arriving

    def wait(self, *timeout: Any) -> bool:
        """As torch's: block until the message is through."""
        done = self._work.wait(*timeout)
        if self._arriving:
            for host, device in self._copies:
                device.copy_(host)
            self._arriving = False  # waiting twice must not bring old values back
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def install(needed: Callable[[torch.Tensor], bool] = on_gpu) -> None:
    """Stage the point-to-point messages of all process groups of this process."""
    for name, arriving in (("send", False), ("recv", True), ("recv_anysource", True)):
        setattr(dist.ProcessGroup, name, _staged(getattr(dist.ProcessGroup, name), needed, arriving))


def _staged(transfer: Callable[..., Any], needed: Callable[[torch.Tensor], bool], arriving: bool) -> Callable[..., Any]:
    def call(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], *rest: Any, **named: Any) -> Any:
        if not any(needed(tensor) for tensor in tensors):
            return transfer(group, tensors, *rest, **named)
        copies = [(_host(tensor, filled=not arriving), tensor) for tensor in tensors]
        return StagedWork(transfer(group, [host for host, _ in copies], *rest, **named), copies, arriving)

    return call


def _host(tensor: torch.Tensor, filled: bool) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    return host.copy_(tensor) if filled else host
