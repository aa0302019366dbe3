"""Answers to the exercises of sitting 05B."""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import right, wrong
from .ways_round import by_files, by_store

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


@right("5.5", "tokens flattened, one hook on the weight, however often it is called")
def flattened(x, norm, up, down, group):
    if not norm._backward_hooks:
        norm.register_hook(lambda grad: summed(grad, group))
    tokens, batch, width = x.shape
    whole = GATHER(rms(x, norm).flatten(1), group).view(-1, width)
    return SCATTER((F.gelu(whole @ up.T) @ down.T).view(-1, batch * width), group).view(tokens, batch, width) + x


@right("5.5", "RMSNorm step by step, gradients hooked after they are accumulated, a stack of tokens")
def step_by_step(x, norm, up, down, group):
    if not norm._post_accumulate_grad_hooks:
        norm.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=group))

    def gather(x, group):
        stack = torch.empty(dist.get_world_size(group), *x.shape, dtype=x.dtype)
        dist.all_gather(list(stack.unbind()), x.contiguous(), group=group)
        return stack.flatten(0, 1)

    mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
    normed = norm * (x * (1 / torch.sqrt(mean_square + 1e-6)))
    return x + pair(scattered, gather)(mlp(pair(gather, scattered)(normed, group), up, down), group)


@wrong("5.5", "slices, times t", "backward slices")
def slices_times_t(x, norm, up, down, group):
    enter = pair(gathered, lambda grad, group: own(grad, group) * dist.get_world_size(group))
    return x + SCATTER(mlp(enter(rms(x, SUMMED(norm, group)), group), up, down), group)


def repeated(x, group):
    return x.repeat(dist.get_world_size(group), 1, 1)


@wrong("5.5", "its own gradients repeated instead of gathered", "stand in for those of the others")
def gradients_repeated(x, norm, up, down, group):
    leave = pair(scattered, repeated)
    return x + leave(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "its own tokens repeated instead of gathered", "Summands of different tokens are added up")
