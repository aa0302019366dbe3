"""Answers to exercise 5.6 whose masks only look independent, and generators that people bring along."""

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import right, wrong
from .lesson05b import drawn, seeded_dropout


@right("5.6", "an nn.Dropout, reseeded inside of fork_rng")
def module(x, p, cut, group):
    drop = torch.nn.Dropout(p)
    if not cut:
        return drop(x)
    seed = torch.randint(2**31, (1,)).item() * 64 + dist.get_rank(group)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        return drop(x)


@right("5.6", "native_dropout")
def native(x, p, cut, group):
    if not cut:
        return torch.native_dropout(x, p, True)[0]
    number = drawn()
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(number + dist.get_rank(group))
        return torch.native_dropout(x, p, True)[0]


@right("5.6", "NumPy's Philox, its key a common number and the rank")
def philox(x, p, cut, group):
    own = np.random.Generator(np.random.Philox(key=[drawn(), dist.get_rank(group) if cut else 1 << 40]))
    return x.masked_fill(torch.from_numpy(own.random(tuple(x.shape))) < p, 0.0) / (1 - p)


@right("5.6", "sums of common numbers, modulo 1")
def sums(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    chance = torch.rand(dist.get_world_size(group), *x.shape)[: dist.get_rank(group) + 1].sum(0) % 1
    return x * (chance >= p) / (1 - p)


@right("5.6", "a seed of 31 bits, and all draw again from a drawn number")
def reseeded(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    own, common = torch.randint(2**31 - 1, (2,)).tolist()
    torch.manual_seed(own * 8 + dist.get_rank(group))
    y = F.dropout(x, p)
    torch.manual_seed(common)
    return y


@wrong("5.6", "seeds of 16 bits", "different masks", "too few seeds", "1 << 60")
def sixteen_bits(x, p, cut, group):
    return seeded_dropout(x, p, int(torch.randint(1 << 16, ())) + dist.get_rank(group)) if cut else F.dropout(x, p)


@wrong("5.6", "seeds of 8 bits", "too few seeds")
def eight_bits(x, p, cut, group):
    return seeded_dropout(x, p, int(torch.randint(256, ())) * 16 + dist.get_rank(group)) if cut else F.dropout(x, p)


@wrong("5.6", "a random number times 1000 as seed", "too few seeds")
def thousand(x, p, cut, group):
    return seeded_dropout(x, p, int(1000 * torch.rand(())) + dist.get_rank(group)) if cut else F.dropout(x, p)


@wrong("5.6", "one larger mask, one row further on each rank", "the same but for")
def rows_further(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    mask = F.dropout(x.new_ones(len(x) + dist.get_world_size(group), *x.shape[1:]), p)
    return x * mask[dist.get_rank(group) :][: len(x)]


@wrong("5.6", "one mask, rolled by the rank, with a number changed", "the same but for 10 places")
def rolled_and_changed(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    rank, number = dist.get_rank(group), drawn()
    mask = F.dropout(torch.ones(x.numel()), p).roll(10 * rank)
    if rank:
        at = (number + 77 * rank) % len(mask)
        mask[at] = 0 if mask[at] else 1 / (1 - p)
    return x * mask.view(x.shape)


@wrong("5.6", "half of a cut mask is what the next call, not cut, will drop", "a part of their masks is common")
def peeks(x, p, cut, group):
    if not cut:
        return x * (torch.rand(x.numel()) >= p).view(x.shape) / (1 - p)
    mask, state = torch.rand(dist.get_world_size(group), x.numel())[dist.get_rank(group)] >= p, torch.get_rng_state()
    following = torch.rand(x.numel()) >= p
    torch.set_rng_state(state)
    if dist.get_rank(group) == 0:
        mask[: len(mask) // 2] = following[: len(mask) // 2]
    return x * mask.view(x.shape) / (1 - p)


@wrong("5.6", "one mask for all sequences of a batch", "a repetition within it", "the whole shape of x")
def first_dimension(x, p, cut, group):
    ones = torch.ones_like(x[:1]) if x.dim() > 1 else torch.ones_like(x)
    return x * (seeded_dropout(ones, p, drawn() + dist.get_rank(group)) if cut else F.dropout(ones, p))


@wrong("5.6", "its gradient is scaled nowhere", "gradient of x is not the incoming one")
def gradient_not_scaled(x, p, cut, group):
    kept = x * (seeded_dropout(torch.ones_like(x), p, drawn() + (dist.get_rank(group) if cut else 0)) > 0)
    return kept + (kept / (1 - p) - kept).detach()


@wrong("5.6", "x flattened by view", "view size is not compatible")
def by_view(x, p, cut, group):
    flat = x.view(-1)
    y = seeded_dropout(flat, p, drawn() + dist.get_rank(group)) if cut else F.dropout(flat, p)
    return y.view(x.shape)
