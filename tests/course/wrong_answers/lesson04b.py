"""Answers to the exercises of sitting 04B."""

import math

import torch
import torch.distributed as dist

from . import right, wrong
from .ways_round import by_files, by_store


def gathered(shard):
    whole = shard.new_empty(dist.get_world_size() * len(shard))
    dist.all_gather_into_tensor(whole, shard.detach())
    return whole


# 4.3 gather one layer


@right("4.3", "a function's end frees the weight")
def inside_a_function(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(gathered(shard), x)
    return x


@right("4.3", "picolib's collective, the storage emptied by hand")
def emptied_by_hand(shards, layers, x):
    from picolib import comm

    for number, layer in enumerate(layers):
        whole = torch.empty(dist.get_world_size() * len(shards[number]), dtype=shards[number].dtype)
        comm.all_gather(list(whole.chunk(dist.get_world_size())), shards[number])
        x = layer(whole, x)
        whole.untyped_storage().resize_(0)
    return x


@wrong("4.3", "gathers all first", "4 layers whole at once, 1 is right", "gathered before the first one computes")
def all_first(shards, layers, x):
    wholes = [gathered(shard) for shard in shards]
    for whole, layer in zip(wholes, layers, strict=True):
        x = layer(whole, x)
    return x


@wrong("4.3", "gathers all first, then drops one after the other", "4 layers whole at once", "when its turn comes")
def all_first_then_dropped(shards, layers, x):
    wholes = [gathered(shard) for shard in shards]
    for layer in layers:
        x = layer(wholes.pop(0), x)
    return x


@wrong("4.3", "gathers all first, and hides them in lists", "gathers layer 1 before layer 0 has computed")
def hidden_in_lists(shards, layers, x):
    wholes = [gathered(shard).tolist() for shard in shards]
    for whole, shard, layer in zip(wholes, shards, layers, strict=True):
        x = layer(torch.tensor(whole, dtype=shard.dtype), x)
    return x


@wrong("4.3", "never frees", "4 layers whole at once, 1 is right", "is never freed")
def never_frees(shards, layers, x):
    kept = []
    for shard, layer in zip(shards, layers, strict=True):
        kept.append(gathered(shard))
        x = layer(kept[-1], x)
    return x


@wrong("4.3", "no del", "2 layers whole at once, 1 is right", "the weight of the one before is still there", "del it")
def without_del(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        whole = gathered(shard)
        x = layer(whole, x)
    return x


@wrong("4.3", "a list of parts, then cat", "2 layers whole at once", "its weight is there twice")
def list_and_cat(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, shard)
        x = layer(torch.cat(parts), x)
        del parts
    return x


@wrong("4.3", "gathers twice", "8 all-gathers for 4 layers: 2 times each layer", "Once is enough")
def gathers_twice(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        gathered(shard)
        x = layer(gathered(shard), x)
    return x


@wrong("4.3", "one gather of everything", "made 1 all-gather for 4 layers", "each layer has its own")
def one_gather(shards, layers, x):
    n, sizes = dist.get_world_size(), [len(shard) for shard in shards]
    everything = gathered(torch.cat(shards)).view(n, -1).split(sizes, dim=1)
    for whole, layer in zip(everything, layers, strict=True):
        x = layer(whole.flatten(), x)
    return x


@wrong("4.3", "computes with its own part", "has 24 numbers, and the whole one has 96", "this rank's part alone")
def own_part(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(shard, x)
    return x


@wrong("4.3", "its own part everywhere, without sending", "is wrong in part 1", "There stands the part of rank 0")
def own_part_repeated(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(shard.repeat(dist.get_world_size()), x)
    return x


@wrong("4.3", "parts in the wrong order", "is wrong in part 0", "Parts stand in the order of the ranks")
def parts_reversed(shards, layers, x):
    n = dist.get_world_size()
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(gathered(shard).view(n, -1).flip(0).flatten(), x)
    return x


@wrong("4.3", "layers from the end", "computed layers 3, 2, 1, 0; 0, 1, 2, 3 is right")
def from_the_end(shards, layers, x):
    for shard, layer in zip(reversed(shards), reversed(layers), strict=True):
        x = layer(gathered(shard), x)
    return x


@wrong("4.3", "each layer gets x", "layer 1 was given something else than what layer 0 returned")
def not_chained(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        y = layer(gathered(shard), x)
    return y


@wrong("4.3", "returns nothing", "what you return is not the output of the last one")
def returns_nothing(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(gathered(shard), x)


@wrong("4.3", "never waits", "never waited for it")
def never_waits(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        dist.all_gather_into_tensor(whole, shard, async_op=True)
        x = layer(whole, x)
        del whole
    return x


@wrong("4.3", "room for one part", "There must be room for everybody's part")
def room_for_one(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        whole = torch.empty_like(shard)
        dist.all_gather_into_tensor(whole, shard)
        x = layer(whole, x)
    return x


@wrong("4.3", "arguments of a layer swapped", "has 4 numbers, and the whole one has 96")
def swapped_arguments(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(x, gathered(shard))
    return x


@wrong("4.3", "all_reduce of zero-padded parts", "called all_reduce; here dist.all_gather_into_tensor is enough")
def by_all_reduce(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        whole = shard.new_zeros(dist.get_world_size(), len(shard))
        whole[dist.get_rank()] = shard
        dist.all_reduce(whole)
        x = layer(whole.flatten(), x)
        del whole
    return x


@wrong("4.3", "through the store", "used the store")
def through_the_store(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        gathered(shard)
        x = layer(torch.cat(by_store(shard)), x)
    return x


@wrong("4.3", "through files, with dummies on the wire", "other numbers than its part of layer 0")
def through_files(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        gathered(torch.zeros_like(shard))
        x = layer(torch.cat(by_files(shard)), x)
    return x


@wrong("4.3", "picolib's own naive version", "picolib's own parallel.fsdp")
def picolibs_naive(shards, layers, x):
    from picolib.parallel.fsdp import NaiveFullyShard

    module = torch.nn.ParameterList([torch.nn.Parameter(gathered(shard)) for shard in shards])
    sharded = NaiveFullyShard(module)
    result = []

    def loss_of():
        y = x
        for weight, layer in zip(sharded.parameters, layers, strict=True):
            y = layer(weight, y)
        result.append(y)
        return sum((weight * 0).sum() for weight in sharded.parameters)

    sharded.backward(loss_of)
    return result[0]


@wrong("4.3", "right for the first three layers", "computed layers 0, 1, 2; 0, 1, 2, 3 is right")
def three_layers(shards, layers, x):
    return inside_a_function(shards[:3], layers[:3], x)


@wrong("4.3", "right for the first four layers", "computed layers 0, 1, 2, 3; 0, 1, 2, 3, 4")
def first_four_only(shards, layers, x):
    return inside_a_function(shards[:4], layers[:4], x)


def kept_in_another_form(shards, layers, x, form):
    kept = []
    for shard, layer in zip(shards, layers, strict=True):
        whole = gathered(shard)
        x = layer(whole, x)
        kept.append(form(whole))
        del whole
    return x


@wrong("4.3", "keeps every weight as an array", "layers whole at once, 1 is right", "kept as numbers, bytes or arrays")
def kept_as_arrays(shards, layers, x):
    return kept_in_another_form(shards, layers, x, lambda whole: whole.numpy().copy())


@wrong("4.3", "keeps every weight as a list", "layers whole at once, 1 is right", "kept as numbers, bytes or arrays")
def kept_as_lists(shards, layers, x):
    return kept_in_another_form(shards, layers, x, lambda whole: whole.tolist())


@wrong("4.3", "the handle holds the weight", "2 layers whole at once", "or the handle of an asynchronous gather does")
def held_by_the_handle(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        handle = dist.all_gather_into_tensor(whole, shard, async_op=True)
        handle.wait()
        x = layer(whole, x)
        del whole
    return x


# 4.4 the backward pass of a sharded layer


def linear(gather_again=True, collective="reduce_scatter", mean=True, weight_gradient=None, own_part=None):
    """A sharded linear layer that makes mistakes."""

    class ShardedLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            weight = gathered(shard).view(-1, x.shape[1])
            ctx.save_for_backward(shard if gather_again else weight, x)
            return x @ weight.T

        @staticmethod
        def backward(ctx, grad):
            kept, x = ctx.saved_tensors
            n, rank = dist.get_world_size(), dist.get_rank()
            weight = gathered(kept).view(-1, x.shape[1]) if gather_again else kept
            gradient = (weight_gradient or (lambda grad, x: grad.T @ x))(grad, x).flatten()
            if collective == "reduce_scatter":
                own = gradient.new_empty(len(gradient) // n)
                dist.reduce_scatter_tensor(own, gradient)
            elif collective == "all_reduce":
                dist.all_reduce(gradient)
                own = gradient.chunk(n)[rank]
            else:
                own = gradient.chunk(n)[rank] * n
            if own_part:
                own = own_part(own)
            return own / n if mean else own, grad @ weight

    return ShardedLinear.apply


@right("4.4", "a class outside, and a list for the reduce-scatter")
def sharded_linear(shard, x):
    n = dist.get_world_size()

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return torch.nn.functional.linear(x, gathered(shard).view(-1, x.shape[-1]))

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            own = torch.zeros_like(shard)
            dist.reduce_scatter(own, list((grad.T @ x / n).flatten().chunk(n)))
            return own, grad @ gathered(shard).view(-1, x.shape[-1])

    return Linear.apply(shard, x)


@right("4.4", "picolib's collectives, the shard in an attribute")
def with_picolibs_collectives(shard, x):
    from picolib import comm

    def whole_of(shard, width):
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        comm.all_gather_into_tensor(whole, shard.detach())
        return whole.view(-1, width)

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.shard = shard
            ctx.save_for_backward(x)
            return x @ whole_of(shard, x.shape[1]).T

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            weight = whole_of(ctx.shard, x.shape[1])
            own = torch.empty_like(ctx.shard)
            comm.reduce_scatter_tensor(own, (grad.T @ x).view(-1), dist.ReduceOp.AVG)
            return own, grad @ weight

    return Linear.apply(shard, x)


@wrong("4.4", "all-reduce, then slice", "1.33x the bytes", "4(N-1)/N·Ψ where 3(N-1)/N·Ψ are right", "keeps 1/N")
def all_reduce_and_slice(shard, x):
    return linear(collective="all_reduce")(shard, x)


@wrong("4.4", "keeps the gathered weight", "still holds 3 whole weights of 3", "gather again in backward")
def keeps_the_weight(shard, x):
    return linear(gather_again=False)(shard, x)


@wrong("4.4", "sums", "exactly 4x too big", "averaged?")
def sums(shard, x):
    return linear(mean=False)(shard, x)


@wrong("4.4", "divides twice", "exactly 4x too small", "divided once too often?")
def divides_twice(shard, x):
    return linear(own_part=lambda own: own / dist.get_world_size())(shard, x)


@wrong("4.4", "keeps its own batch's gradient", "of this rank's batch alone")
def own_batch(shard, x):
    return linear(collective="none")(shard, x)


@wrong("4.4", "the gradient transposed", "part 0 of grad.T @ x")
def transposed(shard, x):
    return linear(weight_gradient=lambda grad, x: x.T @ grad)(shard, x)


@wrong("4.4", "another rank's part", "that is the part of rank 1")
def others_part(shard, x):
    n = dist.get_world_size()
    turned = lambda grad, x: (grad.T @ x).view(n, -1).roll(-1, 0)  # noqa: E731
    return linear(weight_gradient=turned)(shard, x)


@wrong("4.4", "autograd through a gathered tensor", "the shard has no gradient")
def plain_matmul(shard, x):
    return x @ gathered(shard).view(-1, x.shape[1]).T


@wrong("4.4", "the input's gradient is averaged as well", "the gradient of x is wrong", "every rank keeps its own")
def averages_the_input_too(shard, x):
    y = linear()(shard, x)

    def mean(grad):
        own = torch.empty(grad.numel() // dist.get_world_size() + 1, dtype=grad.dtype)
        flat = torch.nn.functional.pad(grad.flatten(), (0, own.numel() * dist.get_world_size() - grad.numel()))
        dist.reduce_scatter_tensor(own, flat)
        return grad * 0 + own.sum()

    x.register_hook(mean)
    return y


@wrong("4.4", "gathers once more than needed", "1.33x the bytes", "two all-gathers and one reduce-scatter")
def gathers_once_more(shard, x):
    gathered(shard)
    return linear()(shard, x)


@wrong("4.4", "torch's own FSDP", "torch's FSDP does what this exercise asks for")
def torchs_fsdp(shard, x):
    from torch.distributed.fsdp import fully_shard

    layer = torch.nn.Linear(x.shape[1], x.shape[1], bias=False, dtype=x.dtype)
    layer.weight.data = gathered(shard).view(-1, x.shape[1])
    return fully_shard(layer)(x)


@wrong("4.4", "picolib's own fully_shard", "picolib's own parallel.fsdp")
def picolibs_fsdp(shard, x):
    from picolib import fully_shard

    layer = torch.nn.Linear(x.shape[1], x.shape[1], bias=False, dtype=x.dtype)
    layer.weight.data = gathered(shard).view(-1, x.shape[1])
    return fully_shard(layer)(x) + 0 * shard.sum()


@wrong("4.4", "right in the first step only", "The first step is right; in a later one, ", "of this rank's batch alone")
def first_step_only(shard, x):
    calls = globals().setdefault("calls", [])
    calls.append(1)
    return linear(collective="reduce_scatter" if len(calls) <= 6 else "none")(shard, x)


@wrong("4.4", "gradients in the wrong order", "one gradient for each argument of forward, in that order")
def wrong_order(shard, x):
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return x @ gathered(shard).view(-1, x.shape[1]).T

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            own = torch.empty_like(shard)
            dist.reduce_scatter_tensor(own, (grad.T @ x).flatten())
            return grad @ gathered(shard).view(-1, x.shape[1]), own

    return Linear.apply(shard, x)


@wrong("4.4", "a gradient that is not flat", "cuts its input along the first dimension")
def not_flat(shard, x):
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return x @ gathered(shard).view(-1, x.shape[1]).T

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            own = torch.empty_like(shard)
            dist.reduce_scatter_tensor(own, grad.T @ x)
            return own, grad @ gathered(shard).view(-1, x.shape[1])

    return Linear.apply(shard, x)


@wrong("4.4", "does not send", "the output is not x @ weight.T")
def does_not_send(shard, x):
    weight = shard.repeat(dist.get_world_size()).view(-1, x.shape[1])
    return x @ weight.T


@wrong("4.4", "the mean over the rows of x", "exactly 5x too small, and x has 5 rows", "The mean is over the ranks")
def mean_over_rows(shard, x):
    return linear(weight_gradient=lambda grad, x: grad.T @ x / len(x))(shard, x)


@wrong("4.4", "the first row of x alone", "the first row of x alone, and x has 5")
def first_row(shard, x):
    return linear(weight_gradient=lambda grad, x: torch.outer(grad[0], x[0]))(shard, x)


@wrong("4.4", "the weight as [in, out]", "cannot be multiplied", "whole.view(-1, x.shape[1])")
def other_way_round(shard, x):
    return x @ gathered(shard).view(x.shape[1], -1).T


@wrong("4.4", "sizes known by heart", "shape '[12, 12]' is invalid", "whole.view(-1, x.shape[1])")
def sizes_by_heart(shard, x):
    return x @ gathered(shard).view(12, 12).T


def kept_as(pack, unpack, given=lambda shard: shard):
    """A sharded linear layer that keeps the weight in some form; what it gathers again is not used."""

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            weight = gathered(shard).view(-1, x.shape[1])
            ctx.weight = pack(weight)
            ctx.save_for_backward(shard, x)
            return x @ weight.T

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            gathered(given(shard))
            own = torch.empty_like(shard)
            dist.reduce_scatter_tensor(own, (grad.T @ x).flatten())
            return own / dist.get_world_size(), grad @ unpack(ctx.weight).view(-1, x.shape[1])

    return Linear.apply


@wrong(
    "4.4",
    "keeps the weight as numpy's array",
    "still holds 3 whole weights of 3",
    "Bytes, numbers and arrays need memory",
)
def kept_as_numpy(shard, x):
    return kept_as(lambda w: w.numpy().copy(), torch.from_numpy)(shard, x)


@wrong("4.4", "keeps the weight as bytes", "still holds 3 whole weights of 3", "Bytes, numbers and arrays need memory")
def kept_as_bytes(shard, x):
    return kept_as(lambda w: w.numpy().tobytes(), lambda b: torch.frombuffer(bytearray(b), dtype=x.dtype))(shard, x)


@wrong("4.4", "keeps the weight as a list", "still holds", "Bytes, numbers and arrays need memory as tensors do")
def kept_as_list(shard, x):
    return kept_as(lambda w: w.tolist(), lambda numbers: torch.tensor(numbers, dtype=x.dtype))(shard, x)


def filed(weight):
    import tempfile

    with tempfile.NamedTemporaryFile(delete=False) as file:
        torch.save(weight, file)
    return file.name


def read_and_removed(name):
    import os

    weight = torch.load(name)
    os.remove(name)
    return weight


@wrong(
    "4.4", "keeps the weight in a file, and gathers zeros", "gave an all-gather other numbers than its part of layer 2"
)
def kept_in_a_file(shard, x):
    return kept_as(filed, read_and_removed, lambda shard: shard * 0)(shard, x)


@wrong("4.4", "keeps whole weights after the step", "when the step is over rank 0 still holds")
def kept_after_the_step(shard, x):
    def unpack(shard):
        globals().setdefault("for_ever", []).append(gathered(shard))
        return for_ever[-1]  # noqa: F821

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return x @ gathered(shard).view(-1, x.shape[1]).T

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            own = torch.empty_like(shard)
            dist.reduce_scatter_tensor(own, (grad.T @ x).flatten())
            return own / dist.get_world_size(), grad @ unpack(shard).view(-1, x.shape[1])

    return Linear.apply(shard, x)


@wrong("4.4", "the mean of x's gradients, by an all-reduce", "the gradient of x is wrong", "every rank keeps its own")
def reduces_the_gradient_of_x(shard, x):
    def mean(grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()

    y = linear()(shard, x)
    x.register_hook(mean)
    return y


@wrong("4.4", "all-reduce, and a view of the whole", "1.33x the bytes", "keeps 1/N")
def all_reduce_and_view(shard, x):
    return linear(
        collective="all_reduce", mean=False, weight_gradient=lambda grad, x: grad.T @ x / dist.get_world_size()
    )(shard, x)


@wrong("4.4", "writes .grad itself", "from another micro-batch, is gone", "autograd adds it up")
def writes_grad_itself(shard, x):
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return x @ gathered(shard).view(-1, x.shape[1]).T

        @staticmethod
        def backward(ctx, grad):
            kept, x = ctx.saved_tensors
            own = torch.empty_like(kept)
            dist.reduce_scatter_tensor(own, (grad.T @ x).flatten())
            shard.grad = own / dist.get_world_size()
            return None, grad @ gathered(kept).view(-1, x.shape[1])

    return Linear.apply(shard, x)


@right("4.4", "the layer runs again in backward, and autograd differentiates it")
def runs_again(shard, x):
    n = dist.get_world_size()

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return torch.nn.functional.linear(x, gathered(shard).view(-1, x.size(1)))

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            weight, x = gathered(shard).view(-1, x.size(1)).requires_grad_(), x.detach().requires_grad_()
            with torch.enable_grad():
                y = torch.nn.functional.linear(x, weight)
            grad_weight, grad_x = torch.autograd.grad(y, (weight, x), grad)
            own = torch.empty_like(shard)
            dist.reduce_scatter_tensor(own, grad_weight.reshape(-1).div(n))
            return own, grad_x

    return Linear.apply(shard, x)


# 4.5 fetch the next layer in time


def start(shard):
    whole = shard.new_empty(dist.get_world_size() * len(shard))
    return dist.all_gather_into_tensor(whole, shard, async_op=True), whole


@right("4.5", "start the next, then wait for this one")
def next_then_wait(shards, order, compute):
    following = dict(zip(order, order[1:], strict=False))
    under_way = {order[0]: start(shards[order[0]])}
    for i in order:
        if i in following:
            under_way[following[i]] = start(shards[following[i]])
        handle, whole = under_way.pop(i)
        handle.wait()
        compute(i, whole)
        del handle, whole


@right("4.5", "with picolib's asynchronous collective")
def with_picolibs(shards, order, compute):
    from picolib import comm

    def begin(i):
        whole = shards[i].new_empty(dist.get_world_size() * len(shards[i]))
        return whole, comm.all_gather_into_tensor(whole, shards[i], async_op=True)

    coming = begin(order[0])
    for place, i in enumerate(order):
        whole, handle = coming
        handle.wait()
        coming = begin(order[place + 1]) if place + 1 < len(order) else None
        compute(i, whole)
        del whole, handle


@wrong("4.5", "waits at once", "0% hidden", "waits for a layer's all-gather before the layer in front has computed")
def waits_at_once(shards, order, compute):
    def whole_of(i):
        handle, whole = start(shards[i])
        handle.wait()
        return whole

    coming = whole_of(order[0])
    for i, following in zip(order, [*order[1:], None], strict=True):
        now, coming = coming, None if following is None else whole_of(following)
        compute(i, now)
        del now


@wrong("4.5", "no prefetch", "0% hidden", "starts each all-gather when its layer is to compute")
def no_prefetch(shards, order, compute):
    for i in order:
        handle, whole = start(shards[i])
        handle.wait()
        compute(i, whole)
        del handle, whole


@wrong("4.5", "all at the beginning", "4 layers are gathered or under way; 2 are right")
def all_at_the_beginning(shards, order, compute):
    under_way = {i: start(shards[i]) for i in order}
    for i in order:
        handle, whole = under_way.pop(i)
        handle.wait()
        compute(i, whole)
        del handle, whole


@wrong("4.5", "two ahead", "3 layers are gathered or under way; 2 are right")
def two_ahead(shards, order, compute):
    coming = [start(shards[i]) for i in order[:2]]
    for place, i in enumerate(order):
        coming += [start(shards[j]) for j in order[place + 2 : place + 3]]
        handle, whole = coming.pop(0)
        handle.wait()
        compute(i, whole)
        del handle, whole


@wrong("4.5", "always the next number", "some were fetched and not used", "look the next one up in `order`")
def next_number(shards, order, compute):
    under_way = {}
    for i in order:
        handle, whole = under_way.pop(i, None) or start(shards[i])
        for old, _ in under_way.values():
            old.wait()
        under_way = {i + 1: start(shards[i + 1])} if i + 1 < len(shards) else {}
        handle.wait()
        compute(i, whole)
        del handle, whole
    for old, _ in under_way.values():
        old.wait()


@wrong("4.5", "in the order of the shards", "computed layers", "is right, each once")
def ignores_the_order(shards, order, compute):
    next_then_wait(shards, list(range(len(shards))), compute)


@wrong("4.5", "started after computing", "0% hidden")
def started_after(shards, order, compute):
    coming = start(shards[order[0]])
    for i, following in zip(order, [*order[1:], None], strict=True):
        handle, whole = coming
        handle.wait()
        compute(i, whole)
        del handle, whole
        coming = None if following is None else start(shards[following])


@wrong("4.5", "never frees", "4 layers whole at once; 2 are right", "Free a weight when its layer has computed")
def prefetches_and_keeps(shards, order, compute):
    kept, coming = [], start(shards[order[0]])
    for i, following in zip(order, [*order[1:], None], strict=True):
        handle, whole = coming
        handle.wait()
        coming = None if following is None else start(shards[following])
        compute(i, whole)
        kept.append(whole)


@wrong("4.5", "computes before it waits", "computed", "before")
def computes_before_waiting(shards, order, compute):
    coming = start(shards[order[0]])
    for i, following in zip(order, [*order[1:], None], strict=True):
        handle, whole = coming
        coming = None if following is None else start(shards[following])
        compute(i, whole)
        handle.wait()
        del whole, handle


@wrong("4.5", "never waits", "never waited for it")
def prefetches_without_waiting(shards, order, compute):
    coming = start(shards[order[0]])
    for i, following in zip(order, [*order[1:], None], strict=True):
        _, whole = coming
        coming = None if following is None else start(shards[following])
        compute(i, whole)


@wrong("4.5", "ahead for three layers only", "hidden", "starts some of the all-gathers ahead, and some too late")
def three_ahead_only(shards, order, compute):
    coming = start(shards[order[0]])
    for place, i in enumerate(order):
        handle, whole = coming or start(shards[i])
        handle.wait()
        coming = start(shards[order[place + 1]]) if place < 2 else None
        compute(i, whole)
        del handle, whole


@wrong("4.5", "the next number's gather, used or not", "never waited for it", "is not the one with the next number")
def used_or_not(shards, order, compute):
    under_way = {}
    for i in order:
        handle, whole = under_way.pop(i) if i in under_way else start(shards[i])
        handle.wait()
        if i + 1 < len(shards):
            under_way[i + 1] = start(shards[i + 1])
        compute(i, whole)
        del handle, whole


@wrong("4.5", "i + 1 in place of the next of the order", "is that of layer", "need not be that of numbers")
def fetches_the_next_number(shards, order, compute):
    coming = start(shards[order[0]])
    for k, i in enumerate(order):
        handle, whole = coming
        handle.wait()
        if k + 1 < len(order):
            coming = start(shards[(i + 1) % len(order)])
        compute(i, whole)
        del handle, whole


@wrong("4.5", "i + 1, beyond the last layer", "IndexError", "The layer after order[k] is order[k + 1]")
def beyond_the_last(shards, order, compute):
    coming = start(shards[order[0]])
    for k, i in enumerate(order):
        handle, whole = coming
        handle.wait()
        if k + 1 < len(order):
            coming = start(shards[i + 1])
        compute(i, whole)
        del handle, whole


@wrong("4.5", "i + 1, or nothing", "cannot unpack", "The layer after order[k] is order[k + 1]")
def next_number_or_nothing(shards, order, compute):
    coming = start(shards[order[0]])
    for i in order:
        handle, whole = coming
        handle.wait()
        coming = start(shards[i + 1]) if i + 1 < len(shards) else None
        compute(i, whole)
        del handle, whole


@wrong("4.5", "no async_op", "has no attribute 'wait'", "Without async_op=True", "it returns None")
def no_async_op(shards, order, compute):
    for i in order:
        whole = shards[i].new_empty(dist.get_world_size() * len(shards[i]))
        handle = dist.all_gather_into_tensor(whole, shards[i])
        handle.wait()
        compute(i, whole)


@wrong("4.5", "keeps every weight as an array", "layers whole at once, 2 are right", "kept as numbers, bytes or arrays")
def arrays_kept(shards, order, compute):
    kept = []
    next_then_wait(shards, order, lambda i, whole: (compute(i, whole), kept.append(whole.numpy().copy())))


@wrong("4.5", "each rank its own shard, nothing sent", "this rank's part alone")
def own_shards(shards, order, compute):
    for i in order:
        compute(i, shards[i])


@wrong("4.5", "weight first", "compute wants the number of a layer, then its weight")
def weight_first(shards, order, compute):
    next_then_wait(shards, order, lambda i, weight: compute(weight, i))


@wrong("4.5", "gathered by broadcasts", "called broadcast; here dist.all_gather_into_tensor is enough")
def by_broadcasts(shards, order, compute):
    for i in order:
        parts = [shards[i].clone() for _ in range(dist.get_world_size())]
        for rank, part in enumerate(parts):
            dist.broadcast(part, rank)
        compute(i, torch.cat(parts))


# 4.7 claim: pure FSDP handles 70B on 8 GPUs


def answer(bytes_on_a_rank, state, whole, card, smallest=None):
    if smallest is None:
        smallest = math.ceil(state / (card - whole)) if card > whole else None
    return bytes_on_a_rank, bytes_on_a_rank <= card, smallest


@right("4.7", "by the formula")
def by_formula(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    return answer(state / ranks + whole, state, whole, card)


@right("4.7", "by looking for it, as a list")
def by_search(parameters, largest, ranks, each, card):
    parameter, gradient, optimizer = each

    def on(n):
        return (parameter + gradient + optimizer) * parameters / n + 2 * parameter * largest + gradient * largest

    found = [n for n in range(1, 2000) if on(n) <= card]
    return [on(ranks), on(ranks) <= card, found[0] if found else None]


@wrong("4.7", "state alone", "you say 140,000,000,000 bytes", "two whole layers (one computes, the next arrives)")
def state_alone(parameters, largest, ranks, each, card):
    return answer(sum(each) * parameters / ranks, sum(each) * parameters, 0, card)


@wrong("4.7", "rounded to the nearest", "round up")
def rounded_to_the_nearest(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    return answer(state / ranks + whole, state, whole, card, None if card <= whole else round(state / (card - whole)))


@wrong("4.7", "one whole layer", "the next one arrives: two are whole")
def one_layer(parameters, largest, ranks, each, card):
    whole = each[0] * largest
    return answer(sum(each) * parameters / ranks + whole, sum(each) * parameters, whole, card)


@wrong("4.7", "no whole gradient", "Three tensors are whole", "a gradient until it is reduced")
def no_gradient(parameters, largest, ranks, each, card):
    whole = 2 * each[0] * largest
    return answer(sum(each) * parameters / ranks + whole, sum(each) * parameters, whole, card)


@wrong("4.7", "whole layers shared out", "Whole layers are whole on every rank")
def whole_shared(parameters, largest, ranks, each, card):
    whole = (2 * each[0] + each[1]) * largest
    return answer((sum(each) * parameters + whole) / ranks, sum(each) * parameters, whole, card)


@wrong("4.7", "parameters alone", "each has a gradient and optimizer state as well")
def parameters_alone(parameters, largest, ranks, each, card):
    return answer(each[0] * parameters / ranks, each[0] * parameters, 0, card)


@wrong("4.7", "nothing shared out", "Parameters, gradients and optimizer state are shared out")
def nothing_shared(parameters, largest, ranks, each, card):
    return answer(sum(each) * parameters, sum(each) * parameters, 0, card)


@wrong("4.7", "rounded down", "the smallest number of ranks on which it fits is 15, not 14", "round up")
def rounded_down(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    return answer(state / ranks + whole, state, whole, card, math.floor(state / (card - whole)))


@wrong("4.7", "powers of two", "is 15, not 16", "need not be a power of two")
def power_of_two(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    n = 1
    while n < 4096 and state / n + whole > card:
        n *= 2
    return answer(state / ranks + whole, state, whole, card, n)


@wrong("4.7", "smallest without the whole layers", "is 15, not 14")
def smallest_of_the_state(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    return answer(state / ranks + whole, state, whole, card, math.ceil(state / card))


@wrong("4.7", "below, not equal", "you say that they do not fit", "Exactly as much as there is does fit")
def strictly_below(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    on_a_rank = state / ranks + whole
    smallest = math.ceil(state / (card - whole)) if card > whole else None
    return on_a_rank, on_a_rank < card, smallest


@wrong("4.7", "a layer that fits nowhere", "it fits on no number of them (None)")
def always_somewhere(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    return answer(state / ranks + whole, state, whole, card, math.ceil(abs(state / (card - whole or 1))))


@wrong("4.7", "the claim's numbers, known by heart", "bytes on a rank")
def by_heart(parameters, largest, ranks, each, card):
    return 145_133_926_400.0, False, 15


@right("4.7", "numbers of torch, and a share in whole bytes")
def numbers_of_torch(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    smallest = torch.tensor(math.ceil(state / (card - whole))) if card > whole else None
    return torch.tensor(state // ranks + whole), torch.tensor(state / ranks + whole <= card), smallest


@wrong("4.7", "tries a hundred ranks", "the smallest number of ranks on which it fits is 1616, not None")
def tries_a_hundred(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    smallest = next((n for n in range(1, 129) if state / n + whole <= card), None)
    return answer(state / ranks + whole, state, whole, card, smallest) if smallest else (
        state / ranks + whole, state / ranks + whole <= card, None)  # fmt: skip


@wrong("4.7", "no room at all", "division by zero", "no number of ranks is enough: the last answer is None")
def divides_by_no_room(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    smallest = None if card < whole else math.ceil(state / (card - whole))
    return state / ranks + whole, state / ranks + whole <= card, smallest


@wrong("4.7", "the shards are part of the whole", "stays beside the whole")
def shards_inside(parameters, largest, ranks, each, card):
    whole, state = (2 * each[0] + each[1]) * largest, sum(each) * parameters
    return state / ranks + whole * (1 - 1 / ranks), False, None


@wrong("4.7", "asks picolib", "your function calls picolib.")
def asks_picolib(parameters, largest, ranks, each, card):
    from picolib import memory

    state = sum(memory.model_state_parts(parameters, ranks, 3, memory.BytesPerParameter(*each)).values())
    whole = (2 * each[0] + each[1]) * largest
    return answer(state + whole, state * ranks, whole, card)
