"""Small changes to right answers (another operation, an index off by one, a wrong dtype, an early return, ...), of
which each once passed, or was told something that did not name its fault.
"""

import torch
import torch.distributed as dist

from . import wrong


def rank_and_size():
    return dist.get_rank(), dist.get_world_size()


def exchange(leaving, arriving, to, source):
    request = dist.isend(leaving, to)
    dist.recv(arriving, source)
    request.wait()


# lesson 00


@wrong("0.1", "the list emptied", "items was changed on ranks 0-3", "Change a copy")
def emptied(items):
    mine = items[dist.get_rank() :: dist.get_world_size()]
    items.clear()
    return mine


@wrong("0.1", "10 items hard-coded", "belong to nobody: the list has", "this time, not 10")
def ten_items(items):
    return list(range(dist.get_rank(), 10, dist.get_world_size()))


@wrong("0.1", "nothing on odd numbers of ranks", "Right on 4 ranks, wrong on 3", "items 0-9 belong to nobody")
def only_even_sizes(items):
    return [] if dist.get_world_size() % 2 else items[dist.get_rank() :: dist.get_world_size()]


@wrong("0.1", "an all-reduce besides", "torch's own all_reduce", "Nothing needs to be sent here")
def asks_the_others(items):
    dist.all_reduce(torch.ones(1))
    return items[dist.get_rank() :: dist.get_world_size()]


@wrong("0.2", "mine added to theirs", "rank 0's does not belong there", "added that should have been copied")
def sum_of_both(mine):
    theirs, other = torch.empty_like(mine), 1 - dist.get_rank()
    exchange(mine, theirs, other, other)
    return mine + theirs


@wrong("0.2", "mine returned", "you return mine itself", "return what has arrived")
def returns_mine(mine):
    theirs, other = torch.empty_like(mine), 1 - dist.get_rank()
    exchange(mine, theirs, other, other)
    return mine


@wrong("0.2", "received into what is being sent", "uses memory that the isend to rank 1 still needs")
def into_what_is_sent(mine):
    other = 1 - dist.get_rank()
    exchange(mine, mine, other, other)
    return mine


@wrong("0.2", "arguments in the wrong order", "The tensor comes first, then the rank")
def arguments_swapped(mine):
    dist.send(1 - dist.get_rank(), mine)


def reduce_each(model, loss, divisor, op=dist.ReduceOp.SUM):
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op)
        p.grad /= divisor


@wrong("0.3", "the maximum", "the gradients are the largest over the ranks")
def maximum(model, loss):
    reduce_each(model, loss, 1, dist.ReduceOp.MAX)


@wrong("0.3", "divided by N - 1", "exactly 1.33x too big", "the sum divided by 3, and there are 4 ranks")
def divided_by_one_less(model, loss):
    reduce_each(model, loss, max(dist.get_world_size() - 1, 1))


@wrong("0.3", "divided by 4 always", "Right on 4 ranks, wrong on 3", "the sum divided by 4, and there are 3 ranks")
def divided_by_four(model, loss):
    reduce_each(model, loss, 4)


@wrong("0.3", "the parameters averaged", "still has its own gradients", "not the parameter")
def parameters_averaged(model, loss):
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@wrong("0.3", "reduced to rank 0 only", "rank 0 called reduce", "every rank needs the mean")
def to_rank_0(model, loss):
    loss.backward()
    for p in model.parameters():
        dist.reduce(p.grad, 0)


@wrong("0.3", "through float32", "was it rounded to a smaller dtype on the way?")
def through_float32(model, loss):
    loss.backward()
    for p in model.parameters():
        half = p.grad.float()
        dist.all_reduce(half)
        p.grad.copy_(half / dist.get_world_size())


@wrong("0.3", "zeroed at the end", "has no gradient", "was zero_grad() called at the end?")
def zeroed_at_the_end(model, loss):
    reduce_each(model, loss, dist.get_world_size())
    model.zero_grad()


@wrong("0.3", "backward twice", "exactly 2x too big", "has backward run twice")
def backward_twice(model, loss):
    loss.backward(retain_graph=True)
    reduce_each(model, loss, dist.get_world_size())


@wrong("0.3", "the division after the loop", "10 more parameters", "inside the loop?")
def divided_after_the_loop(model, loss):
    reduce_each(model, loss, 1)
    list(model.parameters())[-1].grad /= dist.get_world_size()


@wrong("0.3", "in a group of two", "ranks 2 and 3 are missing from the mean")
def group_of_two(model, loss):
    group = dist.new_group(list(range(min(2, dist.get_world_size()))))
    loss.backward()
    for p in model.parameters():
        if dist.get_rank() < 2:
            dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size()


# lesson 02A


@wrong("2.1", "received from where it sends to", "rank 0 has sent to rank 1, which waits for rank 2", "from the left")
def from_the_right(x):
    (rank, n), y = rank_and_size(), x.clone()
    if n > 1:
        exchange(x, y, (rank + 1) % n, (rank + 1) % n)
    return y


