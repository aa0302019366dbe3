"""Small changes to the solutions of lesson 03 that `tests.course.mutate` has drawn, and that were once told something
that did not name their fault.
"""

import torch
import torch.distributed as dist

from . import wrong


@wrong("3.1", "multiplied by N", "every gradient is exactly 4x too big. Was it multiplied by N")
def multiplied_by_n(module, group):
    def average(parameter):
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad *= dist.get_world_size(group)

    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, group_src=0, group=group)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)


@wrong("3.2", "divided by N", "every gradient is exactly 4x too small", "where it has to be multiplied by it")
def divided_by_n(token_losses):
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count)
    return token_losses.sum() / dist.get_world_size() / count


@wrong("3.2", "multiplied by the count", "multiplied by the number of tokens, where it has to be divided by it")
def multiplied_by_the_count(token_losses):
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count)
    return token_losses.sum() * dist.get_world_size() * count


def one_bucket(parameters, op=dist.ReduceOp.SUM):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat, op)
    flat /= dist.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(part.view_as(p))


@wrong("3.3", "empty buckets", "A bucket has no parameter in it")
def empty_buckets(parameters, cap_bytes):
    one_bucket([])


@wrong("3.3", "the minimum", "op=dist.ReduceOp.MIN)` leaves the smallest of the ranks' numbers", "op=SUM")
def smallest_gradients(parameters, cap_bytes):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat, op=dist.ReduceOp.MIN)
    flat /= dist.get_world_size()
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(part.view_as(p))


@wrong("3.3", "part and parameter exchanged", "have a part of the flat tensor and its parameter changed places")
def part_and_parameter(parameters, cap_bytes):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True):
        p.grad.copy_(part.view_as(p))


def an_epoch(model, batches, lr, order=1, idle=0.0, op=dist.ReduceOp.SUM):
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for i in range(int(steps))[::order]:
        losses = model(batches[i]) if i < len(batches) else None
        count = torch.tensor(idle if losses is None else float(len(losses)))
        dist.all_reduce(count)
        if losses is not None:
            (losses.sum() / count).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if losses is None else p.grad
            dist.all_reduce(p.grad, op)
            p.data -= lr * p.grad
            p.grad = None


@wrong("3.7", "the last step first", "took the last batch first: step i takes everybody's batch i")
def last_step_first(model, batches, lr):
    an_epoch(model, batches, lr, order=-1)


@wrong("3.7", "no batch counts as a token", "a rank without a batch counts as one token: its count is 0")
def counts_no_batch(model, batches, lr):
    an_epoch(model, batches, lr, idle=1.0)


@wrong("3.7", "the largest gradients", "all ranks agree on the largest of their gradients", "op=SUM")
def largest_of_the_gradients(model, batches, lr):
    an_epoch(model, batches, lr, op=dist.ReduceOp.MAX)


@wrong("3.6", "average never called", "Does yours call average(model, loss), which calls loss.backward()")
def average_never_called(average):
    model = torch.nn.Linear(3, 2)
    for p in model.parameters():
        assert torch.allclose(p.grad, torch.full_like(p, 1.0))


@wrong("3.4", "part and parameter exchanged", "have a part of the flat tensor and its parameter changed places")
def parts_and_parameters(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [len(bucket) for bucket in buckets], []

    def gradient_is_there(number):
        missing[number] -= 1
        if missing[number] == 0:
            flat = torch.cat([p.grad.flatten() for p in buckets[number]])
            under_way.append((dist.all_reduce(flat, async_op=True), flat, buckets[number]))

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(lambda p, number=number: gradient_is_there(number))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            for p, part in zip(flat.split([p.numel() for p in bucket]), bucket, strict=True):
                p.grad.copy_(part.view_as(p))

    return finish


@wrong("3.3", "a byte too few from the second bucket on", "10, 68, 30, 6", "where 10, 8, 60, 30, 6 are right")
def a_byte_too_few(parameters, cap_bytes):
    buckets, waiting, held = [], [], 0
    for p in reversed(parameters):
        waiting.append(p)
        held += p.grad.numel() * p.grad.element_size()
        if held >= cap_bytes:
            buckets.append(waiting)
            waiting, held = [], -1
    for bucket in [*buckets, waiting] if waiting else buckets:
        one_bucket(bucket)
