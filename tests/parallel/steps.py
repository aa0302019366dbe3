"""Small steps of training, the same for one process and for each of several ranks."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib.parallel.full_state import full_state_dict
from picolib.parallel.spec import named_specs
from tests.parallel.zoo import build, data

SMALL = 40 / (1 << 20)  # MiB: five float64 numbers fill a bucket, so that there are several
wrap = partial(picolib.DistributedDataParallel, bucket_cap_mb=SMALL)


def my_data(n: int = 12, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """This rank's part of the batch."""
    return tuple(t.tensor_split(dist.get_world_size())[dist.get_rank()] for t in data(n, seed))


def backward(model, x, y, **options) -> None:
    """The sum of squares, over the size of the whole batch."""
    ((model(x, **options) - y).square().sum() / 12).backward()


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Copies, by name."""
    module = getattr(model, "module", model)
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in module.named_parameters()}


def whole(kind, *calls, seed: int = 0) -> dict[str, torch.Tensor | None]:
    """The gradient of one process after these calls, each (seed of the data, options of forward)."""
    model = build(kind, seed)
    for data_seed, options in calls:
        backward(model, *data(12, data_seed), **options)
    return gradients(model)


def assert_close(found: dict, right: dict, tolerance: float = 1e-12) -> None:
    """The same gradients, and none where there should be none."""
    for name, gradient in right.items():
        assert (found[name] is None) == (gradient is None), name
        assert gradient is None or torch.allclose(found[name], gradient, rtol=tolerance, atol=tolerance), name


def sharded(model: nn.Module, **options) -> nn.Module:
    """Every layer that has no inner one, then the root."""
    for layer in list(model.children()):
        picolib.fully_shard(layer, **options)
    return picolib.fully_shard(model, **options)


def whole_gradients(model) -> dict[str, torch.Tensor | None]:
    """The ranks' parts of every gradient put together."""
    trained = {name: p for name, p, _ in named_specs(model)}
    kept = {name: p.detach().clone() for name, p in trained.items()}
    none = {name for name, p in trained.items() if p.grad is None}
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(p.grad if name not in none else 0)
        state = full_state_dict(model)
        for name, p in trained.items():
            p.copy_(kept[name])
    return {name: None if name in none else state[name] for name in trained}