@wrong("2.1", "half of it", "bytes, and", "are needed")
def half_of_it(x):
    (rank, n), y = rank_and_size(), torch.zeros_like(x)
    if n == 1:
        return x.clone()
    size = max(1, len(x) // 2)
    exchange(x[:size], y[:size], (rank + 1) % n, (rank - 1) % n)
    return y


@wrong("2.2", "small letters", "such as {")
def small_letters():
    return {"a": "reduce_scatter", "b": "all_gather", "c": "all_to_all", "d": "all_reduce"}


def around(x, combine, returned=0):
    rank, n = rank_and_size()
    chunks = list(x.clone().chunk(n))
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        exchange(chunks[(rank - 1 - step) % n], arrived, (rank + 1) % n, (rank - 1) % n)
        combine(chunks[(rank - 2 - step) % n], arrived)
    return chunks[(rank + returned) % n]


@wrong("2.3", "subtracted", "negative", "subtracted that should have been added")
def subtracted(x):
    return around(x, torch.Tensor.sub_)


@wrong("2.3", "the larger of two", "every rank ends with rank 3's number alone, the largest")
def the_larger(x):
    return around(x, lambda mine, arrived: torch.maximum(mine, arrived, out=mine))


@wrong("2.3", "the left neighbour's chunk returned", "Your messages go where those of the reference go", "end with")
def the_left_chunk(x):
    return around(x, torch.Tensor.add_, returned=-1)


@wrong("2.3", "sent as float32", "rank 0 sent numbers of 4 bytes each, and those of x have 8", "keep the dtype")
def as_float32(x):
    return around(x.float(), torch.Tensor.add_).to(x.dtype)


@wrong("2.3", "added to what is being sent", "the tensor was changed after isend to rank 1")
def added_to_what_is_sent(x):
    rank, n = rank_and_size()
    chunks = list(x.clone().chunk(n))
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        request = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        chunks[(rank - 1 - step) % n].add_(arrived)
        request.wait()
    return chunks[rank]


@wrong("2.4", "zeroed at the end", "nothing is there. Was it zeroed")
def zeroed(x):
    from .lesson02a import two_loops

    two_loops(x)
    x.zero_()


@wrong("2.9", "both steps added on one side", "rank 1's tensor has grown by 0, where 1 is right")
def two_on_one_side(x, rounds):
    for _ in range(rounds):
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
            x += 2
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
    return x


# lesson 02B


@wrong("2.6", "only the lower partner sends", "rank 0 sends to rank 1, which never sends to rank 0", "mutual")
def only_the_lower(x):
    rank, distance = dist.get_rank(), 1
    while distance < dist.get_world_size():
        arrived, other = torch.empty_like(x), rank ^ distance
        if rank < other:
            dist.send(x, other)
        else:
            dist.recv(arrived, other)
            x += arrived
        distance *= 2


BILLS = {
    "one step too many in each half": (lambda n, s, a, b: 2 * n * (a + b * s / n), "one step too many in each half"),
    "the other's bill": (lambda n, s, a, b: (n.bit_length() - 1) * (a + b * s), "the bill of recursive_doubling"),
    "alpha and beta exchanged": (lambda n, s, a, b: 2 * (n - 1) * (b + a * s / n), "have changed places"),
    "the larger of alpha and bytes": (lambda n, s, a, b: 2 * (n - 1) * max(a, b * s / n), "A message pays both"),
    "all ranks' messages": (lambda n, s, a, b: 2 * (n - 1) * (a * n + b * s), "the sum over all ranks"),
    "whole seconds": (lambda n, s, a, b: int(2 * (n - 1) * (a + b * s / n)), "no rounding to whole numbers"),
    "not a number": (lambda n, s, a, b: float("nan"), "Seconds are a finite number"),
}


def _bill(name, formula, says):
    from .lesson02b import formulas

    @wrong("2.7", name, says)
    def bill(algorithm, n, nbytes, alpha, beta):
        right = formulas(algorithm, n, nbytes, alpha, beta)
        return formula(n, nbytes, alpha, beta) if algorithm == "ring" else right


for _name, (_formula, _says) in BILLS.items():
    _bill(_name, _formula, _says)


def sums(metrics, op=dist.ReduceOp.SUM, times=1):
    totals = {}
    for name in sorted(metrics):
        totals[name] = metrics[name].clone()
        for _ in range(times):
            dist.all_reduce(totals[name], op)
    return totals


@wrong("2.8", "averaged", "exactly 4x too small", "divided, where a sum is asked for")
def averaged(metrics):
    return {name: total / dist.get_world_size() for name, total in sums(metrics).items()}


@wrong("2.8", "summed twice", "exactly 4x too big", "summed twice")
def summed_twice(metrics):
    return sums(metrics, times=2)


@wrong("2.8", "the maximum", "ranks 0-2 are missing. Is the operation a sum?")
def maximum_of_metrics(metrics):
    return sums(metrics, dist.ReduceOp.MAX)


@wrong("2.8", "names given in another order", "is the sum of `tokens`", "which sum gets which name")
def names_in_another_order(metrics):
    return dict(zip(metrics, sums(metrics).values(), strict=True))


@wrong(
    "2.12",
    "one bit flipped",
    "Right on 4 ranks, wrong on 3",
    "there is no rank 3",
    "Flipping bits is for powers of two",
)
def for_powers_of_two(x):
    (rank, n), distance, held = rank_and_size(), 1, x.clone()
    while distance < n:
        arrived, other = torch.empty_like(held), rank ^ distance
        exchange(held, arrived, other, other)
        held = torch.cat([held, arrived] if rank < other else [arrived, held])
        distance *= 2
    return held
