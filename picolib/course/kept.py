"""What a rank keeps of the model state, measured: the chart of lesson 01A on real ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib.plan import memory

WAYS = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP2")


def state_kept(way: str, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, int]:
    """Bytes that this rank keeps after the backward pass of its second step, by part of the model state.

    way: one of WAYS; "FSDP2" is PyTorch's own, the others are picolib's. model: a Llama, not yet wrapped. Called on
    every rank. AdamW's step counters, 4 bytes for each tensor, are left out.
    """
    from picolib.model import sum_of_token_losses

    model, optimizer, inner = _wrapped(way, model)
    for _ in range(2):
        optimizer.zero_grad()
        sum_of_token_losses(model(inputs), targets).backward()
        with memory.measure(model, inner, shards=_gradient_shards(way, optimizer, inner)) as found:
            pass
        optimizer.step()
    return {
        "parameters": found.parameters,
        "gradients": found.gradients + found.others["shards"],
        "optimizer": found.optimizer - 4 * len(inner.state),
    }


def _wrapped(way: str, model: nn.Module) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    """The model, the optimizer to call, and the one that has the state on this rank."""
    import picolib

    if way in ("ZeRO-1", "ZeRO-2"):
        zero = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, stage=int(way[-1]), lr=1e-3)
        return model, zero, zero.inner
    if way == "DDP":
        model = picolib.DistributedDataParallel(model)
    else:
        shard = picolib.fully_shard if way == "ZeRO-3" else _torchs_fully_shard()
        for module in (*model.model.layers, model):
            shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, optimizer


def _torchs_fully_shard() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return partial(fully_shard, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def _gradient_shards(way: str, optimizer: Any, inner: torch.optim.Optimizer) -> list[torch.Tensor]:
    """ZeRO-2's gradients are not in the model's `.grad`: each rank has its part in the inner optimizer's."""
    if way != "ZeRO-2":
        return []
    optimizer.finalize_grads()
    return [p.grad for group in inner.param_groups for p in group["params"]]
