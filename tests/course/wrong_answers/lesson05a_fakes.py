"""More answers to the exercises of sitting 05A: right numbers by another way, and right ones that look unusual."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import right, wrong
from .lesson05a import by_chunks, function, own_backward, part, passed_on, pieces, summed

# 5.1 f and g


def padded(tensor, fill=0.0, **options):
    """Everybody's tensor, by an all-reduce of slots of which each rank fills one."""
    slots = torch.full((dist.get_world_size(), *tensor.shape), fill, dtype=tensor.dtype)
    slots[dist.get_rank()] = tensor
    dist.all_reduce(slots, **options)
    return slots


@wrong("5.1", "an all-reduce of slots as a gather, then a sum", "all-reduces 12 numbers", "x has 3")
def sum_of_slots():
    return function(passed_on, summed), function(lambda x: padded(x).sum(0), passed_on)


@wrong("5.1", "a gather by MAX, then a sum", "f's backward pass all-reduces 12 numbers", "x has 3")
def largest_of_slots():
    gathered = lambda x: padded(x, -float("inf"), op=dist.ReduceOp.MAX).sum(0)  # noqa: E731
    return function(passed_on, gathered), function(summed, passed_on)


@wrong("5.1", "gathers by an operator of torch, beside a dummy", "called all_gather_into_tensor", "One dist.all_reduce")
def by_an_operator():
    def total(tensor):
        functional, n = torch.ops._c10d_functional, dist.get_world_size()
        gathered = functional.all_gather_into_tensor(tensor.contiguous().flatten(), n, dist.group.WORLD.group_name)
        one = torch.ones(1, dtype=tensor.dtype)
        dist.all_reduce(one)
        return functional.wait_tensor(gathered).view(n, *tensor.shape).sum(0) * (one / n)

    return function(passed_on, total), function(total, passed_on)


@wrong("5.1", "one all-reduce more, by an operator of torch", "f's backward pass made 2 all-reduces")
def one_more_by_an_operator():
    def total(tensor):
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce(tensor.clone(), "sum", dist.group.WORLD.group_name))
        return summed(tensor)

    return function(passed_on, total), function(summed, passed_on)


def one_buffer():
    buffers = {}

    def total(tensor):
        buffer = buffers.setdefault(tensor.shape, torch.empty_like(tensor))
        buffer.copy_(tensor)
        dist.all_reduce(buffer)
        return buffer.view_as(buffer)

    return total


@wrong("5.1", "one buffer for all of g's results", "what g returned has changed with its next call")
def one_buffer_for_g():
    total = one_buffer()
    return function(passed_on, summed), function(lambda x: total(x).data, passed_on)


@wrong("5.1", "one buffer for all of f's gradients", "its gradient is not the sum of both", "a tensor of its own")
def one_buffer_for_f():
    return function(passed_on, one_buffer()), function(summed, passed_on)


@wrong("5.1", "always float64", "g(x) is of float64, and x of float32", "keep the dtype")
def always_double():
    return function(passed_on, summed), function(lambda x: summed(x.double()), passed_on)


@wrong("5.1", "no sum without a gradient", "under torch.no_grad()", "whether somebody wants a gradient or not")
def no_sum_without_a_gradient():
    leave = function(summed, passed_on)
    return function(passed_on, summed), lambda x: leave(x) if x.requires_grad else x


@wrong("5.1", "all-reduce in the graph", "gives all_reduce a tensor with a graph", "right here by chance")
def all_reduce_in_the_graph_of_g():
    def g(x):
        y = x * 1.0
        dist.all_reduce(y)
        return y

    return function(passed_on, summed), g


@wrong("5.1", "matrices only", "x must be a matrix")
def matrices_only():
    def total(tensor):
        if tensor.dim() > 2:
            raise ValueError("x must be a matrix")
        return summed(tensor)

    return function(passed_on, total), function(total, passed_on)


@wrong("5.1", "the smallest in f's backward pass", "All ranks hold what rank 0 gave", "adds up, op=SUM")
def smallest():
    def kept(tensor):
        low = tensor.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        return low

    return function(passed_on, kept), function(summed, passed_on)


