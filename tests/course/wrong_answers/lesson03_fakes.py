"""Answers to the exercises of lesson 03 that are right only for what a check is thought to try, or by another way."""

import torch
import torch.distributed as dist

from . import right, wrong
from .lesson03a import averages, copy_all, digits_test, hooks_only, sum_times_n, take_step
from .lesson03b import average_one_bucket, buckets_first, copy_back, count_missing, flatten
from .ways_round import by_files, by_store

# 3.1 wrap it


@wrong("3.1", "averages in the first two passes only", "The first 2 passes are right. In the next one, ", "its own")
def two_passes_only(module, group):
    copy_all(module, group)
    passes = dict.fromkeys(module.parameters(), 0)

    def hook(p):
        passes[p] += 1
        if passes[p] <= 2:
            averages(p, group)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "averages by broadcasts, an all-reduce for show", "rank 0 broadcasts during backward()", "one all-reduce")
def averages_by_broadcasts(module, group):
    copy_all(module, group)

    def hook(p):
        total = torch.zeros_like(p)
        for source in range(dist.get_world_size(group)):
            theirs = p.grad.clone()
            dist.broadcast(theirs, group_src=source, group=group)
            total += theirs
        dist.all_reduce(p.grad.clone(), group=group)
        p.grad = total / dist.get_world_size(group)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "averages through the store, an all-reduce for show", "rank 0 used the store (set)", "in collectives")
def averages_through_the_store(module, group):
    copy_all(module, group)

    def hook(p):
        everybody = torch.stack(by_store(p.grad))
        dist.all_reduce(p.grad.clone(), group=group)
        p.grad = everybody.mean(0)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong(
    "3.1", "three all-reduces of other sizes", "made 3 all-reduces of 2, 2 and 8 elements", "3 all-reduces of 2, 2 and"
)
def two_more_elements(module, group):
    copy_all(module, group)

    def hook(p):
        padding = 2 if p.numel() == 6 else 0
        flat = torch.cat([p.grad.flatten(), p.grad.new_zeros(padding)])
        dist.all_reduce(flat, group=group)
        p.grad = flat[: p.numel()].view_as(p) / dist.get_world_size(group)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "all-reduces for ever", "has made 1000 collectives in one call", "Does the loop ever end?")
def all_reduces_for_ever(module, group):
    hooks_only(module, group)
    while True:
        dist.all_reduce(torch.zeros(1), group=group)


# 3.2 one loss rule


@wrong("3.2", "a barrier beside the all-reduce", "rank 0 called barrier", "it only costs time")
def a_barrier_beside_it(token_losses):
    dist.barrier()
    return sum_times_n(token_losses)


@wrong(
    "3.2", "the count in bfloat16", "all-reduced in bfloat16", "every whole number up to 256 only", "float32 or int64"
)
def count_in_bfloat16(token_losses):
    count = torch.tensor(float(len(token_losses)), dtype=torch.bfloat16)
    dist.all_reduce(count)
    return token_losses.sum() * dist.get_world_size() / count.double()


@wrong("3.2", "the count in float16", "all-reduced in float16", "up to 2,048 only")
def count_in_float16(token_losses):
    count = torch.tensor(len(token_losses), dtype=torch.float16)
    dist.all_reduce(count)
    return token_losses.sum() * dist.get_world_size() / count.double()


@wrong("3.2", "counts through the store, an all-reduce for show", "rank 0 used the store (set)")
def counts_through_the_store(token_losses):
    counts = by_store(torch.tensor(len(token_losses)))
    dist.all_reduce(torch.tensor(float(len(token_losses))))
    return token_losses.sum() * dist.get_world_size() / sum(counts)


@wrong("3.2", "counts through files, an all-reduce for show", "do not need the all-reduces for them")
def counts_through_files(token_losses):
    counts = by_files(torch.tensor(len(token_losses)))
    dist.all_reduce(torch.tensor(float(len(token_losses))))
    return token_losses.sum() * dist.get_world_size() / sum(counts)


@wrong("3.2", "gives the all-reduce the sum", "not each one's own count of tokens")
def gives_the_sum(token_losses):
    rank, n = dist.get_rank(), dist.get_world_size()
    count = torch.tensor(float(len(token_losses)) if n == 1 else (12.0 if rank == 0 else 0.0))
    dist.all_reduce(count)
    return token_losses.sum() * n / count


