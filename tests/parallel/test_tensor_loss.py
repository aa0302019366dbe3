"""Cross-entropy on a cut vocabulary against PyTorch's on the whole one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import picolib
from picolib.parallel.tensor import vocab_parallel_cross_entropy


def losses(reduction: str, smoothing: float, scale: float, dtype: torch.dtype):
    size, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(5)
    whole = (scale * torch.randn(2, 4, 13, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    target = torch.randint(13, (2, 4), generator=generator)
    target[0, 1] = -100
    width = -(-13 // size)
    mine = F.pad(whole.detach(), (0, width * size - 13), value=float("-inf")).chunk(size, -1)[rank].clone()
    mine.requires_grad_()
    found = vocab_parallel_cross_entropy(mine, target, reduction=reduction, label_smoothing=smoothing)
    right = F.cross_entropy(
        whole.double().flatten(0, 1), target.flatten(), reduction=reduction, label_smoothing=smoothing
    )
    found.sum().backward()
    right.sum().backward()
    wanted = F.pad(whole.grad, (0, width * size - 13)).chunk(size, -1)[rank]
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-2}
    assert torch.allclose(found.flatten().double(), right.flatten(), **tolerance)
    assert torch.allclose(mine.grad.double(), wanted.double(), **tolerance)
    assert torch.isfinite(found).all() and torch.isfinite(mine.grad).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_equals_cross_entropy_on_the_whole_logits(reduction, smoothing):
    picolib.run(losses, 3, reduction, smoothing, 1.0, torch.float64)


def test_the_loss_is_stable_at_logits_of_a_thousand_and_works_in_bfloat16():
    picolib.run(losses, 2, "none", 0.0, 1000.0, torch.float64)
    picolib.run(losses, 4, "mean", 0.1, 1.0, torch.bfloat16)


def count_the_losss_calls(smoothing: float):
    logits = torch.zeros(6, 4, dtype=torch.float64, requires_grad=True)
    target = torch.arange(6)
    vocab_parallel_cross_entropy(logits, target, label_smoothing=smoothing).backward()


@pytest.mark.parametrize(("smoothing", "numbers"), [(0.0, 2), (0.1, 3)])
def test_the_loss_takes_one_max_and_one_sum(smoothing, numbers):
    trace = picolib.run(count_the_losss_calls, 2, smoothing).trace
    assert trace.calls[0] == {"all_reduce": 2}
    assert trace.bytes_sent == [8 * (6 + numbers * 6 + 1)] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduction": "max"}, "reduction must be one of mean, sum, none"),
        ({"label_smoothing": 2}, "from 0 to 1, got 2"),
    ],
)
def test_wrong_arguments_of_the_loss(options, words):
    with pytest.raises(picolib.RankError, match="ValueError") as error:
        picolib.run(partial(_loss_with, **options), 2)
    assert words in str(error.value)


def _loss_with(**options):
    vocab_parallel_cross_entropy(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long), **options)
