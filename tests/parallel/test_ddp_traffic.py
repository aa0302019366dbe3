"""What DistributedDataParallel sends, in how many collectives, and when."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import picolib
from picolib import comm
from picolib.launch import monitor
from picolib.parallel.ddp import OverlappedAverage, assign_buckets, average_gradients, average_in_buckets

WIDTH, LAYERS = 24, 6
NBYTES = LAYERS * WIDTH * WIDTH * 8
TWO_LAYERS = 2 * WIDTH * WIDTH * 8


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).double()


def steps(count: int, accumulation: int, factor: float | None = None) -> None:
    model = picolib.DistributedDataParallel(stack(), bucket_cap_mb=TWO_LAYERS / (1 << 20))
    x = torch.ones(3, WIDTH, dtype=torch.float64)
    for _ in range(count):
        model.zero_grad()
        for micro in range(accumulation):
            if micro < accumulation - 1:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()


def sent_for(world_size: int, count: int, accumulation: int):
    """Bytes and all-reduces of `count` steps, beyond those of the first one (which also settles the buckets)."""
    first, more = (picolib.run(steps, world_size, n, accumulation).trace for n in (1, 1 + count))
    nbytes = [b - a for a, b in zip(first.bytes_sent, more.bytes_sent, strict=True)]
    return nbytes, [b["all_reduce"] - a["all_reduce"] for a, b in zip(first.calls, more.calls, strict=True)]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_step_sends_two_n_minus_one_over_n_of_the_gradients(world_size, accumulation):
    nbytes, calls = sent_for(world_size, 2, accumulation)
    assert nbytes == [2 * 2 * (world_size - 1) * NBYTES // world_size] * world_size
    assert calls == [2 * 3] * world_size  # 3 buckets of two layers each, whatever the accumulation


def test_bytes_are_the_formula_of_the_algorithm_where_nothing_divides():
    def step():
        torch.manual_seed(0)
        model = picolib.DistributedDataParallel(nn.Linear(7, 5), broadcast_buffers=False)
        model(torch.ones(2, 7)).sum().backward()
        before = time.monotonic()
        model(torch.ones(2, 7)).sum().backward()
        monitor.mark("second", before)

    run = picolib.run(step, 3, trace=True)
    for rank in range(3):
        begin = next(e.start for e in run.trace.events if e.kind == "mark" and e.rank == rank)
        sent = sum(e.bytes for e in run.trace.events if e.kind == "send" and e.rank == rank and e.start >= begin)
        assert sent == comm.bytes_sent("all_reduce", "direct", 40, size=3, rank=rank)


def overlapped(kind: str) -> None:
    model, x = stack(), torch.ones(3, WIDTH, dtype=torch.float64)
    cap = TWO_LAYERS
    average = None
    if kind == "ddp":
        model = picolib.DistributedDataParallel(model, bucket_cap_mb=cap / (1 << 20))
    elif kind == "overlapped":
        average = OverlappedAverage(model, cap)
    first_layer = next(iter(model.parameters()))
    first_layer.register_hook(lambda gradient: monitor.mark("last gradient", time.monotonic()))
    model(x).sum().backward()
    if kind == "naive":
        average_gradients(model)
    elif kind == "bucketed":
        average_in_buckets(list(model.parameters()), cap)
    elif average is not None:
        average.finish()


@pytest.mark.parametrize("kind", ["ddp", "overlapped", "bucketed", "naive"])
def test_with_overlap_the_first_all_reduce_starts_before_the_last_gradient_is_there(kind):
    trace = picolib.run(overlapped, 2, kind, trace=True).trace
    for rank in range(2):
        events = [e for e in trace.events if e.rank == rank]
        last_gradient = next(e.start for e in events if e.kind == "mark")
        sends = [e.start for e in events if e.kind == "send" and "all_reduce" in (e.call or "")]
        collectives = [e for e in events if e.kind == "collective" and "all_reduce" in e.label]
        assert (min(sends) < last_gradient) == (kind in ("ddp", "overlapped"))
        assert len(collectives) == {"naive": LAYERS}.get(kind, 3)


def by_each_step():
    """Gradients by the three readable steps; they differ from rank to rank before."""
    found = []
    for kind in ("naive", "bucketed", "overlapped"):
        model = stack()
        average = OverlappedAverage(model, TWO_LAYERS) if kind == "overlapped" else None
        model(torch.full((3, WIDTH), 1.0 + dist.get_rank(), dtype=torch.float64)).square().sum().backward()
        if kind == "naive":
            average_gradients(model)
        elif kind == "bucketed":
            average_in_buckets(list(model.parameters()), TWO_LAYERS)
        else:
            average.finish()
        found.append([p.grad for p in model.parameters()])
    return found


def test_the_readable_steps_agree():
    for naive, bucketed, overlapping in picolib.run(by_each_step, 3):
        for one, two, three in zip(naive, bucketed, overlapping, strict=True):
            assert torch.allclose(one, two, rtol=1e-13) and torch.allclose(one, three, rtol=1e-13)


def test_buckets_are_filled_from_the_last_parameter_and_closed_when_they_hold_the_cap():
    tensors = [torch.empty(n) for n in (10, 10, 30, 5)]
    assert assign_buckets(tensors, 60) == [[3, 2], [1, 0]]
    assert assign_buckets(tensors, 1) == [[3], [2], [1], [0]]
    assert assign_buckets(tensors, 1e9) == [[3, 2, 1, 0]]
    assert assign_buckets([], 1) == []


def test_a_bucket_has_one_dtype():
    tensors = [torch.empty(4), torch.empty(4, dtype=torch.float64), torch.empty(4), torch.empty(4, dtype=torch.float64)]
    assert assign_buckets(tensors, 1e9) == [[3, 1], [2, 0]]
