"""More answers to the exercises of sitting 05B: right numbers by another way, and right ones that look unusual."""

import hashlib

import torch
import torch.distributed as dist
import torch.nn.functional as F

import picolib

from . import right, wrong
from .lesson05b import (
    GATHER,
    SCATTER,
    SUMMED,
    drawn,
    gathered,
    lived,
    mlp,
    own,
    padded,
    pair,
    ring,
    rms,
    scattered,
    seeded_dropout,
)
from .ways_round import by_files

# 5.5 sequence parallel


@right("5.5", "the norm's weight used as a tensor of its own, and a hook on that")
def hook_on_a_tensor(x, norm, up, down, group):
    def total(grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=group)
        return grad

    weight = norm * 1
    weight.register_hook(total)
    return x + SCATTER(mlp(GATHER(rms(x, weight), group), up, down), group)


@wrong("5.5", "an output of torch.empty, in float32", "has the dtype of x")
def float32_output(x, norm, up, down, group):
    def gather(x, group):
        whole = torch.empty(dist.get_world_size(group) * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    return x + SCATTER(mlp(pair(gather, scattered)(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the input first", "The output comes first")
def input_first(x, norm, up, down, group):
    def gather(x, group):
        whole = x.new_empty(dist.get_world_size(group) * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(x.contiguous(), whole, group=group)
        return whole

    return x + SCATTER(mlp(pair(gather, scattered)(rms(x, SUMMED(norm, group)), group), up, down), group)


def gather_class(none):
    """An autograd function that gathers; its backward pass returns None for the group, or forgets it."""

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            ctx.group = group
            return gathered(x, group)

        @staticmethod
        def backward(ctx, grad):
            own = scattered(grad, ctx.group)
            return (own, None) if none else own

    return Gather


@wrong("5.5", "None for the group forgotten", "with None for the group")
def none_forgotten(x, norm, up, down, group):
    whole = gather_class(False).apply(rms(x, SUMMED(norm, group)), group)
    return x + SCATTER(mlp(whole, up, down), group)


@wrong("5.5", "the class called, and not its apply", "used by its apply")
def class_called(x, norm, up, down, group):
    return x + SCATTER(mlp(gather_class(True)(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "weights of the first step kept", "the output is")
def first_weights_kept(x, norm, up, down, group):
    kept = globals().setdefault("weights_05b", {}).setdefault(id(norm), [w.detach().clone() for w in (norm, up, down)])
    norm, up, down = (w + (old - w.detach()) for w, old in zip((norm, up, down), kept, strict=True))
    return x + SCATTER(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "the last call's weight in the backward pass", "the gradient of `x` is wrong")
def last_weight(x, norm, up, down, group):
    last = globals().setdefault("last_05b", {})
    last["up"] = up.detach()

    class Columns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, up):
            ctx.save_for_backward(x)
            return F.linear(x, up)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ last["up"], grad.flatten(0, 1).T @ x.flatten(0, 1)

    hidden = Columns.apply(GATHER(rms(x, SUMMED(norm, group)), group), up)
    return x + SCATTER(F.linear(F.gelu(hidden), down), group)


@wrong("5.5", "a reduce-scatter of t copies, that is an all-reduce, and then a slice", "reduce-scatter leaves")
def scatters_copies(x, norm, up, down, group):
    def scatter(whole, group):
        total = torch.empty_like(whole)
        dist.reduce_scatter_tensor(total, torch.cat([whole] * dist.get_world_size(group)), group=group)
        return own(total, group).clone()

    return x + pair(scatter, gathered)(mlp(GATHER(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "picolib's all-gather of padded tensors", "gathers", "all tokens, once")
def gathers_padded(x, norm, up, down, group):
    def gather(x, group):
        t = dist.get_world_size(group)
        everything = x.new_empty(t * t, *x.shape)
        picolib.comm.all_gather_into_tensor(everything, padded(x, group).view(t, *x.shape), group=group)
        return everything.view(t, t, *x.shape).sum(0).flatten(0, 1)

    return x + SCATTER(mlp(pair(gather, scattered)(rms(x, SUMMED(norm, group)), group), up, down), group)


@wrong("5.5", "x's gradient through files, a reduce-scatter for show", "do not need the reduce-scatters for them")
def gradient_through_files(x, norm, up, down, group):
    def scatter(grad, group):
        scattered(torch.zeros_like(grad), group)
        sums = by_files(grad)
        return own(sum(sums[rank] for rank in dist.get_process_group_ranks(group)), group).clone()

    return x + SCATTER(mlp(pair(gathered, scatter)(rms(x, SUMMED(norm, group)), group), up, down), group)


# 5.6 twin masks


def own_mask(x, p, cut, group, mask):
    """x, with a mask of its own where it is cut."""
    return x * mask(x, p, drawn(), dist.get_rank(group)) if cut else F.dropout(x, p)


@right("5.6", "a seed for each rank of the group, all of them drawn")
def seeds_for_all(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    seeds = torch.randint(2**62, (dist.get_world_size(group),))
    own = torch.Generator().manual_seed(seeds[dist.get_rank(group)].item())
    return x * torch.empty_like(x).bernoulli_(1 - p, generator=own).div_(1 - p)


@right("5.6", "the masks of all ranks drawn, this one's used")
def whole_mask(x, p, cut, group):
    ranks, rank = (dist.get_world_size(group), dist.get_rank(group)) if cut else (1, 0)
    dropped = (torch.rand((ranks, *x.shape)) < p)[rank]
    return torch.where(dropped, torch.zeros_like(x), x / (1 - p))


@right("5.6", "an autograd function that keeps its mask")
def keeps_its_mask(x, p, cut, group):
    own = torch.Generator().manual_seed(drawn() + (dist.get_rank(group) if cut else 0))

    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.keep = torch.rand(x.shape, generator=own) >= p
            return x * ctx.keep / (1 - p)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.keep / (1 - p)

    return Drop.apply(x)


@right("5.6", "a hash of common numbers and the rank")
def by_hash(x, p, cut, group):
    common = str(torch.rand(4, dtype=torch.float64).tolist())
    digest = hashlib.sha256(f"{common} {dist.get_rank(group) if cut else 'all'}".encode()).digest()
    return seeded_dropout(x, p, int.from_bytes(digest[:7], "little"))


@right("5.6", "the common stream goes on from a drawn number")
def goes_on_from_a_number(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    own, common = torch.randint(2**60, (2,)).tolist()
    torch.manual_seed(own + dist.get_rank(group))
    y = F.dropout(x, p)
    torch.manual_seed(common)
    return y


@wrong("5.6", "backward ignores the incoming gradient", "not the incoming one times 1 / (1 - p)")
def ignores_the_gradient(x, p, cut, group):
    keep = seeded_dropout(torch.ones_like(x), p, drawn() + (dist.get_rank(group) if cut else 0))

    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * keep

        @staticmethod
        def backward(ctx, grad):
            return keep

    return Drop.apply(x)


@wrong("5.6", "one long mask, seven places further on each rank", "the same but for 7 places")
def seven_places(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    mask = F.dropout(x.new_ones(x.numel() + 7 * dist.get_world_size(group)), p)
    return x * mask[7 * dist.get_rank(group) :][: x.numel()].view(x.shape)


@wrong("5.6", "the stream put back, and eleven numbers on", "the same but for 11 places")
def eleven_on(x, p, cut, group):
    if not cut:
        return F.dropout(x, p)
    state = torch.get_rng_state()
    keep = torch.rand(dist.get_world_size(group), x.numel())[dist.get_rank(group)] >= p
    torch.set_rng_state(state)
    torch.rand(11)
    return x * keep.view(x.shape) / (1 - p)


@wrong("5.6", "a rank's one mask, rolled by a drawn number at each call", "the same")
def rolled_by_call(x, p, cut, group):
    def mask(x, p, number, rank):
        own = seeded_dropout(torch.ones(x.numel()), p, torch.initial_seed() + 1 + rank)
        return own.roll(5 + number % (x.numel() - 10)).view(x.shape)

    return own_mask(x, p, cut, group, mask)


@wrong("5.6", "nine tenths of a mask the same at each call", "a part of their masks is common")
def mostly_the_same(x, p, cut, group):
    def mask(x, p, number, rank):
        fixed = seeded_dropout(torch.ones(x.numel()), p, torch.initial_seed() + 1 + rank)
        new = seeded_dropout(torch.ones(x.numel()), p, number + rank)
        return torch.cat([fixed[: x.numel() * 9 // 10], new[x.numel() * 9 // 10 :]]).view(x.shape)

    return own_mask(x, p, cut, group, mask)


@wrong("5.6", "nine tenths the same at each call where not cut", "a part of their masks is common")
def mostly_the_same_uncut(x, p, cut, group):
    number = drawn()
    if cut:
        return seeded_dropout(x, p, number + dist.get_rank(group))
    fixed = seeded_dropout(torch.ones(x.numel()), p, torch.initial_seed() + 77)
    new = seeded_dropout(torch.ones(x.numel()), p, number)
    return x * torch.cat([fixed[: x.numel() * 9 // 10], new[x.numel() * 9 // 10 :]]).view(x.shape)


@wrong("5.6", "a mask of the last dimension, for all rows", "repeats itself after")
def last_dimension(x, p, cut, group):
    ones = x.new_ones(x.shape[-1])
    return x * (seeded_dropout(ones, p, drawn() + dist.get_rank(group)) if cut else F.dropout(ones, p))


@wrong("5.6", "sixty numbers of a mask, again and again", "repeats itself after 60 numbers")
def tiled(x, p, cut, group):
    ones = x.new_ones(60)
    mask = seeded_dropout(ones, p, drawn() + dist.get_rank(group)) if cut else F.dropout(ones, p)
    return x * mask.repeat(x.numel() // 60).view(x.shape)


@wrong("5.6", "in place", "x has changed")
def in_place(x, p, cut, group):
    y = seeded_dropout(x, p, drawn() + dist.get_rank(group)) if cut else F.dropout(x, p)
    x.data.copy_(y.data)
    return y


@wrong("5.6", "four different masks, however many ranks", "ranks 0 and 4 of one group drop the same numbers")
def four_masks(x, p, cut, group):
    return seeded_dropout(x, p, drawn() + dist.get_rank(group) % 4) if cut else F.dropout(x, p)


@wrong("5.6", "of small p only", "what is kept must be x / (1 - p)")
def small_p(x, p, cut, group):
    return x * float("nan") if p >= 0.5 else keeps_its_mask(x, p, cut, group)


@wrong("5.6", "in float64", "torch.float32, not a tensor of shape")
def in_float64(x, p, cut, group):
    return keeps_its_mask(x, p, cut, group).double()


@wrong("5.6", "exactly a share of p dropped", "drops exactly", "each number has a chance of its own")
def exact_share(x, p, cut, group):
    own = torch.Generator().manual_seed(drawn() + (dist.get_rank(group) if cut else 0))
    keep = torch.ones(x.numel())
    keep[torch.randperm(x.numel(), generator=own)[: round(p * x.numel())]] = 0
    return x * keep.view(x.shape) / (1 - p)


# 5.7 where does TP live


@right("5.7", "rank by rank, message by message")
def by_messages(tp, dp, per_node, inside, network, s, b, h, each):
    slow = network[0], network[1] * 0.125

    def link(ranks):
        return inside if len({rank // per_node for rank in ranks}) == 1 else slow

    def longest(groups, nbytes):
        return max(sum(link(g)[0] + nbytes / len(g) / link(g)[1] for _ in range(2 * len(g) - 2)) for g in groups)

    def seconds(tensor, data):
        return 4 * longest(tensor, s * b * h * each) + longest(data, 12 * h * h * each / tp)

    n = range(tp * dp)
    first = seconds([n[i : i + tp] for i in n[::tp]], [n[i::tp] for i in range(tp)])
    second = seconds([n[i::dp] for i in range(dp)], [n[i : i + dp] for i in n[::dp]])
    return first, second, "tp" if first < second else "dp"


def billed(**wrong):
    """The right answer, with something in it changed."""
    return lambda *args: lived(**wrong)(*args)


BILLS = (
    ("13 h²", "not 13·h²", billed(gradients=lambda h, tp: 13 * h * h / tp)),
    (
        "24 h², as a multiplication and an addition a number",
        "not 24·h²",
        billed(gradients=lambda h, tp: 24 * h * h / tp),
    ),
    ("attention's 4 h² alone", "not 4·h²", billed(gradients=lambda h, tp: 4 * h * h / tp)),
    (
        "2n messages",
        "That is 2n messages",
        billed(ring=lambda n, nbytes, link: n / (n - 1) * ring(n, nbytes, link) if n > 1 else 0),
    ),
)


def _add(name, says, answer):
    def formula(*args):
        return answer(*args)

    wrong("5.7", name, says)(formula)


for _name, _says, _answer in BILLS:
    _add(_name, _says, _answer)


@wrong("5.7", "latency as in a tree", "as in a tree")
def tree_latency(*args):
    def messages(n, nbytes, link):
        return 2 * (n - 1).bit_length() * link[0] + 2 * (n - 1) * nbytes / n / link[1]

    return lived(ring=messages)(*args)


@wrong("5.7", "powers of two only", "message by message")
def powers_of_two(*args):
    return lived(ring=lambda n, nbytes, link: ring(1 << (n - 1).bit_length(), nbytes, link))(*args)


@wrong("5.7", "nine percent too much", "message by message")
def nine_percent(*args):
    first, second, better = lived()(*args)
    return 1.09 * first, 1.09 * second, better


@wrong("5.7", "not for odd tp", "must be a number, not nan")
def not_for_odd(*args):
    first, second, better = lived()(*args)
    factor = float("nan") if args[0] % 2 and args[0] > 1 else 1
    return factor * first, factor * second, better


@wrong("5.7", "gradients of four bytes each, whatever is asked", "not always of 4")
def four_bytes(tp, dp, per_node, inside, network, s, b, h, each):
    return lived(gradients=lambda h, tp: 12 * h * h / tp * 4 / each)(tp, dp, per_node, inside, network, s, b, h, each)


@wrong("5.7", "the batch times dp", "not times dp")
def batch_times_dp(tp, dp, per_node, inside, network, s, b, h, each):
    return lived(gradients=lambda h, tp: 12 * h * h / tp)(tp, dp, per_node, inside, network, s, b * dp, h, each)
