"""Answers to the exercises of sitting 02B."""

import math

import torch
import torch.distributed as dist

from picolib import comm

from . import right, wrong

# 2.6 recursive doubling


def swap(x, to, source):
    arrived = torch.empty_like(x)
    request = dist.isend(x, to)
    dist.recv(arrived, source)
    request.wait()
    return arrived


@right("2.6", "one bit flipped, with isend")
def flip_one_bit(x):
    rank, distance = dist.get_rank(), 1
    while distance < dist.get_world_size():
        x += swap(x, rank ^ distance, rank ^ distance)
        distance *= 2


@right("2.6", "the lower rank sends first, furthest partner first")
def furthest_first(x):
    rank, distance = dist.get_rank(), dist.get_world_size() // 2
    while distance:
        other, arrived = rank ^ distance, torch.empty_like(x)
        if rank < other:
            comm.send(x, other)
            comm.recv(arrived, other)
        else:
            comm.recv(arrived, other)
            comm.send(x, other)
        x += arrived
        distance //= 2


@wrong("2.6", "rank + 2**k as partner", "Partners are mutual: whom you send to")
def not_mutual(x):
    rank, n, distance = dist.get_rank(), dist.get_world_size(), 1
    while distance < n:
        partner = (rank + distance) % n
        x += swap(x, partner, partner)
        distance *= 2


@wrong("2.6", "to rank + 2**k, from rank - 2**k", "Partners are mutual", "each rank adds in another order")
def dissemination(x):
    rank, n, distance = dist.get_rank(), dist.get_world_size(), 1
    while distance < n:
        x += swap(x, (rank + distance) % n, (rank - distance) % n)
        distance *= 2


@wrong("2.6", "the partner stays the same", "meets rank 1 in every step")
def fixed_partner(x):
    for _ in range(dist.get_world_size().bit_length() - 1):
        x += swap(x, dist.get_rank() ^ 1, dist.get_rank() ^ 1)


@wrong("2.6", "around the ring", "7 steps; 3 suffice")
def ring(x):
    rank, n, passing = dist.get_rank(), dist.get_world_size(), x.clone()
    for _ in range(n - 1):
        passing = swap(passing, (rank + 1) % n, (rank - 1) % n)
        x += passing


@wrong("2.6", "a step missing", "missing")
def a_step_missing(x):
    rank, distance = dist.get_rank(), 1
    while 2 * distance < dist.get_world_size():
        x += swap(x, rank ^ distance, rank ^ distance)
        distance *= 2


@wrong("2.6", "torch's all-reduce", "torch's own all_reduce")
def native(x):
    dist.all_reduce(x)


@wrong("2.6", "picolib's recursive doubling", "picolib's own all_reduce")
def picolibs(x):
    comm.all_reduce(x, algorithm="recursive_doubling")


@wrong("2.6", "not in place", "not in place")
def new_tensor(x):
    y = x.clone()
    flip_one_bit(y)
    return y


@wrong("2.6", "x rebound", "x was rebound", "x += ...")
def rebound(x):
    rank, distance = dist.get_rank(), 1
    while distance < dist.get_world_size():
        x = x + swap(x, rank ^ distance, rank ^ distance)
        distance *= 2


@wrong("2.6", "rank ^ (k + 1)", "in step 3 rank 0 meets rank 3", "rank 4")
def xor_of_the_step(x):
    rank = dist.get_rank()
    for step in range(dist.get_world_size().bit_length() - 1):
        x += swap(x, rank ^ (step + 1), rank ^ (step + 1))


@wrong("2.6", "rank ^ k", "itself", "always another rank")
def xor_of_k(x):
    rank = dist.get_rank()
    for step in range(dist.get_world_size().bit_length() - 1):
        x += swap(x, rank ^ step, rank ^ step)


@wrong("2.6", "rank + 2**k without an end", "there is no rank 8", "differs in one bit")
def beyond_the_last(x):
    rank, distance = dist.get_rank(), 1
    while distance < dist.get_world_size():
        x += swap(x, rank + distance, rank + distance)
        distance *= 2


@wrong("2.6", "rank ^ 2^k, which is no power in Python", 'is not "to the power"', "2**k")
def xor_for_power(x):
    rank, k = dist.get_rank(), 0
    while 2**k < dist.get_world_size():
        x += swap(x, rank ^ 2 ^ k, rank ^ 2 ^ k)
        k += 1