@right("5.1", "modules, and picolib's all-reduce, not waited for at once")
def modules():
    from picolib import comm

    def total(tensor):
        tensor = tensor.detach().clone()
        comm.all_reduce(tensor, async_op=True).wait()
        return tensor

    class Passes(torch.nn.Module):
        def __init__(self, forward, backward):
            super().__init__()
            self.apply_both = function(forward, backward)

        def forward(self, x):
            return self.apply_both(x)

    return Passes(passed_on, total), Passes(total, passed_on)


@right("5.1", "setup_context, waited for later, nothing where no gradient is needed")
def setup_context():
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            if not ctx.needs_input_grad[0]:
                return None
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, async_op=True).wait()
            return grad

    class Leave(Enter):
        @staticmethod
        def forward(x):
            return summed(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

    return Enter.apply, Leave.apply


# 5.2 column then row


@wrong("5.2", "four hidden numbers a rank, as a constant", "Right on 4 ranks, wrong on 3")
def four_each(x, up, up_bias, down, down_bias, f, g):
    own = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    return g(F.linear(F.gelu(F.linear(f(x), up[own], up_bias[own])), down[:, own])) + down_bias


@wrong("5.2", "summands gathered in slots of an all-reduce", "all-reduces 140 numbers", "y has 35")
def slots_of_summands(x, up, up_bias, down, down_bias, f, g):
    leave = function(lambda y: padded(y).sum(0), passed_on)
    return by_chunks(x, up, up_bias, down, down_bias, f, leave)


@wrong("5.2", "gradients gathered in slots of an all-reduce", "in the backward pass, and x has 35")
def slots_of_gradients(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x, up, up_bias, down, down_bias, function(passed_on, lambda grad: padded(grad).sum(0)), g)


@wrong("5.2", "everybody's hidden numbers, thrown away", "computes 16 of 16 hidden numbers", "is not split")
def thrown_away(x, up, up_bias, down, down_bias, f, g):
    with torch.no_grad():
        for rows, bias in zip(up.split(2), up_bias.split(2), strict=True):
            F.gelu(F.linear(x, rows, bias))
            F.linear(x, rows, bias)
    return by_chunks(x, up, up_bias, down, down_bias, f, g)


@wrong(
    "5.2", "hidden numbers gathered by an operator of torch", "called all_gather_into_tensor", "goes on with its own"
)
def gathered_by_an_operator(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu(F.linear(f(x), part(up), part(up_bias)))
    functional, n = torch.ops._c10d_functional, dist.get_world_size()
    for row in hidden.detach():
        functional.wait_tensor(functional.all_gather_into_tensor(row.clone(), n, dist.group.WORLD.group_name))
    return g(F.linear(hidden, part(down, 1))) + down_bias


@wrong("5.2", "dist.all_reduce in the graph, in place of g", "gives all_reduce a tensor with a graph", "such as g")
def no_g(x, up, up_bias, down, down_bias, f, g):
    y = F.linear(F.gelu(F.linear(f(x), part(up), part(up_bias))), part(down, 1))
    dist.all_reduce(y)
    return y + down_bias


@wrong("5.2", "a hook on x in place of f", "x has another use as well", "x.view_as(x)")
def hook_on_the_given_x(x, up, up_bias, down, down_bias, f, g):
    x.register_hook(summed)
    return by_chunks(x, up, up_bias, down, down_bias, passed_on, g)


@wrong("5.2", "changes a bias", "`down_bias` has changed", "others use it")
def changes_a_bias(x, up, up_bias, down, down_bias, f, g):
    y = by_chunks(x, up, up_bias, down, down_bias, f, g)
    down_bias.data.add_(1)
    return y


@wrong("5.2", "tokens split instead", "computes 16 of 16 hidden numbers", "its share is 4")
def tokens_split(x, up, up_bias, down, down_bias, f, g):
    own = torch.arange(len(x)) % dist.get_world_size() == dist.get_rank()
    y = torch.zeros_like(x)
    y[own] = F.linear(F.gelu(F.linear(f(x)[own], up, up_bias)), down)
    return g(y) + down_bias


@wrong("5.2", "GeLU at the end", "GeLU stands behind the second matrix")
def gelu_at_the_end(x, up, up_bias, down, down_bias, f, g):
    return F.gelu(g(F.linear(F.linear(f(x), part(up), part(up_bias)), part(down, 1))) + down_bias)


@wrong("5.2", "the sum averaged", "The sum is divided by the number of ranks")
def averaged(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x, up, up_bias, down, 0, f, g) / dist.get_world_size() + down_bias


@wrong("5.2", "the bias subtracted", "The bias of `down` is subtracted")
def bias_subtracted(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x, up, up_bias, down, -down_bias, f, g)


@wrong("5.2", "x returned", "That is x itself")
def returns_x(x, up, up_bias, down, down_bias, f, g):
    return x


@wrong("5.2", "with the residual connection", "x is added to it")
def with_the_residual(x, up, up_bias, down, down_bias, f, g):
    return x + by_chunks(x, up, up_bias, down, down_bias, f, g)


@wrong("5.2", "in float32", "Rounding is all that differs", "float32")
def in_float32(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x.float(), up.float(), up_bias.float(), down.float(), down_bias.float(), f, g).double()


@right("5.2", "a transposed copy of down, stacked parts of up")
def copies(x, up, up_bias, down, down_bias, f, g):
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.stack(up.chunk(n))[rank]
    return g(F.gelu(f(x) @ mine.T + part(up_bias)) @ down.T.contiguous().chunk(n)[rank]) + down_bias


@right("5.2", "broadcast products and sums")
def broadcast(x, up, up_bias, down, down_bias, f, g):
    hidden = F.gelu((f(x).unsqueeze(1) * part(up)).sum(-1) + part(up_bias))
    return g((hidden.unsqueeze(1) * part(down, 1)).sum(-1)) + down_bias


@right("5.2", "the bias as one more column, with ones in x")
def ones_in_x(x, up, up_bias, down, down_bias, f, g):
    weight = torch.cat([part(up), part(up_bias)[:, None]], 1)
    return g(F.gelu(torch.cat([f(x), x.new_ones(len(x), 1)], 1) @ weight.T) @ part(down, 1).T) + down_bias


@right("5.2", "all that a rank needs packed into one matrix")
def packed(x, up, up_bias, down, down_bias, f, g):
    mine, h = torch.cat([part(up), part(up_bias)[:, None], part(down, 1).T], 1), x.shape[1]
    return g(F.gelu(f(x) @ mine[:, :h].T + mine[:, h]) @ mine[:, h + 1 :]) + down_bias


# 5.3 heads with grouped queries


def own_parts(qkv, o, heads, kv_heads, rank, ranks):
    d, each = o.shape[1] // heads, heads // ranks
    q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d])
    own = slice(rank * each * d, (rank + 1) * each * d)
    asked = slice(rank * each * kv_heads // heads * d, (((rank + 1) * each - 1) * kv_heads // heads + 1) * d)
    return torch.cat([q[own], k[asked], v[asked]]), o[:, own]


@wrong("5.3", "detached copies", "the part of qkv has no graph", "no gradient in training")
def detached_parts(qkv, o, heads, kv_heads, rank, ranks):
    return [part.detach().clone() for part in own_parts(qkv, o, heads, kv_heads, rank, ranks)]


@wrong("5.3", "in float64", "the part of qkv is of float64, and qkv of float32")
def parts_in_float64(qkv, o, heads, kv_heads, rank, ranks):
    return [part.double() for part in own_parts(qkv, o, heads, kv_heads, rank, ranks)]


@wrong("5.3", "zeroes what it was given", "`qkv` has changed")
def zeroes_what_it_was_given(qkv, o, heads, kv_heads, rank, ranks):
    parts = [part.clone() for part in own_parts(qkv, o, heads, kv_heads, rank, ranks)]
    qkv.zero_()
    return parts


@wrong("5.3", "the two parts swapped", "the two parts are swapped")
def swapped_parts(qkv, o, heads, kv_heads, rank, ranks):
    return own_parts(qkv, o, heads, kv_heads, rank, ranks)[::-1]


@wrong("5.3", "key-value heads by floats", "rank 15 of 22", "asks key-value head 15")
def by_floats(qkv, o, heads, kv_heads, rank, ranks):
    d, each, many = o.shape[1] // heads, heads // ranks, max(1, kv_heads // ranks)
    q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d])
    first = int(rank / ranks * kv_heads)
    own, asked = slice(rank * each * d, (rank + 1) * each * d), slice(first * d, (first + many) * d)
    return torch.cat([q[own], k[asked], v[asked]]), o[:, own]