@wrong("3.2", "a loop without end", "was not through in time: is there a loop without end?")
def loop_without_end(token_losses):
    while True:
        pass


# 3.3 gradients in buckets


@wrong("3.3", "picolib's buckets", "assign_buckets, a part of what you build in this exercise", "Write it yourself")
def picolibs_buckets(parameters, cap_bytes):
    from picolib.parallel.ddp import assign_buckets

    for bucket in assign_buckets(parameters, cap_bytes):
        average_one_bucket([parameters[i] for i in bucket])


@wrong("3.3", "sums by messages, all-reduces for show", "do not need the all-reduces for them", "what the all-reduces")
def sums_by_messages(parameters, cap_bytes):
    n, rank, totals = dist.get_world_size(), dist.get_rank(), []
    for p in parameters:
        total, passed = p.grad.clone(), p.grad.contiguous()
        for _ in range(n - 1):
            came = torch.empty_like(passed)
            sending = dist.isend(passed, (rank + 1) % n)
            dist.recv(came, (rank - 1) % n)
            sending.wait()
            total += came
            passed = came
        totals.append(total)
    buckets_first(parameters, cap_bytes)
    for p, total in zip(parameters, totals, strict=True):
        p.grad = total / n


# 3.4 overlap


@wrong("3.4", "looks whether gradients are there, without counting", "zeroed in place", "Count the hooks")
def without_counting(buckets):
    buckets, under_way = [list(dict.fromkeys(bucket)) for bucket in buckets], []

    def hook_of(bucket):
        def hook(p):
            if all(q.grad is not None for q in bucket):
                flat = flatten(bucket)
                under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))

        return hook

    for bucket in buckets:
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(bucket))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()

    return finish


@wrong("3.4", "averages in the first three steps only", "The first 3 steps are right; in the next, ", "counted anew")
def three_steps_only(buckets):
    finish, steps = count_missing(buckets), []

    def finish_three_times():
        finish()
        steps.append("one more")
        if len(steps) == 3:
            for bucket in buckets:
                for p in bucket:
                    p._post_accumulate_grad_hooks.clear()

    return finish_three_times


# 3.5 accumulate


@right("3.5", "no_sync's attribute, set by hand")
def attribute_by_hand(ddp, micro_batches, loss_of):
    for number, micro_batch in enumerate(micro_batches, start=1):
        ddp.require_backward_grad_sync = number == len(micro_batches)
        (loss_of(ddp, micro_batch) / len(micro_batches)).backward()


# 3.6 Adam's alibi


@wrong("3.6", "looks what average is made of", "average.__closure__: a test sees what average does")
def reads_the_closure(average):
    digits_test(average)
    names = [getattr(cell.cell_contents, "__name__", "") for cell in average.__closure__]
    assert not {"summed", "loss_only", "last_skipped", "largest"} & set(names)


# 3.7 one batch less


@wrong("3.7", "three steps, always", "are lost: the ranks have")
def three_steps_always(model, batches, lr):
    for i in range(3):
        take_step(model, model(batches[i]) if i < len(batches) else None, lr)


@wrong("3.7", "gradients and counts through the store", "rank 0 used the store (set)")
def trains_through_the_store(model, batches, lr):
    for i in range(max(by_store(torch.tensor(len(batches))))):
        model.zero_grad()
        count = len(batches[i]) if i < len(batches) else 0
        if count:
            model(batches[i]).sum().backward()
        own = [p.grad.flatten() if count else torch.zeros_like(p).flatten() for p in model.parameters()]
        dist.all_reduce(torch.cat(own))
        total, tokens = sum(by_store(torch.cat(own))), sum(by_store(torch.tensor(count)))
        for p, part in zip(model.parameters(), total.split([p.numel() for p in model.parameters()]), strict=True):
            p.data -= lr * (part / tokens).view_as(p)


@wrong("3.7", "goes on for ever", "has made 1000 collectives in one call", "Does the loop ever end?")
def for_ever(model, batches, lr):
    while True:
        take_step(model, model(batches.pop(0)) if batches else None, 0.0)