@wrong("2.6", "a loop without end, with messages", "has sent 200 messages", "Does the loop ever end? 3 are enough on 8")
def never_doubled(x):
    rank, distance = dist.get_rank(), 1
    while distance < dist.get_world_size():
        x += swap(x, rank ^ distance, rank ^ distance)


@wrong("2.6", "both send first, to right partners", "Two and two call each other", "start the send with isend")
def both_send_first(x):
    rank, distance, arrived = dist.get_rank(), 1, torch.empty_like(x)
    while distance < dist.get_world_size():
        dist.send(x, rank ^ distance)
        dist.recv(arrived, rank ^ distance)
        x += arrived
        distance *= 2


@wrong("2.6", "all send to rank + 2**k first", "in a circle", "Partners are mutual")
def all_send_onwards(x):
    rank, n, distance, arrived = dist.get_rank(), dist.get_world_size(), 1, torch.empty_like(x)
    while distance < n:
        dist.send(x, (rank + distance) % n)
        dist.recv(arrived, (rank + distance) % n)
        x += arrived
        distance *= 2


@wrong("2.6", "both receive first", "wait for each other", "start the send with isend")
def both_receive_first(x):
    rank, distance, arrived = dist.get_rank(), 1, torch.empty_like(x)
    while distance < dist.get_world_size():
        dist.recv(arrived, rank ^ distance)
        dist.send(x, rank ^ distance)
        x += arrived
        distance *= 2


# 2.7 the bill


def steps_of(algorithm, n):
    return 2 * (n - 1) if algorithm == "ring" else n.bit_length() - 1


@right("2.7", "formulas")
def formulas(algorithm, n, nbytes, alpha, beta):
    each = nbytes / n if algorithm == "ring" else nbytes
    return steps_of(algorithm, n) * (alpha + beta * each)


@right("2.7", "step by step")
def step_by_step(algorithm, n, nbytes, alpha, beta):
    seconds, distance = 0.0, 1
    if algorithm == "ring":
        for _half in range(2):
            for _step in range(n - 1):
                seconds += alpha + beta * nbytes / n
        return seconds
    while distance < n:
        seconds, distance = seconds + alpha + beta * nbytes, 2 * distance
    return seconds


@wrong("2.7", "one alpha", "You charge one alpha")
def one_alpha(algorithm, n, nbytes, alpha, beta):
    each = nbytes / n if algorithm == "ring" else nbytes
    return alpha + steps_of(algorithm, n) * beta * each


@wrong("2.7", "the whole vector in each step of the ring", "one chunk, S/N bytes")
def whole_vector(algorithm, n, nbytes, alpha, beta):
    return steps_of(algorithm, n) * (alpha + beta * nbytes)


@wrong("2.7", "beta per bit", "per byte, not per bit")
def bits(algorithm, n, nbytes, alpha, beta):
    return formulas(algorithm, n, 8 * nbytes, alpha, beta)


@wrong("2.7", "microseconds", "Units", "too much")
def microseconds(algorithm, n, nbytes, alpha, beta):
    return 1e6 * formulas(algorithm, n, nbytes, alpha, beta)