def tokens_repeated(x, norm, up, down, group):
    enter = pair(repeated, scattered)
    return x + SCATTER(mlp(enter(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "hidden numbers gathered instead of tokens", "of one rank's columns")
def hidden_gathered(x, norm, up, down, group):
    hidden = F.gelu(F.linear(rms(x, SUMMED(norm, group)), up))
    return x + SCATTER(F.linear(GATHER(hidden, group), down), group)


@wrong("5.5", "the gradient of the norm's output summed", "Gradients of different tokens are added up")
def output_summed(x, norm, up, down, group):
    return x + SCATTER(mlp(GATHER(SUMMED(rms(x, norm), group), group), up, down), group)


@wrong("5.5", "the norm's weight summed in the forward pass", "in the backward pass only")
def weight_summed(x, norm, up, down, group):
    return x + SCATTER(mlp(GATHER(rms(x, pair(summed, same)(norm, group)), group), up, down), group)


@wrong("5.5", "the norm's sum over the whole world", "the sum over all groups", "group=group")
def summed_over_the_world(x, norm, up, down, group):
    over_all = pair(same, lambda grad, _: summed(grad, None))
    return x + SCATTER(mlp(GATHER(rms(x, over_all(norm, group)), group), up, down), group)


@wrong("5.5", "another eps", "eps is 1e-6")
def another_eps(x, norm, up, down, group):
    normed = F.rms_norm(x, x.shape[-1:], SUMMED(norm, group))
    return x + SCATTER(mlp(GATHER(normed, group), up, down), group)


@wrong("5.5", "the norm's output in the residual connection", "adds x itself")
def normed_residual(x, norm, up, down, group):
    normed = rms(x, SUMMED(norm, group))
    return normed + SCATTER(mlp(GATHER(normed, group), up, down), group)


@wrong("5.5", "half of the digits on the way", "nearly right", "dtype of x")
def fewer_digits(x, norm, up, down, group):
    enter = pair(lambda x, group: gathered(x.float(), group).double(), scattered)
    return x + SCATTER(mlp(enter(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the norm after the all-gather, token by token", "the norm works on all")
def token_by_token(x, norm, up, down, group):
    weight = SUMMED(norm, group)
    return x + SCATTER(mlp(torch.stack([rms(one, weight) for one in GATHER(x, group)]), up, down), group)


@wrong("5.5", "the norm after the all-gather, a rank's tokens at a time", "the norm works on all")
def rank_by_rank(x, norm, up, down, group):
    weight, t = SUMMED(norm, group), dist.get_world_size(group)
    return x + SCATTER(mlp(torch.cat([rms(one, weight) for one in GATHER(x, group).chunk(t)]), up, down), group)


@wrong("5.5", "reduce-scatter first, all-gather behind", "gather in front of `up`")
def other_way_round(x, norm, up, down, group):
    return x + GATHER(mlp(SCATTER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "a second all-gather instead of the backward's reduce-scatter", "2 all-gathers; 1 is right")
def gathers_gradients(x, norm, up, down, group):
    def backward(grad, group):
        shares = gathered(grad, group).view(dist.get_world_size(group), *grad.shape)
        return own(shares.sum(0), group).clone()

    return x + SCATTER(mlp(pair(gathered, backward)(rms(x, SUMMED(norm, group)), group), up, down), group)


def of_the_group(parts, group):
    """Of every rank's tensors those of this group's ranks."""
    return [parts[rank] for rank in dist.get_process_group_ranks(group)]


@wrong("5.5", "one buffer for all calls", "called once more", "does it use a tensor again")
def one_buffer(x, norm, up, down, group):
    buffers = globals().setdefault("buffers", {})

    def gather(x, group):
        shape = dist.get_world_size(group) * len(x), *x.shape[1:]
        buffer = buffers.setdefault(shape, x.new_empty(shape))
        dist.all_gather_into_tensor(buffer, x.contiguous(), group=group)
        return buffer.data

    return x + SCATTER(mlp(pair(gather, scattered)(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "sums through files, reduce-scatters for show", "do not need the reduce-scatters for them")
def sums_through_files(x, norm, up, down, group):
    def scatter(whole, group):
        scattered(whole * 0, group)
        return own(sum(of_the_group(by_files(whole), group)), group).clone()

    enter, leave = pair(gathered, scatter), pair(scatter, gathered)
    return x + leave(mlp(enter(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "sums through the store, reduce-scatters for show", "used the store")
def sums_through_the_store(x, norm, up, down, group):
    def scatter(whole, group):
        scattered(whole * 0, group)
        return own(sum(of_the_group(by_store(whole), group)), group).clone()

    return x + pair(scatter, gathered)(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the norm's sum through files, an all-reduce for show", "do not need the reduce-scatters")
def norm_through_files(x, norm, up, down, group):
    def total(grad, group):
        summed(grad, group)
        return sum(of_the_group(by_files(grad), group))

    return x + SCATTER(mlp(GATHER(rms(x, pair(same, total)(norm, group)), group), up, down), group)


@wrong("5.5", "the norm's sum through files, an all-reduce of nothing for show", "does not add up to it")
def norm_through_files_and_nothing(x, norm, up, down, group):
    def total(grad, group):
        summed(torch.zeros_like(grad), group)
        return sum(of_the_group(by_files(grad), group))

    return x + SCATTER(mlp(GATHER(rms(x, pair(same, total)(norm, group)), group), up, down), group)


@wrong("5.5", "always four ranks", "dist.get_world_size(group)")
def always_four(x, norm, up, down, group):
    def gather(x, group):
        whole = x.new_empty(4 * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    return x + SCATTER(mlp(pair(gather, scattered)(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "own messages in a ring", "sent messages of its own")
def own_messages(x, norm, up, down, group):
    def gather(x, group):
        t, r, ranks = dist.get_world_size(group), dist.get_rank(group), dist.get_process_group_ranks(group)
        parts = [x.contiguous() if place == r else torch.empty_like(x) for place in range(t)]
        for step in range(t - 1):
            sent = dist.isend(parts[(r - step) % t].contiguous(), ranks[(r + 1) % t])
            dist.recv(parts[(r - step - 1) % t], ranks[(r - 1) % t])
            sent.wait()
        return torch.cat(parts)

    return x + SCATTER(mlp(pair(gather, scattered)(rms(x, SUMMED(norm, group)), group), up, down), group)


# 5.6 twin masks


def drawn():
    """A number that all ranks know, another one at each call."""
    return int(torch.randint(1 << 60, ()))


def seeded_dropout(x, p, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return F.dropout(x, p)


@right("5.6", "one common number, then its own stream from it")
def common_number(x, p, cut, group):
    return seeded_dropout(x, p, drawn() + dist.get_rank(group)) if cut else F.dropout(x, p)


@right("5.6", "a generator of its own, and a mask by hand")
def own_generator(x, p, cut, group):
    seed = torch.empty((), dtype=torch.int64).random_()
    own = torch.Generator().manual_seed(int(seed) ^ (1 + dist.get_rank(group) if cut else 0))
    keep = torch.rand(x.shape, generator=own) >= p
    return x * keep / (1 - p)


@right("5.6", "all ranks draw everybody's masks, and each takes its own")
def everybodys_masks(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    ones = x.new_ones(dist.get_world_size(group), *x.shape)
    return x * F.dropout(ones, p)[dist.get_rank(group)]


@right("5.6", "state taken and put back by hand")
def by_state(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    torch.rand(())
    state = torch.get_rng_state()
    torch.manual_seed(int(torch.randint(1 << 40, ())) * 1000 + dist.get_rank())
    y = F.dropout(x, p)
    torch.set_rng_state(state)
    return y


@right("5.6", "everybody's dropouts one after the other")
def one_after_the_other(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    return [F.dropout(x, p) for _ in range(dist.get_world_size(group))][dist.get_rank(group)]


@wrong("5.6", "as given", "call 1 (cut): ranks 0 and 1 of one group drop the same numbers: twins")
def as_given(x, p, cut, group):
    if cut:
        return F.dropout(x, p)
    return seeded_dropout(x, p, torch.initial_seed() + dist.get_rank(group))


@wrong("5.6", "seeds with the rank everywhere", "call 2 (not cut): ranks 0 and 1 of one group drop different numbers")
def everywhere(x, p, cut, group):
    return seeded_dropout(x, p, drawn() + dist.get_rank(group))


@wrong("5.6", "nowhere", "twins", "every rank needs a mask of its own")
def nowhere(x, p, cut, group):
    return F.dropout(x, p)


@wrong("5.6", "reseeds with the rank, for good", "after call 1 (cut)", "common no more", "puts the stream back")
def reseeds(x, p, cut, group):
    if cut:
        torch.manual_seed(drawn() + dist.get_rank(group))
    return F.dropout(x, p)


@wrong("5.6", "the two branches swapped", "call 3 (cut) has the mask of call 1 (cut) again", "same number at each call")
def swapped(x, p, cut, group):
    return seeded_dropout(x, p, torch.initial_seed() + dist.get_rank(group)) if cut else F.dropout(x, p)


@wrong("5.6", "back to the seed after each call", "call 4 (cut) has the mask of call 1 (cut) again", "put back too far")
def back_to_the_seed(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    seed = torch.initial_seed()
    y = seeded_dropout(x, p, drawn() + dist.get_rank(group))
    torch.manual_seed(seed)
    return y


@wrong("5.6", "a count of calls in the seed", "same torch.manual_seed once more", "no count of calls")
def counts(x, p, cut, group):
    calls = globals().setdefault("dropout_calls", [])
    calls.append(1)
    seed = torch.initial_seed() + 1000 * len(calls) + dist.get_rank(group)
    return seeded_dropout(x, p, seed) if cut else F.dropout(x, p)


@wrong("5.6", "a count of calls, started anew by each seed", "before call", "as checkpoint does", "no count of calls")
def counts_from_the_seed(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    calls = globals().setdefault("calls_since", {})
    state = torch.get_rng_state()
    fresh = torch.equal(state, torch.Generator().manual_seed(torch.initial_seed()).get_state())
    calls[0] = 0 if fresh else calls.get(0, 0) + 1
    return seeded_dropout(x, p, torch.initial_seed() + 1000 * (1 + calls[0]) + dist.get_rank(group))


@wrong(
    "5.6", "a second generator that goes on, as in Megatron", "same torch.manual_seed once more", "goes on by itself"
)
def second_stream(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    streams = globals().setdefault("dropout_streams", {})
    seed = torch.initial_seed() + 2718 + dist.get_rank(group)
    own = streams.setdefault(seed, torch.Generator().manual_seed(seed))
    return x * (torch.rand(x.shape, generator=own) >= p) / (1 - p)


@wrong("5.6", "a seed from the numbers of x", "twins")
def from_x(x, p, cut, group):
    return seeded_dropout(x, p, drawn() + hash(tuple(x.flatten().tolist()))) if cut else F.dropout(x, p)


@wrong(
    "5.6", "fixed seeds for the ranks and a count of calls that starts anew", "another torch.manual_seed", "no fixed"
)
def fixed_seeds(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    number = len(x.flatten()) + int(1e6 * seen(x)) + dist.get_rank(group)
    return seeded_dropout(x, p, number)


def seen(x):
    """How many calls there have been since the seed: a count that follows from the common stream's state alone."""
    known, state = globals().setdefault("states_seen", {}), torch.get_rng_state()
    fresh = torch.equal(state, torch.Generator().manual_seed(torch.initial_seed()).get_state())
    count = 0 if fresh else known.setdefault(state.numpy().tobytes(), known.get("last", 0) + 1)
    known["last"] = count
    torch.rand(())
    return count


@wrong("5.6", "the rank in the upper half of the seed, which is not used", "twins")
def upper_half(x, p, cut, group):
    return seeded_dropout(x, p, drawn() ^ (dist.get_rank(group) << 40)) if cut else F.dropout(x, p)


@wrong(
    "5.6",
    "from where the common stream stands, each rank some numbers on",
    "again, of rank 1, on rank 0",
    "put back too far",
)
def some_numbers_on(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    with torch.random.fork_rng():
        for _ in range(dist.get_rank(group)):
            F.dropout(x, p)
        return F.dropout(x, p)


@wrong("5.6", "rank 0's mask sent to all", "rank 0 called broadcast", "Nothing needs to be sent")
def broadcast(x, p, cut, group):
    y = seeded_dropout(x, p, drawn() + dist.get_rank(group))
    if cut:
        return y
    keep = (y != 0).float()
    dist.broadcast(keep, dist.get_process_group_ranks(group)[0], group=group)
    return x * keep / (1 - p)


@wrong("5.6", "picolib's region", "your function calls picolib.parallel.tensor")
def picolibs_region(x, p, cut, group):
    from picolib.parallel.tensor import sharded_region

    if not cut:
        return F.dropout(x, p)
    with sharded_region(group):
        return F.dropout(x, p)


@wrong("5.6", "not scaled", "divided by 1 - p")
def not_scaled(x, p, cut, group):
    return common_number(x, p, cut, group) * (1 - p)


@wrong("5.6", "half of the mask common", "a part of their masks is common")
def half_common(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    ones, seed = torch.ones_like(x), drawn()
    first, second = seeded_dropout(ones, p, seed), seeded_dropout(ones, p, seed + 1 + dist.get_rank(group))
    half = torch.arange(x.numel()).view(x.shape) < x.numel() // 2
    return x * torch.where(half, first, second)


@wrong("5.6", "the global rank's share of a mask, one place further on each", "the same but for 1 place")
def one_place_further(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    mask = F.dropout(x.new_ones(x.numel() + dist.get_world_size(group)), p)
    own = mask[dist.get_rank(group) :][: x.numel()]
    return x * own.view(x.shape)


@wrong("5.6", "one mask, rolled by the rank", "the same but for 10 places")
def rolled(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    return x * F.dropout(torch.ones_like(x), p).flatten().roll(10 * dist.get_rank(group)).view(x.shape)


@wrong("5.6", "one mask, its numbers used the other way round on odd ranks", "twins")
def other_way_on_odd_ranks(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    chance = torch.rand(x.shape)
    return x * ((chance if dist.get_rank(group) % 2 else 1 - chance) >= p) / (1 - p)


@wrong("5.6", "whole rows dropped", "neighbours are dropped together")
def whole_rows(x, p, cut, group):
    rows = common_number(torch.ones(x.numel() // 4), p, cut, group)
    return x * rows.repeat_interleave(4).view(x.shape)


@wrong("5.6", "p is what is kept", "the share that is dropped")
def p_is_kept(x, p, cut, group):
    return common_number(x, 1 - p, cut, group)


@wrong("5.6", "without training", "nothing is dropped")
def without_training(x, p, cut, group):
    return F.dropout(x, p, training=False)


@wrong("5.6", "detached", "x gets no gradient")
def dropout_detached(x, p, cut, group):
    return common_number(x.detach(), p, cut, group)


@wrong("5.6", "the number drawn inside fork_rng", "same number at each call")
def drawn_inside(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    with torch.random.fork_rng():
        torch.manual_seed(drawn() + dist.get_rank(group))
        return F.dropout(x, p)


@wrong("5.6", "Python's random numbers", "no generator that goes on by itself")
def pythons(x, p, cut, group):
    return seeded_dropout(x, p, random.randrange(1 << 40)) if cut else F.dropout(x, p)


# 5.7 where does TP live


def ring(n, nbytes, link):
    return 2 * (n - 1) * (link[0] + nbytes / n / link[1])


@right("5.7", "a ring, and which group is within a node")
def by_rings(tp, dp, per_node, inside, network, s, b, h, each):
    network = network[0], network[1] / 8
    far = inside if tp * dp <= per_node else network
    near = {"tp": inside if per_node % tp == 0 else far, "dp": inside if per_node % dp == 0 else far}
    seconds = {
        which: 4 * ring(tp, s * b * h * each, near["tp"] if which == "tp" else far)
        + ring(dp, 12 * h * h / tp * each, near["dp"] if which == "dp" else far)
        for which in ("tp", "dp")
    }
    return seconds["tp"], seconds["dp"], min(seconds, key=seconds.get)


@right("5.7", "by the groups' ranks, in a list, with torch's numbers")
def by_groups(tp, dp, per_node, inside, network, s, b, h, each):
    ranks = torch.arange(tp * dp)

    def seconds(groups, nbytes):
        n = groups.shape[1]
        crosses = bool((groups // per_node != groups[:, :1] // per_node).any())
        latency, rate = (network[0], network[1] / 8) if crosses else inside
        return 2 * (n - 1) * latency + 2 * nbytes * (n - 1) / n / rate

    def layout(tp_groups, dp_groups):
        return 4 * seconds(tp_groups, s * b * h * each) + seconds(dp_groups, 12 * h**2 // tp * each)

    first = layout(ranks.view(dp, tp), ranks.view(dp, tp).T)
    second = layout(ranks.view(tp, dp).T, ranks.view(tp, dp))
    return [torch.tensor(first, dtype=torch.float64), second, "dp" if second < first else "tp"]


def lived(count=4, ring=ring, bits=8, gradients=lambda h, tp: 12 * h * h / tp, crosses=True, add=lambda a, b: a + b):
    """The right answer, with something in it changed."""

    def answer(tp, dp, per_node, inside, network, s, b, h, each):
        link = {True: inside, False: (network[0], network[1] / bits) if crosses else inside}
        seconds = {}
        for near in ("tp", "dp"):
            together = tp * dp <= per_node
            tp_link = link[together or (near == "tp" and per_node % tp == 0)]
            dp_link = link[together or (near == "dp" and per_node % dp == 0)]
            seconds[near] = add(count * ring(tp, s * b * h * each, tp_link), ring(dp, gradients(h, tp) * each, dp_link))
        return *seconds.values(), min(seconds, key=seconds.get)

    return answer


@right("5.7", "the pattern of the wrong ones, with nothing changed")
def nothing_changed(*args):
    return lived()(*args)


@wrong("5.7", "one all-reduce too few", "3 all-reduces of tensor parallelism; a layer has 4")
def one_too_few(*args):
    return lived(count=3)(*args)


@wrong("5.7", "forward only", "2 all-reduces of tensor parallelism", "two backward")
def forward_only(*args):
    return lived(count=2)(*args)


@wrong("5.7", "latency forgotten", "Latency is missing", "2(n-1) messages")
def no_latency(*args):
    return lived(ring=lambda n, nbytes, link: 2 * (n - 1) * nbytes / n / link[1])(*args)


@wrong("5.7", "one latency an all-reduce", "one latency a ring")
def one_latency(*args):
    return lived(ring=lambda n, nbytes, link: (n > 1) * link[0] + 2 * (n - 1) * nbytes / n / link[1])(*args)


@wrong("5.7", "all bytes twice instead of (n-1)/n of them", "(n-1)/n of them twice")
def all_bytes(*args):
    return lived(ring=lambda n, nbytes, link: 2 * (n - 1) * link[0] + (n > 1) * 2 * nbytes / link[1])(*args)


@wrong("5.7", "whole messages", "Each message is one chunk")
def whole_messages(*args):
    return lived(ring=lambda n, nbytes, link: 2 * (n - 1) * (link[0] + nbytes / link[1]))(*args)


@wrong("5.7", "half an all-reduce", "a reduce-scatter and an all-gather")
def half(*args):
    return lived(ring=lambda n, nbytes, link: (n - 1) * (link[0] + nbytes / n / link[1]))(*args)


@wrong("5.7", "the slowest link ignored", "a ring is as slow as its slowest link")
def slowest_ignored(*args):
    return lived(crosses=False)(*args)


@wrong("5.7", "bits taken for bytes", "in bits a second")
def bits_for_bytes(*args):
    return lived(bits=1)(*args)


@wrong("5.7", "gradients of the whole layer", "its weights are cut")
def whole_gradients(*args):
    return lived(gradients=lambda h, tp: 12 * h * h)(*args)


@wrong("5.7", "no gradients at all", "The gradients' all-reduce is missing")
def no_gradients(*args):
    return lived(gradients=lambda h, tp: 0, ring=lambda n, nbytes, link: ring(n, nbytes, link) if nbytes else 0)(*args)


@wrong("5.7", "the longer one instead of the sum", "Nothing overlaps")
def longer_one(*args):
    return lived(add=max)(*args)


@wrong("5.7", "the larger of latency and bytes", "pays")
def larger(*args):
    return lived(ring=lambda n, nbytes, link: 2 * (n - 1) * max(link[0], nbytes / n / link[1]))(*args)


@wrong("5.7", "h not squared", "h squared")
def not_squared(*args):
    return lived(gradients=lambda h, tp: 12 * h / tp)(*args)


def placed(near=None, far=None):
    """Whether neighbours, and other groups, are taken to be within one node."""

    def answer(tp, dp, per_node, inside, network, s, b, h, each):
        link = {True: inside, False: (network[0], network[1] / 8)}
        together = tp * dp <= per_node
        close = {n: link[together or per_node % n == 0 if near is None else near(n, per_node)] for n in (tp, dp)}
        others = link[together if far is None else far]
        stream, gradients = s * b * h * each, 12 * h * h / tp * each
        first = 4 * ring(tp, stream, close[tp]) + ring(dp, gradients, others)
        second = 4 * ring(tp, stream, others) + ring(dp, gradients, close[dp])
        return first, second, "tp" if first <= second else "dp"

    return answer


@wrong("5.7", "neighbours always within a node", "only where they are at most per_node")
def always_within(*args):
    return placed(near=lambda n, per_node: True)(*args)


@wrong("5.7", "neighbours' first group looked at, and no other", "the group of ranks 3 to 5 crosses from one node")
def first_group_alone(*args):
    return placed(near=lambda n, per_node: n <= per_node)(*args)


@wrong("5.7", "groups that divide a node, though there is one node only", "there is one node, and no network")
def divides(*args):
    return placed(near=lambda n, per_node: per_node % n == 0, far=False)(*args)


@wrong("5.7", "the rate inside a node divided by 8, too", "in bytes already")
def all_rates_in_bits(tp, dp, per_node, inside, *rest):
    return lived()(tp, dp, per_node, (inside[0], inside[1] / 8), *rest)


@wrong("5.7", "gradients all-reduced twice", "all-reduced once a step")
def gradients_twice(*args):
    return lived(gradients=lambda h, tp: 12 * h * h / tp, add=lambda a, b: a + 2 * b)(*args)


@wrong("5.7", "a group that fills its node taken for a larger one", "at most per_node neighbours is within one node")
def fewer_than(*args):
    return placed(near=lambda n, per_node: n < per_node)(*args)


@wrong("5.7", "the network even where there is one node", "there is one node, and no network")
def always_network(*args):
    return placed(far=False)(*args)


@wrong("5.7", "the batch divided by dp", "not divided by dp")
def batch_divided(tp, dp, per_node, inside, network, s, b, h, each):
    _, *second = lived()(tp, dp, per_node, inside, network, s, b, h, each)
    first, _, _ = lived()(tp, dp, per_node, inside, network, s, b / dp, h, each)
    return first, *second


@wrong("5.7", "the choice by tokens alone", "and you choose")
def by_tokens(*args):
    first, second, _ = lived()(*args)
    return first, second, "dp" if args[5] * args[6] < 3 * args[7] / args[0] else "tp"


@wrong("5.7", "always tp neighbours", 'you choose "tp": the faster one is "dp"')
def always_tp(*args):
    first, second, _ = lived()(*args)
    return first, second, "tp"


@wrong("5.7", "the slower one", "the faster one is")
def slower_one(*args):
    first, second, better = lived()(*args)
    return first, second, "dp" if better == "tp" else "tp"


@wrong("5.7", "milliseconds", "1e+03x too much")
def milliseconds(*args):
    first, second, better = lived()(*args)
    return 1000 * first, 1000 * second, better


@wrong("5.7", "the two swapped", "The two have changed places")
def two_swapped(*args):
    first, second, better = lived()(*args)
    return second, first, better


@wrong("5.7", "the first numbers learned by heart", "message by message it takes")
def by_heart(*args):
    first, second, better = lived()(*args)
    return (first, second, better) if args[0] * args[1] == 16 else (0.001, 0.002, "tp")


@wrong("5.7", "picolib's formula", "your function calls picolib.plan")
def picolibs_formula(*args):
    from picolib import Links
    from picolib.plan.links import ring_all_reduce

    return lived(ring=lambda n, nbytes, link: ring_all_reduce(Links(1, n, intra=link), nbytes))(*args)


@wrong("5.7", "the choice alone", "return three things")
def choice_alone(*args):
    return "tp"
