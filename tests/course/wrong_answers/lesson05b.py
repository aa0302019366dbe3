"""Answers to the exercises of sitting 05B."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import right, wrong

# 5.5 sequence parallel


def gathered(x, group):
    whole = x.new_empty(dist.get_world_size(group) * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def scattered(whole, group):
    own = whole.new_empty(len(whole) // dist.get_world_size(group), *whole.shape[1:])
    dist.reduce_scatter_tensor(own, whole.contiguous(), group=group)
    return own


def summed(x, group):
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total


def same(x, group):
    return x.view_as(x)


def own(whole, group):
    return whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def padded(x, group):
    whole = x.new_zeros(dist.get_world_size(group) * len(x), *x.shape[1:])
    own(whole, group)[:] = x
    return whole


def pair(forward, backward):
    """An autograd function from its two passes."""

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            ctx.group = group
            return forward(x, group)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad, ctx.group), None

    return Both.apply


GATHER, SCATTER, SUMMED = pair(gathered, scattered), pair(scattered, gathered), pair(same, summed)


def rms(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def mlp(normed, up, down):
    return F.linear(F.gelu(F.linear(normed, up)), down)


@right("5.5", "three autograd functions")
def three_functions(x, norm, up, down, group):
    normed = rms(x, SUMMED(norm, group))
    return x + SCATTER(mlp(GATHER(normed, group), up, down), group)


@right("5.5", "hooks and detached values, lists of parts, RMSNorm by hand")
def by_hooks(x, norm, up, down, group):
    t, r = dist.get_world_size(group), dist.get_rank(group)
    weight = norm.view_as(norm)
    weight.register_hook(lambda grad: summed(grad, group))
    normed = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
    parts = [torch.empty_like(normed) for _ in range(t)]
    dist.all_gather(parts, normed.detach().contiguous(), group=group)
    whole = torch.cat([normed if place == r else part for place, part in enumerate(parts)])
    whole.register_hook(lambda grad: padded(scattered(grad, group), group))
    summand = mlp(whole, up, down)
    total = scattered(summand.detach(), group)
    mine = own(summand, group)
    leaving = mine + (total - mine.detach())
    summand.register_hook(lambda grad: gathered(own(grad, group), group))
    return x + leaving


@right("5.5", "one autograd function for all of it")
def one_function(x, norm, up, down, group):
    class Block(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, norm, up, down):
            with torch.enable_grad():
                x, norm, up, down = (w.detach().requires_grad_() for w in (x, norm, up, down))
                normed = rms(x, norm)
                whole = gathered(normed.detach(), group).requires_grad_()
                summand = mlp(whole, up, down)
            ctx.graph = x, norm, up, down, normed, whole, summand
            return x.detach() + scattered(summand.detach(), group)

        @staticmethod
        def backward(ctx, grad):
            x, norm, up, down, normed, whole, summand = ctx.graph
            share, grad_up, grad_down = torch.autograd.grad(summand, (whole, up, down), gathered(grad, group))
            grad_x, grad_norm = torch.autograd.grad(normed, (x, norm), scattered(share, group))
            dist.all_reduce(grad_norm, group=group)
            return grad + grad_x, grad_norm, grad_up, grad_down

    return Block.apply(x, norm, up, down)


@right("5.5", "picolib's collectives, in functions of its own")
def picolibs_collectives(x, norm, up, down, group):
    from picolib import comm

    def all_gather(x, group):
        whole = x.new_empty(dist.get_world_size(group) * len(x), *x.shape[1:])
        comm.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    def reduce_scatter(whole, group):
        own = whole.new_empty(len(whole) // dist.get_world_size(group), *whole.shape[1:])
        comm.reduce_scatter_tensor(own, whole.contiguous(), group=group)
        return own

    def all_reduce(x, group):
        total = x.clone()
        comm.all_reduce(total, group=group)
        return total

    normed = rms(x, pair(same, all_reduce)(norm, group))
    return x + pair(reduce_scatter, all_gather)(mlp(pair(all_gather, reduce_scatter)(normed, group), up, down), group)


@wrong("5.5", "norm's gradient not summed", "norm: each rank saw its own tokens only")
def norm_not_summed(x, norm, up, down, group):
    return x + SCATTER(mlp(GATHER(rms(x, norm), group), up, down), group)


@wrong("5.5", "norm's gradient averaged", "gradient of `norm` is wrong", "4x too small", "not averaged")
def norm_averaged(x, norm, up, down, group):
    mean = pair(same, lambda grad, group: summed(grad, group) / dist.get_world_size(group))
    return x + SCATTER(mlp(GATHER(rms(x, mean(norm, group)), group), up, down), group)


@wrong("5.5", "all-reduce and slice", "numbers: 2x the bytes", "a reduce-scatter and an all-gather")
def all_reduce_and_slice(x, norm, up, down, group):
    leave = pair(lambda whole, group: own(summed(whole, group), group).clone(), gathered)
    return x + leave(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the all-gather's backward slices", "gradient of `x` is wrong", "backward slices", "reduce-scatter")
def slices(x, norm, up, down, group):
    enter = pair(gathered, lambda grad, group: own(grad, group).clone())
    return x + SCATTER(mlp(enter(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the reduce-scatter's backward pads with zeros", "gradient of `down`", "this rank's tokens only")
def pads(x, norm, up, down, group):
    leave = pair(scattered, padded)
    return x + leave(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the reduce-scatter averages", "exactly 4x too small", "added up, not averaged")
def averages(x, norm, up, down, group):
    leave = pair(lambda whole, group: scattered(whole, group) / dist.get_world_size(group), gathered)
    return x + leave(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the all-gather's backward averages", "gradient of `x`", "exactly 4x too small")
def backward_averages(x, norm, up, down, group):
    enter = pair(gathered, lambda grad, group: scattered(grad, group) / dist.get_world_size(group))
    return x + SCATTER(mlp(enter(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "gathers before the norm", "the norm works on all", "First the norm, then the all-gather")
def gathers_first(x, norm, up, down, group):
    return x + SCATTER(mlp(rms(GATHER(x, group), SUMMED(norm, group)), up, down), group)


@wrong("5.5", "a hook on the weight itself, one more at each call", "in the first step it was right", "a hook")
def hooks_pile_up(x, norm, up, down, group):
    norm.register_hook(lambda grad: summed(grad, group))
    return x + SCATTER(mlp(GATHER(rms(x, norm), group), up, down), group)


@wrong("5.5", "the whole world instead of the group", "work on other tokens", "group=group")
def whole_world(x, norm, up, down, group):
    return three_functions(x, norm, up, down, dist.group.WORLD)


@wrong("5.5", "x added before the sum", "x is in it 4 times")
def x_before_the_sum(x, norm, up, down, group):
    return SCATTER(GATHER(x, group) + mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "no autograd functions", "has no graph")
def no_graph(x, norm, up, down, group):
    with torch.no_grad():
        return x + scattered(mlp(gathered(rms(x, norm), group), up, down), group)


@wrong("5.5", "collectives on detached tensors", "gradient of `down` is wrong", "Nothing of it is there")
def detached(x, norm, up, down, group):
    return x + scattered(mlp(gathered(rms(x, norm).detach(), group), up, down).detach(), group)


@wrong("5.5", "picolib's functions", "your function calls picolib.comm.functional")
def picolibs(x, norm, up, down, group):
    from picolib.comm import functional

    whole = functional.all_gather(rms(x, SUMMED(norm, group)), 0, group=group)
    return x + functional.reduce_scatter(mlp(whole, up, down), 0, group=group)


@wrong("5.5", "picolib's sequence parallelism", "your function calls picolib.")
def picolibs_sequence(x, norm, up, down, group):
    from picolib.parallel.sequence import gather_tokens, reduce_scatter_tokens

    normed = rms(x, SUMMED(norm, group)).transpose(0, 1)
    return x + reduce_scatter_tokens(mlp(gather_tokens(normed, group=group), up, down), group=group).transpose(0, 1)


@wrong("5.5", "nothing sent: own tokens, own columns", "this rank's summand alone")
def nothing_sent(x, norm, up, down, group):
    return x + mlp(rms(x, norm), up, down)
