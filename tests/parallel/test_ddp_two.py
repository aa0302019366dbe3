"""Two DistributedDataParallel on one group: each has its own gradients, or a sentence says why not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib


class Encoder(nn.Linear):
    """Of the same shape as the other, so that their buckets would fit together."""


class Decoder(nn.Linear):
    """See `Encoder`."""


def wrapped():
    return [picolib.DistributedDataParallel(kind(4, 4, bias=False)) for kind in (Encoder, Decoder)]


def backward_by(order):
    encoder, decoder = wrapped()
    x = torch.full((1, 4), dist.get_rank() + 1.0)
    losses = [encoder(x).sum(), 10 * decoder(x).sum()]
    for number in order(dist.get_rank()):
        losses[number].backward()
    return [float(module.module.weight.grad.mean()) for module in (encoder, decoder)]


def test_one_order_on_all_ranks_gives_each_its_own_gradients():
    assert list(picolib.run(backward_by, 2, lambda rank: (1, 0))) == [[1.5, 15.0]] * 2


def test_another_order_on_another_rank_is_told_by_the_names_of_both():
    with pytest.raises(picolib.MismatchError) as error:
        picolib.run(backward_by, 2, lambda rank: (0, 1) if rank == 0 else (1, 0))
    assert "bucket 0 of wrapper 1 (Encoder)" in str(error.value)
    assert "bucket 0 of wrapper 2 (Decoder)" in str(error.value)


def labels(many, on_a_group_of_its_own):
    group = dist.new_group([0, 1]) if on_a_group_of_its_own else None
    if group:
        picolib.DistributedDataParallel(Encoder(4, 4), process_group=group)
    module = [picolib.DistributedDataParallel(Decoder(4, 4)) for _ in range(many)][-1]
    module(torch.ones(1, 4)).sum().backward()


@pytest.mark.parametrize(
    ("many", "grouped", "called"), [(1, False, ""), (1, True, ""), (2, False, " of wrapper 2 (Decoder)")]
)
def test_one_wrapper_on_a_group_needs_no_name(many, grouped, called):
    run = picolib.run(labels, 2, many, grouped, trace=True)
    buckets = {e.label.partition("] ")[2] for e in run.trace.events if e.kind == "collective" and "bucket" in e.label}
    assert buckets == {f"bucket 0{called}"}


def copied_on_rank_0():
    module = picolib.DistributedDataParallel(Encoder(4, 4))
    if dist.get_rank() == 0:
        copy.deepcopy(module)
    module(torch.ones(1, 4)).sum().backward()


def test_a_copy_on_one_rank_changes_no_name():
    picolib.run(copied_on_rank_0, 2)
