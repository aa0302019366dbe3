"""Cross-entropy on a cut vocabulary against PyTorch's on the whole one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import picolib
from picolib.comm import functional
from picolib.parallel.tensor import VocabParallelLinear, vocab_parallel_cross_entropy


def losses(scale: float = 1.0, dtype: torch.dtype = torch.float64, ignored: int = -100, **options):
    """Losses and gradients of 2 x 4 tokens, 13 words; -inf stands where a rank has fewer words than the others."""
    size, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(5)
    whole = (scale * torch.randn(2, 4, 13, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    target = torch.randint(13, (2, 4), generator=generator)
    target[0, 1] = target[1, 2] = ignored
    width = -(-13 // size)
    mine = F.pad(whole.detach(), (0, width * size - 13), value=float("-inf")).chunk(size, -1)[rank].clone()
    mine.requires_grad_()
    options["ignore_index"] = ignored
    found = vocab_parallel_cross_entropy(mine, target, **options)
    right = F.cross_entropy(whole.double().flatten(0, 1), target.flatten(), **options)
    found.sum().backward()
    right.sum().backward()
    wanted = F.pad(whole.grad, (0, width * size - 13)).chunk(size, -1)[rank]
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-2}
    assert torch.allclose(found.flatten().double(), right.flatten(), **tolerance)
    assert torch.allclose(mine.grad.double(), wanted.double(), **tolerance)
    assert torch.isfinite(found).all() and torch.isfinite(mine.grad).all()


@pytest.mark.parametrize("ignored", [-100, 7])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_equals_cross_entropy_on_the_whole_logits(reduction, smoothing, ignored):
    picolib.run(partial(losses, ignored=ignored, reduction=reduction, label_smoothing=smoothing), 3)


@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
def test_groups_of_any_size_also_with_a_rank_that_has_no_word(world_size):
    picolib.run(partial(losses, label_smoothing=0.1), world_size)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_is_stable_at_logits_of_a_thousand(dtype, smoothing):
    picolib.run(partial(losses, scale=1000.0, reduction="none", label_smoothing=smoothing, dtype=dtype), 2)


def test_it_works_in_bfloat16():
    picolib.run(partial(losses, dtype=torch.bfloat16, label_smoothing=0.1), 4)


def nothing_counts():
    logits = torch.randn(3, 4, requires_grad=True)
    target = torch.full((3,), -100)
    none, total, mean = (vocab_parallel_cross_entropy(logits, target, reduction=r) for r in ("none", "sum", "mean"))
    total.backward()
    return none.tolist(), total.item(), mean.item(), logits.grad.abs().sum().item()


def test_without_a_target_that_counts_it_is_as_in_torch():
    for none, total, mean, slope in picolib.run(nothing_counts, 2):
        assert none == [0.0] * 3 and total == slope == 0.0
        assert mean != mean  # nan


def padding(vocabulary: int):
    """All real logits are about -1000: a padding of 0 would win every time."""
    torch.manual_seed(0)
    head = nn.Linear(3, vocabulary).double()
    with torch.no_grad():
        head.bias.fill_(-1000)
    x, target = torch.randn(2, 4, 3).double(), torch.randint(vocabulary, (2, 4))
    part = VocabParallelLinear.from_linear(head)
    logits = part(x)
    vocab_parallel_cross_entropy(logits, target).backward()
    right = F.cross_entropy(head(x).flatten(0, 1), target.flatten())
    right.backward()
    assert torch.allclose(vocab_parallel_cross_entropy(logits, target), right)
    assert torch.allclose(part.bias.grad, head.bias.grad[part.first : part.last])
    everyone = functional.gather_from_group(logits.detach(), -1)
    assert torch.equal(everyone.argmax(-1), head(x).argmax(-1))
    assert everyone.softmax(-1)[..., vocabulary:].sum() == 0


@pytest.mark.parametrize(("vocabulary", "world_size"), [(13, 3), (5, 4), (2, 3)])
def test_padding_never_wins(vocabulary, world_size):
    picolib.run(padding, world_size, vocabulary)


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest result had."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(t.numel() for t in tree_leaves(found) if isinstance(t, torch.Tensor))])
        return found


def largest_tensor() -> int:
    logits = torch.randn(8, 32, requires_grad=True)
    target = torch.arange(8)
    with Largest() as seen:
        vocab_parallel_cross_entropy(logits, target, label_smoothing=0.1).backward()
    return seen.numbers


def test_the_whole_logits_never_exist():
    assert list(picolib.run(largest_tensor, 3)) == [8 * 32] * 3


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
