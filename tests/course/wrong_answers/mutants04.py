"""Small changes to the solutions of lesson 04 that `tests.course.mutate` has drawn, and that were once told something
that did not name their fault.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from . import wrong


def sharded_training(model, batches, lr, factor=None):
    n, rank = dist.get_world_size(), dist.get_rank()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat, model.parameters())
    shard = nn.Parameter(flat.chunk(n)[rank].clone())
    optimizer = torch.optim.AdamW([shard], lr=lr, betas=(0.9, 0.95))
    for batch in batches:
        model(batch).mean().backward()
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