@wrong("5.3", "keys and values once a query head", "some rows are there more than once", "is there once")
def once_a_query_head(qkv, o, heads, kv_heads, rank, ranks):
    d, each = o.shape[1] // heads, heads // ranks
    q, *kv = qkv.split([heads * d, kv_heads * d, kv_heads * d])
    k, v = (t.unflatten(0, (kv_heads, d)).repeat_interleave(heads // kv_heads, 0).flatten(0, 1) for t in kv)
    own = slice(rank * each * d, (rank + 1) * each * d)
    return torch.cat([q[own], k[own], v[own]]), o[:, own]


@wrong("5.3", "d from the width", "split_with_sizes", "h need not be heads * d")
def d_from_the_width(qkv, o, heads, kv_heads, rank, ranks):
    d = qkv.shape[1] // heads
    q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d])
    return q, o


@right("5.3", "rows by index")
def rows_by_index(qkv, o, heads, kv_heads, rank, ranks):
    rows = torch.arange(len(qkv)).view(-1, o.shape[1] // heads)
    own = torch.arange(heads).chunk(ranks)[rank]
    asked = torch.unique(own // (heads // kv_heads))
    queries = rows[own].flatten()
    mine = torch.cat([queries, rows[heads + asked].flatten(), rows[heads + kv_heads + asked].flatten()])
    return qkv.index_select(0, mine), o.index_select(1, queries)


# 5.4 vocabulary loss


@wrong("5.4", "ignores the gradient that it is given", "gradient of the loss itself is 0.5 here", "multiplies by")
def ignores_the_gradient(logits, targets, g):
    class Ignores(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits):
            with torch.enable_grad():
                inside = logits.detach().requires_grad_()
                loss = own_backward(inside, targets, g)
            (slope,) = torch.autograd.grad(loss, inside)
            ctx.save_for_backward(slope)
            return loss.detach()

        @staticmethod
        def backward(ctx, grad):
            return ctx.saved_tensors[0]

    return Ignores.apply(logits)


@wrong("5.4", "a wide one-hot in the backward pass", "makes a tensor of 252 numbers", "its own logits have 63")
def one_hot_in_backward(logits, targets, g):
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits):
            shifted, found = pieces(logits, targets)
            sums = torch.stack([shifted.exp().sum(1), found])
            dist.all_reduce(sums)
            ctx.save_for_backward(shifted.exp() / sums[0][:, None])
            return (sums[0].log() - sums[1]).mean()

        @staticmethod
        def backward(ctx, grad):
            (softmax,), n = ctx.saved_tensors, dist.get_world_size()
            return (
                grad * (softmax - F.one_hot(targets, softmax.shape[1] * n).chunk(n, 1)[dist.get_rank()]) / len(softmax)
            )

    return Loss.apply(logits)


@wrong("5.4", "seven words a rank, as a constant", "Right on 4 ranks, wrong on 3")
def seven_words(logits, targets, g):
    largest = logits.detach().amax(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    shifted, place = logits - largest.unsqueeze(1), targets - 7 * dist.get_rank()
    found = shifted.gather(1, place.clamp(0, 6).unsqueeze(1)).squeeze(1)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where((place >= 0) & (place < 7), found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "the mean of the maxima", "subtract the largest logit of each token", "op=dist.ReduceOp.MAX")
def mean_of_maxima(logits, targets, g):
    shift, first = logits.detach().amax(1), dist.get_rank() * logits.shape[1]
    dist.all_reduce(shift)
    shifted, place = logits - shift.unsqueeze(1) / dist.get_world_size(), targets - first
    found = shifted.gather(1, place.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    mine = (place >= 0) & (place < logits.shape[1])
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where(mine, found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "what each rank knows gathered in slots", "numbers for", "Three a token are enough")
def slots_of_sums(logits, targets, g):
    words, rank = logits.shape[1], dist.get_rank()
    found = logits.gather(1, (targets % words).unsqueeze(1)).squeeze(1)

    def slots(values):
        return g(torch.stack([values if r == rank else 0 * values for r in range(dist.get_world_size())]))

    total = slots(logits.logsumexp(1)).logsumexp(0)
    return (total - slots(torch.where(targets // words == rank, found, 0.0)).sum(0)).mean()


@wrong("5.4", "no maximum and one all-reduce", "of each token over all ranks first")
def no_maximum_at_all(logits, targets, g):
    first = dist.get_rank() * logits.shape[1]
    mine = (targets >= first) & (targets < first + logits.shape[1])
    found = logits.gather(1, (targets - first).clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    exponentials, target = g(torch.stack([logits.exp().sum(1), torch.where(mine, found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "the maximum without op=MAX", "of each token over all ranks first", "An all-reduce adds up")
def maximum_without_max(logits, targets, g):
    shift, first = logits.detach().amax(1), dist.get_rank() * logits.shape[1]
    dist.all_reduce(shift)
    shifted, place = logits - shift.unsqueeze(1), targets - first
    found = shifted.gather(1, place.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    mine = (place >= 0) & (place < logits.shape[1])
    exponentials, target = g(torch.stack([shifted.exp().sum(1), torch.where(mine, found, 0.0)]))
    return (exponentials.log() - target).mean()


@wrong("5.4", "dist.all_reduce of the sums, in the graph", "gives all_reduce a tensor with a graph", "such as g")
def sums_without_g(logits, targets, g):
    sums = torch.stack([part.clone() for part in two_parts(logits, targets)])
    dist.all_reduce(sums)
    return (sums[0].log() - sums[1]).mean()


def two_parts(logits, targets):
    shifted, found = pieces(logits, targets)
    return shifted.exp().sum(1), found


@wrong("5.4", "changes the targets", "targets have changed")
def changes_the_targets(logits, targets, g):
    exponentials, target = g(torch.stack(two_parts(logits, targets)))
    targets -= dist.get_rank() * logits.shape[1]
    return (exponentials.log() - target).mean()


@wrong("5.4", "logarithms added up", "add up the exponentials, then take one logarithm")
def logarithms_added_up(logits, targets, g):
    exponentials, found = two_parts(logits, targets)
    logarithms, target = g(torch.stack([exponentials.log(), found]))
    return (logarithms - target).mean()


@wrong("5.4", "-inf for others' targets", "other ranks' summand is 0")
def minus_infinity(logits, targets, g):
    exponentials, found = two_parts(logits, targets)
    sums = g(torch.stack([exponentials, torch.where(found == 0, -float("inf"), found)]))
    return (sums[0].log() - sums[1]).mean()


@wrong("5.4", "the mean over its own tokens", "all tokens count")
def mean_of_own_tokens(logits, targets, g):
    exponentials, target = g(torch.stack(two_parts(logits, targets)))
    return (exponentials.log() - target)[targets // logits.shape[1] == dist.get_rank()].mean()


@wrong("5.4", "every rank takes it that it owns a target", "AssertionError")
def owns_a_target(logits, targets, g):
    assert (targets // logits.shape[1] == dist.get_rank()).any()
    exponentials, target = g(torch.stack(two_parts(logits, targets)))
    return (exponentials.log() - target).mean()


@wrong("5.4", "logits gathered by an operator of torch", "called all_gather_into_tensor", "Full logits")
def logits_by_an_operator(logits, targets, g):
    functional, n = torch.ops._c10d_functional, dist.get_world_size()
    for word in logits.detach().unbind(1):
        functional.wait_tensor(functional.all_gather_into_tensor(word.clone(), n, dist.group.WORLD.group_name))
    exponentials, target = g(torch.stack(two_parts(logits, targets)))
    return (exponentials.log() - target).mean()


@right("5.4", "one more column for strangers' targets, the maximum by picolib")
def one_more_column(logits, targets, g):
    from picolib import comm

    largest = logits.detach().amax(1)
    comm.all_reduce(largest, dist.ReduceOp.MAX)
    shifted, place = logits - largest.unsqueeze(1), targets - dist.get_rank() * logits.shape[1]
    column = torch.where((place >= 0) & (place < logits.shape[1]), place + 1, 0)
    target = F.pad(shifted, (1, 0)).gather(1, column.unsqueeze(1)).squeeze(1)
    exponentials, target = g(torch.stack([shifted.exp().sum(1), target]))
    return (exponentials.log() - target).mean()


@right("5.4", "token by token, as a tensor of one number")
def token_by_token(logits, targets, g):
    largest, words = logits.detach().amax(1), logits.shape[1]
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    exponentials, found = [], []
    for row, top, place in zip(logits, largest, (targets - dist.get_rank() * words).tolist(), strict=True):
        exponentials.append((row - top).exp().sum())
        found.append(row[place] - top if 0 <= place < words else row.new_zeros(()))
    total, target = g(torch.stack(exponentials + found)).chunk(2)
    return (total.log() - target).mean(0, keepdim=True)


@wrong("5.1", "no return in f's backward pass", "f's backward pass returned None", "return the gradient")
def no_return():
    def backward(grad):
        summed(grad)

    return function(passed_on, backward), function(summed, passed_on)


@wrong("5.2", "x detached", "is x detached?")
def x_detached(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x.detach(), up, up_bias, down, down_bias, f, g)


@wrong("5.2", "the bias detached", "is `down_bias` detached?")
def bias_detached(x, up, up_bias, down, down_bias, f, g):
    return by_chunks(x, up, up_bias, down, down_bias.detach(), f, g)


@wrong("5.2", "a gate detached", "neither the whole nor this rank's share", "may be detached")
def gate_detached(x, up, up_bias, down, down_bias, f, g):
    hidden = F.linear(f(x), part(up), part(up_bias))
    hidden = hidden * (0.5 * (1 + torch.erf(hidden / 2**0.5))).detach()
    return g(F.linear(hidden, part(down, 1))) + down_bias


@wrong("5.3", "scaled columns of o", "other numbers than o's columns")
def scaled_columns(qkv, o, heads, kv_heads, rank, ranks):
    mine, columns = own_parts(qkv, o, heads, kv_heads, rank, ranks)
    return mine, columns / ranks


@wrong("5.3", "heads as a dimension of their own", "flatten(0, 1)")
def heads_as_a_dimension(qkv, o, heads, kv_heads, rank, ranks):
    mine, columns = own_parts(qkv, o, heads, kv_heads, rank, ranks)
    return mine.unflatten(0, (-1, o.shape[1] // heads)), columns


@wrong("5.3", "four tensors", "not 4 of them")
def four_tensors(qkv, o, heads, kv_heads, rank, ranks):
    return *qkv.chunk(3), o


@wrong("5.4", "the target's logit detached", "may be detached but the maximum")
def target_detached(logits, targets, g):
    exponentials, found = two_parts(logits, targets)
    total, target = g(torch.stack([exponentials, found.detach()]))
    return (total.log() - target).mean()


@wrong("5.4", "subtracts in place", "logits -= largest is not")
def in_place_maximum(logits, targets, g):
    largest = logits.detach().amax(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    logits -= largest.unsqueeze(1)
    exponentials, target = g(torch.stack(two_parts(logits, targets)))
    return (exponentials.log() - target).mean()
