"""Small changes to the solutions of lesson 02 that `tests.course.mutate` has drawn, and that were once told something
that did not name their fault.
"""

import torch
import torch.distributed as dist

from . import wrong
from .mutants import around, exchange, rank_and_size, sums


@wrong("2.1", "sent to nobody", "A message goes to a rank: dist.send(x, dst=1)")
def sent_to_nobody(x):
    dist.isend(x).wait()


@wrong("2.7", "beta subtracted", "A message takes alpha + beta·bytes", "nothing is subtracted")
def beta_subtracted(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha - beta * nbytes / n)
    return (n.bit_length() - 1) * (alpha + beta * nbytes)


@wrong("2.8", "the minimum", "`loss` on rank 0 is the smallest of the ranks' numbers. Is the operation a sum?")
def minimum_of_metrics(metrics):
    return sums(metrics, dist.ReduceOp.MIN)


@wrong("2.9", "both play rank 0", "Rank 0 sends to rank 1", "rank 1 receives from rank 0")
def both_play_rank_0(x, rounds):
    for _ in range(rounds):
        dist.send(x, 1)
        dist.recv(x, 1)
        x += 1
    return x


@wrong("2.10", "only the last rank would send", "rank 0 has returned", "Rank r sends each part to rank r + 1")
def only_the_last_sends(x):
    rank, n = rank_and_size()
    for part in x.chunk(8):
        if rank > 0:
            dist.recv(part, rank - 1)
        if rank == n - 1 > 0:
            dist.send(part, 0)


@wrong("2.10", "received from the last rank", "rank 3 itself", "Rank r receives from rank r - 1")
def from_the_last(x):
    rank, n = rank_and_size()
    for part in x.chunk(8):
        if rank > 0:
            dist.recv(part, n - 1)
        if rank < n - 1:
            dist.send(part, rank + 1)


@wrong("2.11", "the way back in the order of the way there", "it begins with the last partner, rank 1")
def not_backwards(x):
    (rank, n), held, way = rank_and_size(), x, []
    distance = n // 2
    while distance:
        lower, upper = held.chunk(2)
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        arrived = torch.empty_like(kept)
        exchange(given, arrived, rank ^ distance, rank ^ distance)
        kept += arrived
        way.append((kept, given, rank ^ distance))
        held, distance = kept, distance // 2
    for kept, given, partner in way:
        exchange(kept, given, partner, partner)


def halves(x, chooses=lambda rank, distance: rank & distance, add=torch.Tensor.add_):
    (rank, n), held, way = rank_and_size(), x, []
    distance = n // 2
    while distance:
        lower, upper = held.chunk(2)
        kept, given = (upper, lower) if chooses(rank, distance) else (lower, upper)
        arrived = torch.empty_like(kept)
        exchange(given, arrived, rank ^ distance, rank ^ distance)
        kept = add(kept, arrived)
        way.append((kept, given, rank ^ distance))
        held, distance = kept, distance // 2
    for kept, given, partner in reversed(way):
        exchange(kept, given, partner, partner)


@wrong("2.11", "the sum in a new tensor", "its x holds", "the sum is in another tensor", "kept += arrived")
def sums_elsewhere(x):
    halves(x, add=torch.Tensor.add)


@wrong("2.11", "all but rank 0 keep the upper half", "with parts of other chunks: the wrong index is added")
def upper_halves(x):
    halves(x, chooses=lambda rank, distance: rank)


def doubled(x, steps=10, receive=lambda arrived, source: dist.recv(arrived, src=source)):
    (rank, n), held, distance = rank_and_size(), [x.clone()], 1
    while distance < n and steps:
        leaving = torch.cat(held[: n - distance])
        arrived = torch.empty_like(leaving)
        sending = dist.isend(leaving, (rank - distance) % n)
        receive(arrived, (rank + distance) % n)
        sending.wait()
        held += arrived.split(len(x))
        distance, steps = 2 * distance, steps - 1
    return torch.cat([held[(r - rank) % n] for r in range(n)])


@wrong("2.12", "no step taken", "Fewer than N blocks are held at the end")
def no_step(x):
    return doubled(x, steps=0)


@wrong("2.4", "received into the wrong chunk", "rank 0 holds chunk 1 where chunk 3 belongs", "received into the right")
def into_the_wrong_chunk(x):
    rank, n = rank_and_size()
    chunks = x.chunk(n)
    chunks[rank].copy_(around(x, torch.Tensor.add_))
    for step in range(n - 1):
        sending = dist.isend(chunks[(rank + step) % n], (rank - 1) % n)
        dist.recv(chunks[(rank - 1 + step) % n], (rank + 1) % n)
        sending.wait()


@wrong("2.8", "summed, and the argument returned", "still its own: what was all-reduced is another tensor")
def returns_the_argument(metrics):
    sums(metrics)
    return metrics


@wrong("2.12", "received from anybody", "takes the first message that comes, from whichever rank", "src=")
def from_anybody(x):
    return doubled(x, receive=lambda arrived, source: dist.recv(arrived))
