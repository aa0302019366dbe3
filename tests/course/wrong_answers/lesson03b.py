"""Answers to the exercises of sitting 03B."""

import torch
import torch.distributed as dist

from . import right, wrong

# 3.3 gradients in buckets


def average_one_bucket(bucket):
    flat = torch.cat([p.grad.flatten() for p in bucket])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad.copy_(part.view_as(p))


def fill(parameters, cap, size_of):
    buckets, bucket = [], []
    for p in parameters:
        bucket.append(p)
        if sum(size_of(q) for q in bucket) >= cap:
            buckets.append(bucket)
            bucket = []
    return [*buckets, bucket] if bucket else buckets


def nbytes(p):
    return p.grad.numel() * p.grad.element_size()


@right("3.3", "buckets first, then one all-reduce each")
def buckets_first(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        average_one_bucket(bucket)


@right("3.3", "as it goes, with picolib's all-reduce; p.grad becomes a view")
def as_it_goes(parameters, cap_bytes):
    from picolib import comm

    def flush(bucket):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket])
        comm.all_reduce(flat, dist.ReduceOp.AVG)
        at = 0
        for p in bucket:
            p.grad = flat[at : at + p.numel()].view(p.shape)
            at += p.numel()

    waiting, held = [], 0
    for p in parameters[::-1]:
        waiting.append(p)
        held += nbytes(p)
        if held >= cap_bytes:
            flush(waiting)
            waiting, held = [], 0
    if waiting:
        flush(waiting)


@wrong("3.3", "filled in forward order", "in forward order", "all-reduced 30, 66, 11, 7 elements")
def forward_order(parameters, cap_bytes):
    for bucket in fill(parameters, cap_bytes, nbytes):
        average_one_bucket(bucket)


@wrong("3.3", "right buckets, sent in the order of forward", "it goes first")
def last_bucket_first(parameters, cap_bytes):
    for bucket in reversed(fill(reversed(parameters), cap_bytes, nbytes)):
        average_one_bucket(bucket)


@wrong("3.3", "counts elements", "You count elements; the cap is in bytes, 8 an element")
def counts_elements(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, torch.numel):
        average_one_bucket(bucket)


@wrong("3.3", "4 bytes an element, always", "78, 30, 6 elements, where 10, 68, 30, 6 are right")
def four_bytes(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, lambda p: 4 * p.numel()):
        average_one_bucket(bucket)


