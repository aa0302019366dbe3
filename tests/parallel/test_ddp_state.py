"""DistributedDataParallel with checkpoints, buffers, other precisions, and outputs of any form."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import picolib
from tests.parallel.steps import assert_close, backward, gradients, my_data, whole, wrap
from tests.parallel.zoo import Plain, WithRunningStatistics, build, data

# Checkpointing


class Checkpointed(nn.Module):
    """Layers whose activations are computed again during backward."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.head, self.reentrant = nn.Linear(5, 3), reentrant

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=self.reentrant)
        return self.head(x)


def with_checkpoints(reentrant: bool, around: bool):
    model = wrap(build(partial(Checkpointed, reentrant), dist.get_rank()), gradient_divide_factor=1)
    for seed in (0, 1):
        model.zero_grad()
        x, y = my_data(seed=seed)
        x.requires_grad_(True)  # else reentrant checkpointing loses the gradients
        out = checkpoint(model, x, use_reentrant=reentrant) if around else model(x)
        ((out - y).square().sum() / 12).backward()
    return gradients(model)


@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["recomputing", "reentrant"])
def test_checkpointing_inside_the_module_and_around_it(reentrant, around):
    for found in picolib.run(with_checkpoints, 3, reentrant, around):
        assert_close(found, whole(Checkpointed, (1, {})))


# Buffers, precision, views


def running_statistics(broadcast: bool):
    model = wrap(build(WithRunningStatistics, dist.get_rank()), broadcast_buffers=broadcast)
    for seed in (0, 1, 2):
        model.zero_grad()
        backward(model, *my_data(seed=seed))
    return model.module.norm.running_mean


def test_buffers_are_those_of_the_first_rank_before_each_forward():
    """A rank's running mean is then 0.9 times the first rank's before, and 0.1 times the mean of its own batch."""
    model = build(WithRunningStatistics, 0)
    parts = [data(12, seed)[0].tensor_split(3) for seed in (0, 1, 2)]
    for part in parts[:2]:
        model(part[0])
    before = model.norm.running_mean.clone()
    apart, together = (picolib.run(running_statistics, 3, broadcast) for broadcast in (False, True))
    for rank in range(3):
        right = 0.9 * before + 0.1 * model.first(parts[2][rank]).mean(0)
        assert torch.allclose(together[rank], right, rtol=1e-12)
        assert torch.allclose(apart[rank], right, rtol=1e-12) == (rank == 0)


def in_bfloat16(dtype):
    torch.manual_seed(0)
    model = wrap(nn.Linear(64, 64, bias=False).bfloat16(), reduce_dtype=dtype, gradient_divide_factor=1)
    x = torch.full((1, 64), 1.0 if dist.get_rank() == 0 else 2.0**-9).bfloat16()
    model(x).sum().backward()
    return model.module.weight.grad


def test_bfloat16_gradients_can_be_summed_in_float32():
    """1 + 7·2^-9 is 1.0137: in bfloat16 each small number is rounded away, in float32 the sum is rounded once."""
    low, high = (picolib.run(in_bfloat16, 8, dtype)[0] for dtype in (None, torch.float32))
    assert high.dtype == torch.bfloat16
    assert torch.equal(high, torch.full((64, 64), 1 + 7 * 2.0**-9).bfloat16())
    assert not torch.equal(low, high)


def where_gradients_live(as_view: bool):
    model = wrap(build(Plain, 0), gradient_as_bucket_view=as_view)
    places = []
    for _ in range(2):
        backward(model, *my_data())
        buffers = [b.flat.untyped_storage().data_ptr() for b in model.reducer.buckets]
        places.append({p.grad.untyped_storage().data_ptr() in buffers for p in model.parameters() if p.numel()})
        model.zero_grad(set_to_none=False)
    return places


def test_gradients_are_views_into_their_buckets_when_asked():
    assert picolib.run(where_gradients_live, 2, True)[1] == [{True}, {True}]
    assert picolib.run(where_gradients_live, 2, False)[1] == [{False}, {False}]


def output_of_any_form(form: str):
    class Formed(Plain):
        def forward(self, x):
            y = super().forward(x)
            return {"dict": {"y": y}, "list": [None, (y,)], "attribute": y}[form]

    model = wrap(build(Formed, dist.get_rank()), gradient_divide_factor=1)
    x, y = my_data()
    out = model(x)
    out = {"dict": lambda: out["y"], "list": lambda: out[1][0], "attribute": lambda: out}[form]()
    ((out - y).square().sum() / 12).backward()
    return gradients(model)


@pytest.mark.parametrize("form", ["dict", "list"])
def test_outputs_may_be_nested(form):
    assert_close(picolib.run(output_of_any_form, 2, form)[1], whole(Plain, (0, {})))
