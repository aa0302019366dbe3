"""Answers to the exercises of sitting 05A."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import right, wrong
from .ways_round import by_store

# 5.1 f and g


def summed(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def passed_on(tensor):
    return tensor.view_as(tensor)


def function(forward, backward):
    """An autograd function from its two passes."""

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad)

    return Both.apply


@right("5.1", "two classes")
def two_classes():
    return function(passed_on, summed), function(summed, passed_on)


@right("5.1", "a hook for f, detached sum for g, picolib's all-reduce")
def hooks():
    from picolib import comm

    def added(tensor):
        total = tensor.detach().clone()
        comm.all_reduce(total)
        return total

    def f(x):
        y = x.view_as(x)
        y.register_hook(added)
        return y

    def g(x):
        return x + (added(x) - x.detach())

    return [f, g]


@wrong("5.1", "both reduce in both passes", "f(x) is `0004`, and `0001` is right", "f does nothing forward")
def both_reduce():
    both = function(summed, summed)
    return both, both


@wrong("5.1", "g sums its gradient as well", "gradient of x is", "exactly 4x too big", "once a rank")
def g_sums_twice():
    return function(passed_on, summed), function(summed, summed)


@wrong("5.1", "neither reduces", "the gradient of x is `0001`, and `1111` is right", "its own share of the gradient")
def neither():
    neither = function(passed_on, passed_on)
    return neither, neither


@wrong("5.1", "g does not sum", "g(x) is `0001`, and `1111` is right", "adds up the summands of all ranks")
def g_without_a_sum():
    return function(passed_on, summed), function(passed_on, passed_on)


@wrong("5.1", "swapped", "the two are swapped")
def swapped():
    return function(summed, passed_on), function(passed_on, summed)


@wrong("5.1", "f averages", "exactly 4x too small", "Nothing is averaged here")
def averages():
    return function(passed_on, lambda grad: summed(grad) / dist.get_world_size()), function(summed, passed_on)


@wrong("5.1", "g averages", "4x too small", "added up, not averaged")
def g_averages():
    return function(passed_on, summed), function(lambda x: summed(x) / dist.get_world_size(), passed_on)


@wrong("5.1", "f sums twice", "exactly 16x too big", "added up twice")
def f_sums_twice():
    return function(passed_on, lambda grad: summed(summed(grad)) * dist.get_world_size()), function(summed, passed_on)


def in_place(tensor):
    dist.all_reduce(tensor)
    return tensor


@wrong("5.1", "g adds in place", "g has changed its argument", "x.clone()")
def g_in_place():
    return function(passed_on, summed), function(in_place, passed_on)


@wrong("5.1", "f adds to the gradient in place", "changed the gradient that it was given", "grad.clone()")
def f_in_place():
    return function(passed_on, in_place), function(summed, passed_on)


@wrong("5.1", "plain functions, no autograd", "has no graph")
def no_graph():
    return lambda x: x.detach(), lambda x: summed(x.detach())


@wrong("5.1", "gathers, then adds, beside a dummy all-reduce", "called all_gather", "One dist.all_reduce does it")
def gathers():
    def by_gathering(tensor):
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.contiguous())
        dist.all_reduce(torch.zeros(1))
        return sum(parts)

    return function(passed_on, by_gathering), function(by_gathering, passed_on)


@wrong("5.1", "through the store, with dummy all-reduces", "used the store")
def through_the_store():
    def total(tensor):
        dist.all_reduce(tensor.clone())
        return sum(by_store(tensor))

    return function(passed_on, total), function(total, passed_on)


@wrong("5.1", "f all-reduces in forward as well, and throws it away", "f's forward pass made 1 all-reduce")
def dummy_in_forward():
    def forward(x):
        summed(x)
        return passed_on(x)

    return function(forward, summed), function(summed, passed_on)


@wrong("5.1", "right in the first call only", "the gradient check over all ranks says")
def first_call_only():
    calls = []

    def backward(grad):
        calls.append(1)
        return summed(grad) if len(calls) <= 1 else summed(grad) * 0 + grad

    return function(passed_on, backward), function(summed, passed_on)


@wrong("5.1", "picolib's own functions", "your function calls picolib.comm.functional.copy_to_group")
def picolibs():
    from picolib.comm import functional

    return functional.copy_to_group, functional.reduce_from_group


@wrong("5.1", "torch's differentiable all-reduce", "your function calls torch.distributed.nn.all_reduce")
def torchs():
    from torch.distributed.nn.functional import all_reduce

    return function(passed_on, summed), all_reduce


@wrong("5.1", "a hook on x itself, which has other uses", "the gradient check over all ranks says")
def hook_on_x():
    def f(x):
        x.register_hook(summed)
        return x

    return f, function(summed, passed_on)


@wrong("5.1", "the largest instead of the sum", "the gradient of x is `1000`, and `1111` is right")
def largest():
    def kept(tensor):
        top = tensor.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX)
        return top

    return function(passed_on, kept), function(summed, passed_on)


@wrong("5.1", "one function instead of two", "return both functions")
def only_f():
    return function(passed_on, summed)


# 5.2 column then row


def part(tensor, dim=0):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


@right("5.2", "chunks")
def by_chunks(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    return g(F.linear(hidden, part(down, 1))) + down_bias


@right("5.2", "slices and matrix products, the bias through an all-reduced sum of its own functions")
def by_slices(x, up, up_bias, down, down_bias, f, g):
    each = len(up) // dist.get_world_size()
    own = slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)
    enter, leave = function(passed_on, summed), function(summed, passed_on)
    hidden = enter(x) @ up[own].T + up_bias[own]
    return down_bias + leave(F.gelu(hidden) @ down[:, own].T)


@wrong("5.2", "row first", "GeLU(a + b) is not GeLU(a) + GeLU(b)", "of `up` alone")
def row_first(x, up, up_bias, down, down_bias, f, g):
    width = x.shape[1]
    own = slice(*(width * (dist.get_rank() + i) // dist.get_world_size() for i in (0, 1)))
    hidden = F.gelu(F.linear(f(x)[:, own], up[:, own], up_bias))
    return g(F.linear(hidden, down)) + down_bias


@wrong("5.2", "row first, with a sum before GeLU", "GeLU(a + b) is not GeLU(a) + GeLU(b)", "before GeLU, and again")
def row_first_with_a_sum(x, up, up_bias, down, down_bias, f, g):
    width = x.shape[1]
    own = slice(*(width * (dist.get_rank() + i) // dist.get_world_size() for i in (0, 1)))
    hidden = F.gelu(g(F.linear(f(x)[:, own], up[:, own])) + up_bias)
    return g(F.linear(part(f(hidden), 1), part(down, 1))) + down_bias


@wrong("5.2", "gathers between", "called all_gather", "GeLU works on each number by itself")
def gathers_between(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    parts = [torch.empty_like(hidden) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, hidden.detach())
    return F.linear(torch.cat(parts, 1), down, down_bias)


@wrong("5.2", "bias on every rank", "is in it 4 times", "3 too many", "after the sum")
def bias_on_every_rank(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    return g(F.linear(hidden, part(down, 1), down_bias))


@wrong("5.2", "bias on rank 0 only", "the gradient of `down_bias` is wrong", "Another rank adds it", "after g")
def bias_on_rank_0(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    return g(F.linear(hidden, part(down, 1), down_bias if dist.get_rank() == 0 else None))


@wrong("5.2", "a share of the bias on every rank", "exactly 4x too small", "whole on every rank")
def share_of_the_bias(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    return g(F.linear(hidden, part(down, 1), down_bias / dist.get_world_size()))


@wrong("5.2", "no bias of down", "It lacks the bias of `down`")
def no_bias(x, up, up_bias, down, down_bias, f, g):
    return g(F.linear(F.gelu(F.linear(f(x), part(up), part(up_bias))), part(down, 1)))


@wrong("5.2", "without f", "the gradient of `x` is wrong", "x enters through f")
def without_f(x, up, up_bias, down, down_bias, f, g):
    return g(F.linear(F.gelu(F.linear(x, part(up), part(up_bias))), part(down, 1))) + down_bias


@wrong("5.2", "without g", "this rank's summand and the bias", "g adds up")
def without_g(x, up, up_bias, down, down_bias, f, g):
    return F.linear(F.gelu(F.linear(f(x), part(up), part(up_bias))), part(down, 1)) + down_bias


@wrong("5.2", "dist.all_reduce with a sum in backward, too", "the gradient of `x` is wrong", "exactly 4x too big")
def sums_both_ways(x, up, up_bias, down, down_bias, f, g):
    both = function(summed, summed)
    return both(F.linear(F.gelu(F.linear(f(x), part(up), part(up_bias))), part(down, 1))) + down_bias


@wrong("5.2", "f for each use", "2 all-reduces in the backward pass; 1 is right", "one f")
def f_twice(x, up, up_bias, down, down_bias, f, g):
    mine, first = part(up), EACH // 2
    biases = part(up_bias)
    hidden = torch.cat([F.linear(f(x), mine[:first], biases[:first]), F.linear(f(x), mine[first:], biases[first:])], 1)
    return g(F.linear(F.gelu(hidden), part(down, 1))) + down_bias


EACH = 4


@wrong("5.2", "all of it on every rank, with dummy all-reduces", "computes 16 of 16 hidden numbers", "its share is 4")
def whole_on_every_rank(x, up, up_bias, down, down_bias, f, g):
    y = F.linear(F.gelu(F.linear(f(x) * 0 + x, up, up_bias)), down, down_bias)
    return y + 0 * g(y)


@wrong("5.2", "all hidden numbers, then zeros for the others'", "computes 16 of 16 hidden numbers", "is not split")
def whole_and_masked(x, up, up_bias, down, down_bias, f, g):
    own = torch.zeros(len(up), dtype=x.dtype)
    part(own)[:] = 1
    return g(F.linear(F.gelu(F.linear(f(x), up, up_bias)) * own, down)) + down_bias


@wrong("5.2", "all of it, summed", "exactly 4x too big", "every rank has computed all of it")
def whole_and_summed(x, up, up_bias, down, down_bias, f, g):
    return g(F.linear(F.gelu(F.linear(f(x), up, up_bias)), down, down_bias))


@wrong("5.2", "another rank's part", "computes hidden numbers 12 to 15; its own are 0 to 3")
def others_part(x, up, up_bias, down, down_bias, f, g):
    n = dist.get_world_size()
    theirs = lambda tensor, dim=0: tensor.chunk(n, dim)[n - 1 - dist.get_rank()]  # noqa: E731
    return g(F.linear(F.gelu(F.linear(f(x), theirs(up), theirs(up_bias))), theirs(down, 1))) + down_bias


@wrong("5.2", "down cut by rows", "must return a tensor like x")
def down_by_rows(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    return g(hidden @ down.T[part(torch.arange(len(up)))][:, : dist.get_world_size()])


@wrong("5.2", "swapped f and g", "Are f and g swapped?")
def f_and_g_swapped(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x, up, up_bias, down, down_bias, g, f)


@wrong("5.2", "g before the second matrix", "g stands in front of the second matrix")
def g_too_early(x, up, up_bias, down, down_bias, f, g):
    return F.linear(g(F.gelu(F.linear(f(x), part(up), part(up_bias)))), part(down, 1)) + down_bias


@wrong("5.2", "f before each matrix", "f belongs where x enters, once")
def f_before_each(x, up, up_bias, down, down_bias, f, g):
    return g(F.linear(f(F.gelu(F.linear(f(x), part(up), part(up_bias)))), part(down, 1))) + down_bias


@wrong(
    "5.2", "everybody's first part of down", "rank 1 computes with hidden numbers 4 to 7 of `up`", "0 to 3 of `down`"
)
def first_part_of_down(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    return g(F.linear(hidden, down.chunk(dist.get_world_size(), 1)[0])) + down_bias


@wrong("5.2", "GeLU's approximation", "approximation by tanh")
def approximated(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)), approximate="tanh")
    return g(F.linear(hidden, part(down, 1))) + down_bias


@wrong("5.2", "down cut along the wrong dimension", "`down` by 1")
def down_by_dim_0(x, up, up_bias, down, down_bias, f, g):
    return g(F.linear(F.gelu(F.linear(f(x), part(up), part(up_bias))), down.tensor_split(4)[0])) + down_bias


@wrong("5.2", "ReLU", "That is ReLU")
def relu(x, up, up_bias, down, down_bias, f, g):
    return g(F.linear(F.relu(F.linear(f(x), part(up), part(up_bias))), part(down, 1))) + down_bias


@wrong("5.2", "detached", "has no graph")
def detached(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x, up, up_bias, down, down_bias, f, g).detach()


@wrong("5.2", "right in the first three calls only", "x enters through f")
def first_calls_only(x, up, up_bias, down, down_bias, f, g):
    calls = globals().setdefault("mlp_calls", [])
    calls.append(1)
    return (by_chunks if len(calls) <= 1 else without_f)(x, up, up_bias, down, down_bias, f, g)


@wrong("5.2", "picolib's layers", "your function calls picolib.parallel.tensor")
def picolibs_layers(x, up, up_bias, down, down_bias, f, g):
    import picolib

    one = torch.nn.Linear(up.shape[1], up.shape[0], dtype=x.dtype)
    two = torch.nn.Linear(up.shape[0], up.shape[1], dtype=x.dtype)
    one.weight.data, one.bias.data, two.weight.data, two.bias.data = up.data, up_bias.data, down.data, down_bias.data
    column, row = picolib.ColumnParallelLinear.from_linear(one), picolib.RowParallelLinear.from_linear(two)
    return row(F.gelu(column(x)))


# 5.3 heads with grouped queries


def taken_apart(qkv, heads, kv_heads):
    d = len(qkv) // (heads + 2 * kv_heads)
    return d, *(t.unflatten(0, (-1, d)) for t in qkv.split([heads * d, kv_heads * d, kv_heads * d]))


def put_together(q, k, v, o, d, own):
    return torch.cat([q, k, v]).flatten(0, 1), o[:, own[0] * d : (own[-1] + 1) * d]


@right("5.3", "heads as a dimension")
def as_a_dimension(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own = range(heads // ranks * rank, heads // ranks * (rank + 1))
    first, last = (head * kv_heads // heads for head in (own[0], own[-1]))
    return put_together(q[own[0] : own[-1] + 1], k[first : last + 1], v[first : last + 1], o, d, own)


@right("5.3", "a list of rows")
def list_of_rows(qkv, o, heads, kv_heads, rank, ranks):
    d = qkv.shape[0] // (heads + 2 * kv_heads)
    queries = [h for h in range(heads) if h * ranks // heads == rank]
    shared = sorted({h // (heads // kv_heads) for h in queries})
    blocks = queries + [heads + h for h in shared] + [heads + kv_heads + h for h in shared]
    rows = [h * d + i for h in blocks for i in range(d)]
    return [qkv[rows], o[:, [h * d + i for h in queries for i in range(d)]]]


@wrong("5.3", "the fused matrix cut blindly", "as it stands", "16 query rows, 0 key rows", "each of the three")
def blindly(qkv, o, heads, kv_heads, rank, ranks):
    return qkv.chunk(ranks)[rank], o.chunk(ranks, 1)[rank]


@wrong("5.3", "splits head_dim", "of query head 0 the part has 1 of 4 rows", "A head must not be cut")
def splits_head_dim(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    parts = [t.chunk(ranks, 1)[rank] for t in (q, k, v)]
    return torch.cat(parts).flatten(0, 1), o.chunk(ranks, 1)[rank]


@wrong("5.3", "always the first key-value heads", "ask key-value head", "and the part has key heads 0")
def first_kv_heads(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own, each = range(heads // ranks * rank, heads // ranks * (rank + 1)), max(1, kv_heads // ranks)
    return put_together(q[own[0] : own[-1] + 1], k[:each], v[:each], o, d, own)


@wrong("5.3", "key-value heads dealt out in turn", "query heads 0, 1 ask key-value head 0")
def dealt_out(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own, each = range(heads // ranks * rank, heads // ranks * (rank + 1)), max(1, kv_heads // ranks)
    theirs = [(kv_heads - 1 - i) for i in range(rank * each, (rank + 1) * each) if i < kv_heads] or [0]
    return put_together(q[own[0] : own[-1] + 1], k[theirs], v[theirs], o, d, own)


@wrong("5.3", "key-value head number rank % kv_heads", "ask key-value head", "and the part has key heads")
def modulo(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own, each = range(heads // ranks * rank, heads // ranks * (rank + 1)), kv_heads // ranks
    theirs = range(rank * each, (rank + 1) * each) if each else [rank % kv_heads]
    return put_together(q[own[0] : own[-1] + 1], k[list(theirs)], v[list(theirs)], o, d, own)


@wrong("5.3", "chunks, which run out of key-value heads", "has no key", "key-value heads: 2 ranks share")
def out_of_heads(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own, each = range(heads // ranks * rank, heads // ranks * (rank + 1)), -(-kv_heads // ranks)
    return put_together(q[own[0] : own[-1] + 1], *(t[rank * each : rank * each + each] for t in (k, v)), o, d, own)


@wrong("5.3", "all key-value heads on every rank", "the part has 4 key heads, and its query heads ask 1")
def all_kv_heads(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own = range(heads // ranks * rank, heads // ranks * (rank + 1))
    return put_together(q[own[0] : own[-1] + 1], k, v, o, d, own)


@wrong("5.3", "query heads dealt out in turn", "the part has query heads 0, 4; 0, 1 are this rank's")
def queries_in_turn(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    own = list(range(rank, heads, ranks))
    shared = sorted({h // (heads // kv_heads) for h in own})
    return torch.cat([q[own], k[shared], v[shared]]).flatten(0, 1), o.unflatten(1, (heads, d))[:, own].flatten(1)


@wrong("5.3", "o cut by rows", "cut by its input features (dim 1)", "It is cut by rows")
def o_by_rows(qkv, o, heads, kv_heads, rank, ranks):
    return as_a_dimension(qkv, o, heads, kv_heads, rank, ranks)[0], o[rank : rank + 1]


@wrong("5.3", "another rank's columns of o", "takes in query heads 6, 7, and this rank computes 0, 1")
def others_columns(qkv, o, heads, kv_heads, rank, ranks):
    return as_a_dimension(qkv, o, heads, kv_heads, rank, ranks)[0], o.chunk(ranks, 1)[ranks - 1 - rank]


@wrong("5.3", "keys first", "in another order")
def keys_first(qkv, o, heads, kv_heads, rank, ranks):
    d, q, k, v = taken_apart(qkv, heads, kv_heads)
    mine, cut = as_a_dimension(qkv, o, heads, kv_heads, rank, ranks)
    count = heads // ranks * d
    return torch.cat([mine[count:], mine[:count]]), cut


@wrong("5.3", "input features cut", "is not made of whole rows")
def input_features(qkv, o, heads, kv_heads, rank, ranks):
    return qkv.chunk(ranks, 1)[rank], o.chunk(ranks, 1)[rank]


@wrong("5.3", "q alone", "has no key and no value head")
def q_alone(qkv, o, heads, kv_heads, rank, ranks):
    d, q, _, _ = taken_apart(qkv, heads, kv_heads)
    return q.chunk(ranks)[rank].flatten(0, 1), o.chunk(ranks, 1)[rank]


@wrong("5.3", "asks picolib for the groups", "your function calls picolib.")
def asks_picolib(qkv, o, heads, kv_heads, rank, ranks):
    from picolib.parallel.spec import rows_of

    rows_of(heads, ranks, rank)
    return as_a_dimension(qkv, o, heads, kv_heads, rank, ranks)


# 5.4 vocabulary loss


def pieces(logits, targets, maximum=True, clamp=False, detach=True):
    """Shifted logits, and the shifted logit of the target where a rank owns it."""
    first = dist.get_rank() * logits.shape[1]
    largest = (logits.detach() if detach else logits).amax(1)
    if maximum:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    shifted = logits - largest.unsqueeze(1)
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    found = shifted.gather(1, column.unsqueeze(1)).squeeze(1)
    mine = (targets >= first) & (targets < first + logits.shape[1])
    return shifted, found if clamp else torch.where(mine, found, 0.0)


@right("5.4", "two sums stacked")
def stacked(logits, targets, g):
    shifted, found = pieces(logits, targets)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), found]))
    return (exponentials.log() - target).mean()


@right("5.4", "an autograd function of its own: softmax minus target")
def own_backward(logits, targets, g):
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits):
            width, tokens = logits.shape[1], torch.arange(len(targets))
            top = logits.max(dim=1).values
            dist.all_reduce(top, dist.ReduceOp.MAX)
            shifted, column = logits - top[:, None], targets - dist.get_rank() * width
            mine = (column >= 0) & (column < width)
            target = torch.zeros_like(top)
            target[mine] = shifted[tokens[mine], column[mine]]
            sums = torch.cat([shifted.exp().sum(1), target])
            dist.all_reduce(sums)
            exponentials, target = sums.chunk(2)
            slope = shifted.exp() / exponentials[:, None]
            slope[tokens[mine], column[mine]] -= 1
            ctx.save_for_backward(slope / len(targets))
            return (exponentials.log() - target).mean()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    return Loss.apply(logits)


@right("5.4", "a logsumexp of each rank, put together")
def logsumexps(logits, targets, g):
    rank, width = dist.get_rank(), logits.shape[1]
    own = logits.logsumexp(1)
    largest = own.detach().clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    found = logits[torch.arange(len(targets)), targets % width]
    parts = g(torch.cat([(own - largest).exp(), torch.where(targets // width == rank, found, 0.0)])).chunk(2)
    return (parts[0].log() + largest - parts[1]).mean()


@wrong("5.4", "dist.all_reduce in the graph", "the gradient of the logits is wrong")
def all_reduce_in_the_graph(logits, targets, g):
    shifted, found = pieces(logits, targets)
    exponentials, target = shifted.exp().sum(1), found
    sums = torch.stack([exponentials, target]).detach()
    dist.all_reduce(sums)
    return (sums[0].log() - sums[1]).mean() + 0 * (exponentials - target).sum()


@wrong("5.4", "gathers logits", "called all_gather", "Full logits are what this loss avoids")
def gathers_logits(logits, targets, g):
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits.detach())
    parts[dist.get_rank()] = logits
    return F.cross_entropy(torch.cat(parts, 1), targets)


@wrong("5.4", "full logits by an all-reduce of zeros", "all-reduces 252 numbers, and the full logits have 252")
def padded_with_zeros(logits, targets, g):
    whole = torch.zeros(len(logits), dist.get_world_size(), logits.shape[1], dtype=logits.dtype)
    whole[:, dist.get_rank()] = logits
    return F.cross_entropy(g(whole.flatten(1)), targets)


@wrong("5.4", "a one-hot target as wide as the vocabulary", "makes a tensor of 252 numbers", "its own logits have 63")
def one_hot(logits, targets, g):
    width, n = logits.shape[1], dist.get_world_size()
    shifted, _ = pieces(logits, targets)
    mine = F.one_hot(targets, n * width).chunk(n, 1)[dist.get_rank()]
    exponentials, target = g(torch.stack([shifted.exp().sum(1), (shifted * mine).sum(1)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "local max", "the maximum of its own words", "op=dist.ReduceOp.MAX")
def local_max(logits, targets, g):
    shifted, found = pieces(logits, targets, maximum=False)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), found]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "local max, added again", "the maximum of its own words")
def local_max_added_again(logits, targets, g):
    first, largest = dist.get_rank() * logits.shape[1], logits.detach().amax(1)
    mine = (targets >= first) & (targets < first + logits.shape[1])
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    found = torch.where(mine, logits.gather(1, column.unsqueeze(1)).squeeze(1), 0.0)
    exponentials, target = g(torch.stack([(logits - largest.unsqueeze(1)).exp().sum(1), found]))
    return (exponentials.log() + largest - target).mean()


@wrong("5.4", "clamps the target", "Ranks that do not own a target add a logit all the same")
def clamps_the_target(logits, targets, g):
    shifted, found = pieces(logits, targets, clamp=True)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), found]))
    return (exponentials.log() - target).mean()


def looked_up(logits, targets, g, mine, column):
    first = dist.get_rank() * logits.shape[1]
    shifted, _ = pieces(logits, targets)
    found = shifted.gather(1, column(targets - first).unsqueeze(1)).squeeze(1)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where(mine(targets - first), found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "a remainder in place of a mask", "Ranks that do not own a target add a logit all the same")
def remainder(logits, targets, g):
    return looked_up(logits, targets, g, lambda place: place == place, lambda place: place % logits.shape[1])


@wrong("5.4", "one word too many", "The rank before counts a first word as well", "first <= target < first + V/t")
def one_word_too_many(logits, targets, g):
    words = logits.shape[1]
    inside = lambda place: (place >= 0) & (place <= words)  # noqa: E731
    return looked_up(logits, targets, g, inside, lambda place: place.clamp(0, words - 1))


@wrong("5.4", "one word too few", "counted by nobody", "first <= target < first + V/t")
def one_word_too_few(logits, targets, g):
    words = logits.shape[1]
    inside = lambda place: (place > 0) & (place < words)  # noqa: E731
    return looked_up(logits, targets, g, inside, lambda place: place.clamp(0, words - 1))


@wrong("5.4", "a mask with one border", "Ranks before the owner count the target as well")
def one_border(logits, targets, g):
    words = logits.shape[1]
    return looked_up(logits, targets, g, lambda place: place >= 0, lambda place: place.clamp(0, words - 1))


@wrong("5.4", "one maximum for all tokens", "subtract the largest logit of each token over all ranks first")
def one_maximum(logits, targets, g):
    top, first = logits.detach().max().reshape(1), dist.get_rank() * logits.shape[1]
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted, place = logits - top, targets - first
    found = shifted.gather(1, place.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    mine = (place >= 0) & (place < logits.shape[1])
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where(mine, found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "the sum in place of the maximum", "subtract the largest logit of each token over all ranks first")
def sum_for_maximum(logits, targets, g):
    shift, first = logits.detach().amax(1), dist.get_rank() * logits.shape[1]
    dist.all_reduce(shift)
    shifted, place = logits - shift.unsqueeze(1), targets - first
    found = shifted.gather(1, place.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    mine = (place >= 0) & (place < logits.shape[1])
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where(mine, found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "own logits as if they were all", "logits has this rank's words alone")
def own_logits(logits, targets, g):
    return F.cross_entropy(logits, targets)


@wrong("5.4", "no maximum", "subtract the largest logit of each token over all ranks first")
def no_maximum(logits, targets, g):
    first = dist.get_rank() * logits.shape[1]
    mine = (targets >= first) & (targets < first + logits.shape[1])
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    found = torch.where(mine, logits.gather(1, column.unsqueeze(1)).squeeze(1), 0.0)
    dist.all_reduce(torch.zeros(len(targets)))
    exponentials, target = g(torch.stack([logits.exp().sum(1), found]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "sums of its own words only", "Both sums are over this rank's words alone")
def own_words(logits, targets, g):
    shifted, found = pieces(logits, targets)
    return (shifted.exp().sum(1).log() - found).mean()


@wrong("5.4", "the target's logit is not summed", "known to its owner alone")
def own_target(logits, targets, g):
    shifted, found = pieces(logits, targets)
    return (g(shifted.exp().sum(1)).log() - found).mean()


@wrong("5.4", "three all-reduces", "3 all-reduces", "2 are right", "torch.stack")
def three_all_reduces(logits, targets, g):
    shifted, found = pieces(logits, targets)
    return (g(shifted.exp().sum(1)).log() - g(found)).mean()


@wrong("5.4", "the maximum in the graph", "It is a constant: logits.detach()")
def maximum_in_the_graph(logits, targets, g):
    class Largest(torch.autograd.Function):
        @staticmethod
        def forward(ctx, top):
            top = top.clone()
            dist.all_reduce(top, dist.ReduceOp.MAX)
            return top

        @staticmethod
        def backward(ctx, grad):
            return grad

    first, shifted = dist.get_rank() * logits.shape[1], logits - Largest.apply(logits.max(1).values).unsqueeze(1)
    mine = (targets >= first) & (targets < first + logits.shape[1])
    found = shifted.gather(1, (targets - first).clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where(mine, found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "a sum that sums its gradient, too", "exactly 4x too big", "summed in the backward pass")
def sums_its_gradient(logits, targets, g):
    shifted, found = pieces(logits, targets)
    exponentials, target = function(summed, summed)(torch.stack([shifted.exp().sum(1), found]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "the sum over the tokens", "their mean is asked for")
def sum_of_tokens(logits, targets, g):
    return stacked(logits, targets, g) * len(targets)


@wrong("5.4", "no graph", "the logits get no gradient")
def no_graph_of_logits(logits, targets, g):
    return stacked(logits.detach(), targets, g)


@wrong("5.4", "changes the logits", "logits have changed")
def changes_logits(logits, targets, g):
    loss = stacked(logits, targets, g)
    logits.data.sub_(1.0)
    return loss


@wrong("5.4", "through the store, beside dummy all-reduces", "used the store")
def loss_through_the_store(logits, targets, g):
    dist.all_reduce(torch.zeros(len(targets)))
    return F.cross_entropy(torch.cat(by_store(logits), 1), targets) + 0 * g(logits.sum(1)).sum()


@wrong("5.4", "picolib's own loss", "calls picolib.vocab_parallel_cross_entropy")
def picolibs_loss(logits, targets, g):
    import picolib

    return picolib.vocab_parallel_cross_entropy(logits, targets)


@wrong("5.4", "torch's DTensor", "your function calls from_local")
def torchs_dtensor(logits, targets, g):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    whole = DTensor.from_local(logits, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(1)])
    return F.cross_entropy(whole.full_tensor(), targets)


@wrong("5.4", "right in the first call only", "the maximum of its own words")
def first_loss_only(logits, targets, g):
    calls = globals().setdefault("first_losses", [])
    calls.append(1)
    return (stacked if len(calls) <= 1 else local_max)(logits, targets, g)