@wrong("3.3", "drops the last bucket", "`embedding.weight` still has its own gradient", "may never be full")
def drops_the_last(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        if sum(nbytes(p) for p in bucket) >= cap_bytes:
            average_one_bucket(bucket)


@wrong("3.3", "never copies back", "every parameter still has its own gradient", "copy it back")
def never_copies_back(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        flat = torch.cat([p.grad.flatten() for p in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()


@wrong(
    "3.3", "copies back into flatten()", "`embedding.weight` and 2 more parameters still has", "what is written into a"
)
def copies_into_a_copy(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        flat = torch.cat([p.grad.flatten() for p in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.flatten().copy_(part)


@wrong("3.3", "views of gradients", "view size is not compatible", "need not be contiguous")
def views_of_gradients(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        flat = torch.cat([p.grad.view(-1) for p in bucket])
        dist.all_reduce(flat)
        copy_back(flat / dist.get_world_size(), bucket)


@wrong("3.3", "by way of bf16", "all-reduced gradients in bfloat16, and they are float64", "Keep the dtype of p.grad")
def by_way_of_bf16(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        flat = torch.cat([p.grad.flatten() for p in bucket]).bfloat16()
        dist.all_reduce(flat)
        copy_back(flat / dist.get_world_size(), bucket)


@wrong("3.3", "one all-reduce a parameter", "one all-reduce a parameter: nothing is put together")
def one_each(parameters, cap_bytes):
    for p in reversed(parameters):
        average_one_bucket([p])


@wrong("3.3", "one all-reduce of everything", "one all-reduce of everything")
def all_at_once(parameters, cap_bytes):
    average_one_bucket(parameters[::-1])


@wrong("3.3", "closed before it would hold more", "not before it would")
def never_above(parameters, cap_bytes):
    buckets = [[]]
    for p in reversed(parameters):
        if buckets[-1] and sum(map(nbytes, buckets[-1])) + nbytes(p) > cap_bytes:
            buckets.append([])
        buckets[-1].append(p)
    for bucket in buckets:
        average_one_bucket(bucket)


@wrong("3.3", "closed above the cap only", "With exactly cap_bytes (80) a bucket is closed, too")
def above_the_cap(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes + 1, nbytes):
        average_one_bucket(bucket)


@wrong("3.3", "forgets to count anew", "each parameter has one of its own", "begins with 0 bytes")
def never_counts_anew(parameters, cap_bytes):
    bucket, held = [], 0
    for p in reversed(parameters):
        bucket.append(p)
        held += nbytes(p)
        if held >= cap_bytes:
            average_one_bucket(bucket)
            bucket = []
    if bucket:
        average_one_bucket(bucket)


@wrong("3.3", "forgets to begin an empty bucket", "All gradients together are 114 elements", "begin an empty one")
def never_an_empty_bucket(parameters, cap_bytes):
    bucket, held = [], 0
    for p in reversed(parameters):
        bucket.append(p)
        held += nbytes(p)
        if held >= cap_bytes:
            average_one_bucket(bucket)
            held = 0
    average_one_bucket(bucket)


@wrong("3.3", "the same list in every place", "All gradients together are 114 elements", "begin an empty one")
def the_same_list(parameters, cap_bytes):
    buckets, bucket, held = [], [], 0
    for p in reversed(parameters):
        bucket.append(p)
        held += nbytes(p)
        if held >= cap_bytes:
            buckets.append(bucket)
            held = 0
    for bucket in buckets:
        average_one_bucket(bucket)


@wrong("3.3", "flattens an empty last bucket", "not right yet.\n\n", "non-empty list", "exactly full nothing is left")
def empty_last_bucket(parameters, cap_bytes):
    buckets = fill(reversed(parameters), cap_bytes, nbytes)
    if sum(nbytes(p) for p in buckets[-1]) >= cap_bytes:
        buckets.append([])
    for bucket in buckets:
        average_one_bucket(bucket)


@wrong("3.3", "all-reduces an empty last bucket", "where 78, 36 are right. Where the last bucket is exactly full")
def sends_an_empty_bucket(parameters, cap_bytes):
    buckets = fill(reversed(parameters), cap_bytes, nbytes)
    for bucket in buckets:
        average_one_bucket(bucket)
    if sum(nbytes(p) for p in buckets[-1]) >= cap_bytes:
        dist.all_reduce(parameters[0].grad.new_empty(0))


@wrong("3.3", "sums", "every gradient is exactly 4x too big", "summed where it should be averaged")
def sums(parameters, cap_bytes):
    buckets_first(parameters, cap_bytes)
    for p in parameters:
        p.grad *= dist.get_world_size()


@wrong("3.3", "cut up in another order", "holds the gradient of")
def cut_in_another_order(parameters, cap_bytes):
    for bucket in fill(reversed(parameters), cap_bytes, nbytes):
        flat = torch.cat([p.grad.flatten() for p in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(bucket[::-1], flat.split([p.numel() for p in bucket[::-1]]), strict=True):
            p.grad.copy_(part.view_as(p))


@wrong("3.3", "nothing is sent", "every parameter still has its own gradient")
def nothing(parameters, cap_bytes):
    fill(reversed(parameters), cap_bytes, nbytes)


@wrong("3.3", "picolib's own", "picolib's own parallel.ddp", "Here you write it yourself")
def the_librarys(parameters, cap_bytes):
    from picolib.parallel import ddp

    ddp.average_in_buckets(parameters, cap_bytes)


@wrong("3.3", "an all-gather of everything", "called all_gather; here all_reduce is enough")
def by_all_gather(parameters, cap_bytes):
    for p in parameters:
        everybody = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, p.grad)
        p.grad.copy_(torch.stack(everybody).mean(0))


# 3.4 overlap


def flatten(bucket):
    return torch.cat([p.grad.flatten() for p in bucket])


def copy_back(flat, bucket):
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad.copy_(part.view_as(p))


@right("3.4", "a number of missing gradients for each bucket")
def count_missing(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                flat = flatten(buckets[number])
                under_way.append((dist.all_reduce(flat, async_op=True), flat, buckets[number]))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


@right("3.4", "a class with sets, picolib's all-reduce and its poll")
def with_a_class(buckets):
    from picolib import comm

    class Bucket:
        def __init__(self, parameters):
            self.parameters, self.ready = [], set()
            for p in parameters:
                if not any(p is q for q in self.parameters):
                    self.parameters.append(p)
                    p.register_post_accumulate_grad_hook(self.is_there)

        def is_there(self, p):
            self.ready.add(p)
            if len(self.ready) == len(self.parameters):
                self.flat = flatten(self.parameters)
                self.work = comm.all_reduce(self.flat, dist.ReduceOp.AVG, async_op=True)
            comm.poll()

        def finish(self):
            self.work.wait()
            copy_back(self.flat, self.parameters)
            self.ready.clear()

    made = [Bucket(parameters) for parameters in buckets]
    return lambda: [bucket.finish() for bucket in made]


@wrong("3.4", "waits in the hook", "0% hidden", "waits in the hook")
def waits_in_the_hook(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    ready = [0] * len(buckets)

    def hook_of(number):
        def hook(p):
            ready[number] += 1
            if ready[number] % len(buckets[number]) == 0:
                flat = flatten(buckets[number])
                dist.all_reduce(flat, async_op=True).wait()
                copy_back(flat / dist.get_world_size(), buckets[number])

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))
    return lambda: None


@wrong("3.4", "waits in the hook, and once more in finish()", "0% hidden", "waits in the hook")
def waits_in_both(buckets):
    def begin(number, buckets):
        handle, flat, bucket = begin_all_reduce(number, buckets)
        handle.wait()
        return handle, flat, bucket

    return with_hooks([list(dict.fromkeys(bucket)) for bucket in buckets], begin)


@wrong("3.4", "a hook on the last of the list only, and no count", "'NoneType'", "it counts none", "in any order")
def a_hook_on_the_last(buckets):
    buckets, under_way = [list(dict.fromkeys(bucket)) for bucket in buckets], []
    for number, bucket in enumerate(buckets):
        bucket[-1].register_post_accumulate_grad_hook(
            lambda p, number=number: under_way.append(begin_all_reduce(number, buckets))
        )

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()

    return finish


@wrong("3.4", "a hook on the last use only, and no count", "'NoneType'", "in any order")
def a_hook_on_the_last_use(buckets):
    once = [list(dict.fromkeys(reversed(bucket)))[::-1] for bucket in buckets]
    return a_hook_on_the_last(once)


@wrong("3.4", "a synchronous all-reduce in the hook", "0% hidden", "waits in the hook")
def synchronous(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    ready = [0] * len(buckets)

    def hook_of(number):
        def hook(p):
            ready[number] += 1
            if ready[number] % len(buckets[number]) == 0:
                average_one_bucket(buckets[number])

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))
    return lambda: None


@wrong("3.4", "starts all at the end", "0% hidden", "starts all 3 all-reduces after the last gradient")
def all_at_the_end(buckets):
    def finish():
        under_way = []
        for bucket in buckets:
            bucket = list(dict.fromkeys(bucket))
            flat = flatten(bucket)
            under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)

    return finish


@wrong("3.4", "never waits", "started an asynchronous all_reduce and never waited for it")
def never_waits(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                flat = flatten(buckets[number]) / dist.get_world_size()
                under_way.append((dist.all_reduce(flat, async_op=True), flat, number))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for _, flat, number in under_way:
            copy_back(flat, buckets[number])
        under_way.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


@wrong("3.4", "a tied weight counted twice", "bucket 2 was never started", "tied weight", "Count each parameter once")
def tied_counted_twice(buckets):
    missing, under_way = [len(bucket) for bucket in buckets], []
    own = [list(dict.fromkeys(bucket)) for bucket in buckets]

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                flat = flatten(own[number])
                under_way.append((dist.all_reduce(flat, async_op=True), flat, own[number]))

        return hook

    for number, bucket in enumerate(own):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


@wrong("3.4", "a tied weight travels twice", "the tied weight travels twice: 36 elements, where 24 are right")
def tied_travels_twice(buckets):
    missing, under_way = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                flat = flatten(buckets[number])
                under_way.append((dist.all_reduce(flat, async_op=True), flat, buckets[number]))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


@wrong("3.4", "not counted anew", "The first step is right; in the second", "counted anew in each step")
def not_counted_anew(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                flat = flatten(buckets[number])
                under_way.append((dist.all_reduce(flat, async_op=True), flat, buckets[number]))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()

    return finish


@wrong("3.4", "a hook that comes before the gradient is in place", "NoneType")
def too_early_a_hook(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(gradient):
            missing[number] -= 1
            if missing[number] == 0:
                flat = flatten(buckets[number])
                under_way.append((dist.all_reduce(flat, async_op=True), flat, buckets[number]))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_hook(hook_of(number))
    return lambda: None


@wrong("3.4", "uses the flat tensor before wait", "used its tensor before wait()", "flat / dist.get_world_size()")
def uses_it_early(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    ready, under_way = [0] * len(buckets), []

    def hook_of(number):
        def hook(p):
            ready[number] += 1
            if ready[number] % len(buckets[number]) == 0:
                flat = flatten(buckets[number])
                under_way.append(dist.all_reduce(flat, async_op=True))
                copy_back(flat / dist.get_world_size(), buckets[number])

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        while under_way:
            under_way.pop().wait()

    return finish


@wrong("3.4", "divides before wait", "used its tensor before wait()", "flat /= dist.get_world_size()")
def divides_before_wait(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    ready, under_way = [0] * len(buckets), []

    def hook_of(number):
        def hook(p):
            ready[number] += 1
            if ready[number] % len(buckets[number]) == 0:
                flat = flatten(buckets[number])
                handle = dist.all_reduce(flat, async_op=True)
                flat /= dist.get_world_size()
                under_way.append((handle, flat, number))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for handle, flat, number in under_way:
            handle.wait()
            copy_back(flat, buckets[number])
        under_way.clear()

    return finish


def with_hooks(buckets, begin, number_of_hook=None):
    """count_missing with another `begin(number)`, and perhaps hooks that mean another bucket."""
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                under_way.append(begin(number, buckets))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number if number_of_hook is None else number_of_hook))

    def finish():
        for handle, flat, bucket in under_way:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        under_way.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


@wrong("3.4", "another order on each rank, as of a set", "gradients of different parameters", "in different orders")
def another_order_on_each_rank(buckets):
    def begin(number, buckets):
        turn = dist.get_rank() % len(buckets[number])
        bucket = buckets[number][turn:] + buckets[number][:turn]
        flat = flatten(bucket)
        return dist.all_reduce(flat, async_op=True), flat, bucket

    return with_hooks(buckets, begin)


@wrong("3.4", "a set finds the tied weight", "gradients of different parameters", "a set has none")
def a_set_for_the_tied_weight(buckets):
    return count_missing([list(set(bucket)) for bucket in buckets])


def begin_all_reduce(number, buckets):
    flat = flatten(buckets[number])
    return dist.all_reduce(flat, async_op=True), flat, buckets[number]


@wrong("3.4", "hooks that all mean the last bucket", "'NoneType'", "when it runs", "def hook(p, number=number)")
def all_mean_the_last(buckets):
    return with_hooks(buckets, begin_all_reduce, number_of_hook=len(buckets) - 1)


@wrong("3.4", "started one gradient too early", "'NoneType'", "counts fewer gradients than it has")
def one_too_early(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, under_way = [max(len(bucket) - 1, 1) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                under_way.append(begin_all_reduce(number, buckets))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))
    return lambda: None


@wrong("3.4", "compares tensors to find the tied weight", "number by number", "dict.fromkeys(bucket)")
def compares_tensors(buckets):
    own = []
    for bucket in buckets:
        once = []
        for p in bucket:
            if p not in once:
                once.append(p)
        own.append(once)
    return count_missing(own)


@wrong("3.4", "one all-reduce of everything", "you made one all-reduce of everything", "each of the 3 buckets")
def one_bucket_for_all(buckets):
    return count_missing([[p for bucket in buckets for p in bucket]])


@wrong("3.4", "handles are never forgotten", "finish() waits for 3 all-reduces of the step before once more")
def handles_never_forgotten(buckets):
    buckets = [list(dict.fromkeys(bucket)) for bucket in buckets]
    missing, handles = [len(bucket) for bucket in buckets], []

    def hook_of(number):
        def hook(p):
            missing[number] -= 1
            if missing[number] == 0:
                handles.append(begin_all_reduce(number, buckets))

        return hook

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(hook_of(number))

    def finish():
        for handle, flat, bucket in handles:
            handle.wait()
            copy_back(flat / dist.get_world_size(), bucket)
        missing[:] = [len(bucket) for bucket in buckets]

    return finish


@wrong("3.4", "returns nothing", "overlap returned None", "the function finish()")
def returns_nothing(buckets):
    count_missing(buckets)


@wrong("3.4", "picolib's own", "picolib's own parallel.ddp", "Here you write it yourself")
def librarys_overlap(buckets):
    from picolib.parallel.ddp import OverlappedAverage

    everything = torch.nn.ParameterList(dict.fromkeys(p for bucket in reversed(buckets) for p in reversed(bucket)))
    return OverlappedAverage(everything, cap_bytes=100).finish


@wrong("3.4", "picolib's DistributedDataParallel", "here you write it yourself")
def librarys_ddp(buckets):
    from picolib import DistributedDataParallel

    DistributedDataParallel(torch.nn.ParameterList(p for bucket in buckets for p in bucket))
    return lambda: None


# 3.5 accumulate


@right("3.5", "no_sync for all but the last")
def all_but_the_last(ddp, micro_batches, loss_of):
    *before, last = micro_batches
    with ddp.no_sync():
        for micro_batch in before:
            (loss_of(ddp, micro_batch) / len(micro_batches)).backward()
    (loss_of(ddp, last) / len(micro_batches)).backward()


@right("3.5", "a context for each, gradients divided at the end")
def context_for_each(ddp, micro_batches, loss_of):
    import contextlib

    for number, micro_batch in enumerate(micro_batches, start=1):
        with contextlib.nullcontext() if number == len(micro_batches) else ddp.no_sync():
            loss_of(ddp, micro_batch).backward()
    for p in ddp.parameters():
        p.grad /= len(micro_batches)


@wrong("3.5", "synchronises each time", "3.0x the bytes")
def syncs_each(ddp, micro_batches, loss_of):
    for micro_batch in micro_batches:
        (loss_of(ddp, micro_batch) / len(micro_batches)).backward()


@wrong("3.5", "backward alone under no_sync", "3.0x the bytes", "must hold the forward pass too")
def backward_alone(ddp, micro_batches, loss_of):
    *before, last = micro_batches
    for micro_batch in before:
        loss = loss_of(ddp, micro_batch) / len(micro_batches)
        with ddp.no_sync():
            loss.backward()
    (loss_of(ddp, last) / len(micro_batches)).backward()


@wrong("3.5", "never synchronises", "0 bytes were sent")
def never_syncs(ddp, micro_batches, loss_of):
    with ddp.no_sync():
        for micro_batch in micro_batches:
            (loss_of(ddp, micro_batch) / len(micro_batches)).backward()


@wrong("3.5", "forgets to divide by m", "every gradient is exactly 3x too big", "divide by m")
def forgets_to_divide(ddp, micro_batches, loss_of):
    *before, last = micro_batches
    with ddp.no_sync():
        for micro_batch in before:
            loss_of(ddp, micro_batch).backward()
    loss_of(ddp, last).backward()


@wrong("3.5", "divides twice", "every gradient is exactly 3x too small", "divide by m")
def divides_twice(ddp, micro_batches, loss_of):
    all_but_the_last(ddp, micro_batches, loss_of)
    for p in ddp.parameters():
        p.grad /= len(micro_batches)


@wrong("3.5", "divides the last one only", "the micro-batches count 3x, 3x, 1x", "Divide every loss by m")
def divides_the_last(ddp, micro_batches, loss_of):
    *before, last = micro_batches
    with ddp.no_sync():
        for micro_batch in before:
            loss_of(ddp, micro_batch).backward()
    (loss_of(ddp, last) / len(micro_batches)).backward()


@wrong("3.5", "backward on the running total", "graph a second time", "not on the running total")
def running_total(ddp, micro_batches, loss_of, **options):
    m, total = len(micro_batches), 0
    with ddp.no_sync():
        for micro_batch in micro_batches[:-1]:
            total = total + loss_of(ddp, micro_batch) / m
            total.backward(**options)
    (total + loss_of(ddp, micro_batches[-1]) / m).backward()


@wrong("3.5", "the same with retain_graph=True", "count 3x, 2x, 1x", "not on the running total")
def retained_total(ddp, micro_batches, loss_of):
    running_total(ddp, micro_batches, loss_of, retain_graph=True)


@wrong("3.5", "divides by the ranks, too", "exactly 4x too small. 4 is the number of ranks", "takes the mean already")
def divides_by_the_ranks(ddp, micro_batches, loss_of):
    all_but_the_last(ddp, micro_batches, lambda *given: loss_of(*given) / dist.get_world_size())


@wrong("3.5", "empties .grad each time", "micro-batches 0 and 1 (counted from 0) are not in the gradient", "emptied")
def empties_each_time(ddp, micro_batches, loss_of):
    def fresh(*given):
        ddp.zero_grad()
        return loss_of(*given)

    all_but_the_last(ddp, micro_batches, fresh)


@wrong("3.5", "the same micro-batch each time", "are not in the gradient", "one micro-batch taken several times")
def the_same_each_time(ddp, micro_batches, loss_of):
    all_but_the_last(ddp, [micro_batches[0]] * len(micro_batches), loss_of)


@wrong("3.5", "synchronises first", "only its own gradient of micro-batches 1 and 2", "last backward pass is the one")
def synchronises_first(ddp, micro_batches, loss_of):
    first, *others = micro_batches
    (loss_of(ddp, first) / len(micro_batches)).backward()
    with ddp.no_sync():
        for micro_batch in others:
            (loss_of(ddp, micro_batch) / len(micro_batches)).backward()


@wrong("3.5", "no_sync() without with", "3.0x the bytes", "but enter no block: `with ddp.no_sync():`")
def without_with(ddp, micro_batches, loss_of):
    for micro_batch in micro_batches:
        ddp.no_sync()
        (loss_of(ddp, micro_batch) / len(micro_batches)).backward()


@wrong("3.5", "never synchronises one micro-batch", "With one micro-batch, the first is the last")
def never_syncs_one(ddp, micro_batches, loss_of):
    if len(micro_batches) > 1:
        return all_but_the_last(ddp, micro_batches, loss_of)
    never_syncs(ddp, micro_batches, loss_of)


@wrong("3.5", "averages by hand", "averaged by hand")
def by_hand(ddp, micro_batches, loss_of):
    never_syncs(ddp, micro_batches, loss_of)
    for p in ddp.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@wrong("3.5", "averages by hand, with picolib's all-reduce", "averaged by hand")
def by_hand_with_picolib(ddp, micro_batches, loss_of):
    from picolib import comm

    never_syncs(ddp, micro_batches, loss_of)
    for p in ddp.parameters():
        comm.all_reduce(p.grad, dist.ReduceOp.AVG)


@wrong("3.5", "around the wrapper", "something else than ddp")
def around_ddp(ddp, micro_batches, loss_of):
    for micro_batch in micro_batches:
        (loss_of(ddp.module, micro_batch) / len(micro_batches)).backward()


@wrong("3.5", "all micro-batches in one", "called loss_of 1 time for 3 micro-batches")
def all_in_one(ddp, micro_batches, loss_of):
    loss_of(ddp, torch.stack(micro_batches).mean(0)).backward()


@wrong("3.5", "all forward passes before the backward pass", "activations of both are in memory")
def all_forward_first(ddp, micro_batches, loss_of):
    (sum(loss_of(ddp, micro_batch) for micro_batch in micro_batches) / len(micro_batches)).backward()
