"""Small changes to the solutions of lesson 04 that `tests.course.mutate` has drawn, and that were once told something
that did not name their fault.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from picolib import comm

from . import wrong


def sharded_training(model, batches, lr, factor=None, loss=torch.Tensor.mean):
    n, rank = dist.get_world_size(), dist.get_rank()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat, model.parameters())
    shard = nn.Parameter(flat.chunk(n)[rank].clone())
    optimizer = torch.optim.AdamW([shard], lr=lr, betas=(0.9, 0.95))
    for batch in batches:
        loss(model(batch)).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_tensor(shard.grad, gradient)
        shard.grad *= factor or 1 / n
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.1", "padded by less than nothing", "a negative number in F.pad cuts off")
def cut_off(parameters, state, update):
    joined = torch.cat([p.detach().flatten() for p in parameters])
    flat = F.pad(joined, (0, -len(joined)))
    flat.split([p.numel() for p in parameters])


@wrong("4.6", "the last batch first", "the last batch was taken first")
def last_batch_first(model, batches, lr):
    sharded_training(model, batches[::-1], lr)


@wrong("4.6", "the sum over the tokens", "exactly 6x too big: the sum over the 6 tokens of a batch")
def sum_over_tokens(model, batches, lr):
    sharded_training(model, batches, lr, loss=torch.Tensor.sum)


@wrong("4.6", "divided by the rank", "parameters are nan or infinite", "such as by `rank`")
def gradient_divided_by_the_rank(model, batches, lr):
    sharded_training(model, batches, lr, factor=1 / torch.tensor(float(dist.get_rank())))


@wrong("4.6", "multiplied by N", "the gradient that the optimizer gets is 16 times their mean", "AdamW hides it")
def multiplied_by_n(model, batches, lr):
    sharded_training(model, batches, lr, factor=dist.get_world_size())


@wrong("4.6", "part and whole exchanged", "The tensor for everybody's parts comes first")
def part_and_whole(model, batches, lr):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    shard = flat.chunk(dist.get_world_size())[dist.get_rank()].clone()
    dist.all_gather_into_tensor(shard, flat)


@wrong("4.2", "the minimum", "leaves the smallest of the ranks' numbers", "op=SUM")
def smallest_square(shards, replicated, max_norm, group):
    square = torch.zeros((), dtype=torch.float64)
    for g in shards:
        square += g.square().sum()
    dist.all_reduce(square, op=dist.ReduceOp.MIN, group=group)
    for g in replicated:
        square += g.square().sum()
    norm = square.sqrt().item()
    if norm > max_norm:
        for g in [*shards, *replicated]:
            g.mul_(max_norm / norm)
    return norm


@wrong("4.3", "layer(x, weight)", "has 4 numbers", "It is x: call layer(weight, x), in this order")
def layer_of_x_and_weight(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        dist.all_gather_into_tensor(whole, shard)
        x = layer(x, whole)
    return x


@wrong("4.3", "no layer called", "rank 0 called no layer; 0, 1, 2, 3 is right")
def no_layer(shards, layers, x):
    for shard in shards:
        dist.all_gather_into_tensor(shard.new_empty(dist.get_world_size() * len(shard)), shard)
    return x


def linear(shard, x, gather=dist.all_gather_into_tensor, factor=None):
    n = dist.get_world_size()

    def gathered(shard):
        whole = shard.new_empty(n * len(shard))
        gather(whole, shard.detach())
        return whole.view(-1, x.shape[1])

    class ShardedLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, x):
            ctx.save_for_backward(shard, x)
            return x @ gathered(shard).T

        @staticmethod
        def backward(ctx, grad):
            shard, x = ctx.saved_tensors
            grad_x, part = grad @ gathered(shard), torch.empty_like(shard)
            dist.reduce_scatter_tensor(part, (grad.T @ x).flatten())
            return part * (factor or 1 / n), grad_x

    return ShardedLinear.apply(shard, x)


@wrong("4.4", "nothing gathered", "the output is not x @ weight.T", "Nothing was gathered")
def nothing_gathered(shard, x):
    return linear(shard, x, gather=lambda whole, part: whole.zero_())


@wrong("4.4", "multiplied by N", "exactly 16x too big", "multiplied by N where it should be divided?")
def shard_gradient_multiplied(shard, x):
    return linear(shard, x, factor=dist.get_world_size())


@wrong("4.5", "the last layer first", "Nothing is on its way for this layer", "go through `order` as it is")
def last_layer_first(shards, order, compute):
    def start(i):
        whole = shards[i].new_empty(dist.get_world_size() * len(shards[i]))
        return whole, comm.all_gather_into_tensor(whole, shards[i], async_op=True)

    coming = start(order[0])
    for k, i in reversed(list(enumerate(order))):
        whole, handle = coming
        handle.wait()
        coming = start(order[k + 1]) if k + 1 < len(order) else None
        compute(i, whole)


@wrong("4.7", "the answers in another order", "the answers have changed places. Their order is: the bytes on a rank")
def other_order(parameters, largest, ranks, each, card):
    whole = (2 * each[0] + each[1]) * largest
    state = sum(each) * parameters
    needed = state / ranks + whole
    return 15, needed <= card, needed


@wrong(
    "4.1",
    "divided by the rank",
    "the gradient that update gets is inf",
    "such as by `rank` on rank 0",
)
def divided_by_the_rank(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    gradients = F.pad(gradients, (0, -len(gradients) % n))
    mean = torch.empty_like(gradients.chunk(n)[rank])
    dist.reduce_scatter_tensor(mean, gradients)
    update(torch.zeros_like(mean), mean / rank, state)


@wrong("4.1", "multiplied by N", "exactly 16x too big: the sum is multiplied by 4, where it should be divided")
def gradient_multiplied(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    gradients = F.pad(gradients, (0, -len(gradients) % n))
    mean = torch.empty_like(gradients.chunk(n)[rank])
    dist.reduce_scatter_tensor(mean, gradients)
    update(torch.zeros_like(mean), mean * n, state)


@wrong("4.2", "no shards", "the shards are missing: every rank adds the squares of its own")
def no_shards(shards, replicated, max_norm, group):
    square = torch.zeros((), dtype=torch.float64)
    dist.all_reduce(square, group=group)
    return (square + sum(g.square().sum() for g in replicated)).sqrt().item()


@wrong(
    "4.3", "part and whole exchanged", "room for everybody's part in the first tensor", "The second is this rank's own"
)
def gathered_into_the_part(shards, layers, x):
    for shard in shards:
        dist.all_gather_into_tensor(shard, shard.new_empty(dist.get_world_size() * len(shard)))


@wrong("4.4", "a flat weight", "The flat weight is cut into rows as long as a row of x")
def flat_weight(shard, x):
    whole = shard.new_empty(dist.get_world_size() * len(shard))
    dist.all_gather_into_tensor(whole, shard.detach())
    return x @ whole.T


@wrong(
    "4.1", "part and whole exchanged", "The part comes first, then the whole: dist.reduce_scatter_tensor(part, whole)"
)
def scattered_into_the_whole(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.cat([p.grad.flatten() for p in parameters])
    whole = F.pad(whole, (0, -len(whole) % n))
    dist.reduce_scatter_tensor(whole, torch.empty_like(whole.chunk(n)[rank]))


@wrong("4.3", "nothing gathered", "Nobody's part stands there: nothing was gathered")
def not_gathered(shards, layers, x):
    for shard, layer in zip(shards, layers, strict=True):
        x = layer(shard.new_zeros(dist.get_world_size() * len(shard)), x)
    return x