@wrong("2.7", "the natural logarithm", "That is math.log(n) steps; math.log2(n)")
def natural_logarithm(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return formulas(algorithm, n, nbytes, alpha, beta)
    return math.log(n) * (alpha + beta * nbytes)


@wrong("2.7", "half of the ring", "That is one half")
def half(algorithm, n, nbytes, alpha, beta):
    seconds = formulas(algorithm, n, nbytes, alpha, beta)
    return seconds / 2 if algorithm == "ring" else seconds


@wrong("2.7", "no number", "a number of seconds, not a Module")
def a_module(algorithm, n, nbytes, alpha, beta):
    return torch.nn.Module()


# 2.8 the silent swap


@right("2.8", "sorted names")
def sorted_names(metrics):
    totals = {name: metrics[name].clone() for name in sorted(metrics)}
    for total in totals.values():
        dist.all_reduce(total)
    return totals


@wrong("2.8", "summed in the given tensors", "metrics was changed on ranks 0-3")
def summed_in_place(metrics):
    for name in sorted(metrics):
        dist.all_reduce(metrics[name])
    return metrics


@wrong("2.8", "sums by messages, all-reduces for show", "do not need the all-reduces for them")
def sums_by_messages(metrics):
    totals, n, rank = {}, dist.get_world_size(), dist.get_rank()
    for name in sorted(metrics):
        total, passed = metrics[name].clone(), metrics[name].clone()
        for _ in range(n - 1):
            came = torch.empty_like(passed)
            sending = dist.isend(passed, (rank + 1) % n)
            dist.recv(came, (rank - 1) % n)
            sending.wait()
            total, passed = total + came, came
        dist.all_reduce(metrics[name].clone())
        totals[name] = total
    return totals


@right("2.8", "sorted pairs, picolib's all-reduce")
def sorted_pairs(metrics):
    totals = {}
    for name, value in sorted(metrics.items(), reverse=True):
        totals[name] = value.clone()
        comm.all_reduce(totals[name])
    return totals


@wrong("2.8", "names written out", "must return a dictionary with", "the names that are in `metrics`")
def written_out(metrics):
    totals = {}
    for name in ("tokens", "loss"):
        totals[name] = metrics.get(name, torch.zeros(1, dtype=torch.float64)).clone()
        comm.all_reduce(totals[name])
    return totals


@wrong("2.8", "names written out, where there are others", "KeyError: 'tokens'", "the names that are in `metrics`")
def written_out_and_looked_up(metrics):
    totals = {name: metrics[name].clone() for name in ("tokens", "loss")}
    for total in totals.values():
        dist.all_reduce(total)
    return totals


@wrong("2.8", "in the order of a set", "only by luck", "sorted(metrics)")
def in_the_order_of_a_set(metrics):
    totals = {}
    for name in set(metrics):
        totals[name] = metrics[name].clone()
        dist.all_reduce(totals[name])
    return totals


@wrong("2.8", "in the order of a list of a set", "only by luck")
def in_the_order_of_a_list_of_a_set(metrics):
    totals = {name: metrics[name].clone() for name in list(set(metrics))}
    for total in totals.values():
        dist.all_reduce(total)
    return totals


@wrong("2.8", "its own number times the ranks", "`loss` on rank 0 is 4, but 0 all-reduces were called")
def times_the_ranks(metrics):
    return {name: value * dist.get_world_size() for name, value in metrics.items()}


@wrong("2.8", "as it was given", "in the same call", "one order")
def as_given(metrics):
    for name in metrics:
        dist.all_reduce(metrics[name])
    return metrics


@wrong("2.8", "a barrier in between", "one order")
def with_barrier(metrics):
    for name in metrics:
        dist.all_reduce(metrics[name])
        dist.barrier()
    return metrics


@wrong("2.8", "one of them dropped", "it was never reduced")
def dropped(metrics):
    dist.all_reduce(metrics["loss"])
    return metrics


@wrong("2.8", "both packed into one", "rank 0 called 1 all-reduce: keep two")
def packed(metrics):
    both = torch.cat([metrics["loss"], metrics["tokens"]])
    dist.all_reduce(both)
    return {"loss": both[:1], "tokens": both[1:]}


@wrong("2.8", "nothing reduced", "it was never reduced")
def nothing(metrics):
    return metrics


@wrong("2.8", "no tensors", "`loss` must be a tensor, not an object")
def objects(metrics):
    return {name: object() for name in metrics}


# 2.11 recursive halving and doubling


def halving_order(n):
    distance = n // 2
    while distance:
        yield distance
        distance //= 2


@right("2.11", "views of a shrinking range")
def shrinking_range(x):
    rank, start, stop = dist.get_rank(), 0, x.numel()
    ranges = []
    for distance in halving_order(dist.get_world_size()):
        middle, upper = (start + stop) // 2, bool(rank & distance)
        keep, give = ((middle, stop), (start, middle)) if upper else ((start, middle), (middle, stop))
        arrived = torch.empty_like(x[keep[0] : keep[1]])
        request = dist.isend(x[give[0] : give[1]], rank ^ distance)
        dist.recv(arrived, rank ^ distance)
        request.wait()
        x[keep[0] : keep[1]] += arrived
        ranges.append((keep, give, distance))
        start, stop = keep
    for keep, give, distance in reversed(ranges):
        request = dist.isend(x[keep[0] : keep[1]], rank ^ distance)
        dist.recv(x[give[0] : give[1]], rank ^ distance)
        request.wait()


@right("2.11", "recursive")
def recursive(x, distance=None):
    rank = dist.get_rank()
    distance = dist.get_world_size() // 2 if distance is None else distance
    if not distance:
        return
    low, high = x.chunk(2)
    keep, give = (high, low) if rank & distance else (low, high)
    arrived, request = torch.empty_like(keep), comm.isend(give, rank ^ distance)
    comm.recv(arrived, rank ^ distance)
    request.wait()
    keep += arrived
    recursive(keep, distance // 2)
    request = comm.isend(keep, rank ^ distance)
    comm.recv(give, rank ^ distance)
    request.wait()


@wrong("2.11", "doubling only", "the bytes")
def doubling_only(x):
    flip_one_bit(x)


@wrong("2.11", "not doubled back", "sent 2 messages, and 4 are needed")
def not_back(x):
    rank = dist.get_rank()
    for distance in halving_order(dist.get_world_size()):
        low, high = x.chunk(2)
        keep, give = (high, low) if rank & distance else (low, high)
        arrived, request = torch.empty_like(keep), dist.isend(give, rank ^ distance)
        dist.recv(arrived, rank ^ distance)
        request.wait()
        keep += arrived
        x = keep


@wrong("2.11", "picolib's own", "picolib's own all_reduce")
def picolibs_halving(x):
    comm.all_reduce(x)


# 2.12 Bruck


@right("2.12", "blocks above, then rotate")
def bruck(x):
    rank, n, distance = dist.get_rank(), dist.get_world_size(), 1
    held = [x]
    while distance < n:
        count = min(distance, n - distance)
        sent, arrived = torch.cat(held[:count]), torch.empty(count * x.numel(), dtype=x.dtype)
        request = dist.isend(sent, (rank - distance) % n)
        dist.recv(arrived, (rank + distance) % n)
        request.wait()
        held += arrived.chunk(count)
        distance *= 2
    return torch.cat([held[(block - rank) % n] for block in range(n)])


@right("2.12", "blocks below, one buffer")
def bruck_downwards(x):
    rank, n, size, distance = dist.get_rank(), dist.get_world_size(), x.numel(), 1
    buffer = torch.empty(n * size, dtype=x.dtype)
    buffer[:size] = x
    while distance < n:
        count = min(distance, n - distance) * size
        request = comm.isend(buffer[:count], (rank + distance) % n)
        comm.recv(buffer[distance * size : distance * size + count], (rank - distance) % n)
        request.wait()
        distance *= 2
    blocks = buffer.chunk(n)
    return torch.cat([blocks[(rank - block) % n] for block in range(n)])


@wrong("2.12", "not rotated at the end", "in the wrong order")
def not_rotated(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    return torch.cat([bruck(x).chunk(n)[(rank + i) % n] for i in range(n)])


@wrong("2.12", "2 ^ k for a power of two", 'is not "to the power"', "2**k")
def bruck_with_xor(x):
    rank, n, held = dist.get_rank(), dist.get_world_size(), x
    for k in range((n - 1).bit_length()):
        away = 2 ^ k
        held = torch.cat([held, swap(held, (rank - away) % n, (rank + away) % n)])
    return held[: n * x.numel()]


@wrong("2.12", "around the ring", "3 messages, where 2 are right")
def ring_gather(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    held = {rank: x}
    for step in range(n - 1):
        held[(rank - 1 - step) % n] = swap(held[(rank - step) % n], (rank + 1) % n, (rank - 1) % n)
    return torch.cat([held[block] for block in range(n)])


@wrong("2.12", "sends all it has in the last step too", "bytes")
def sends_everything(x):
    rank, n, distance, held = dist.get_rank(), dist.get_world_size(), 1, x
    while distance < n:
        held = torch.cat([held, swap(held, (rank - distance) % n, (rank + distance) % n)])
        distance *= 2
    blocks = held.chunk(held.numel() // x.numel())
    return torch.cat([blocks[(block - rank) % n] for block in range(n)])
