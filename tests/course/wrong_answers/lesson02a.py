"""Answers to the exercises of sitting 02A."""

import torch
import torch.distributed as dist

from picolib import comm

from . import right, wrong
from .ways_round import by_files

# 2.1 pass it to the right


@right("2.1", "isend, receive, wait")
def isend_first(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return x.clone()
    y = torch.empty_like(x)
    request = dist.isend(x, (rank + 1) % n)
    dist.recv(y, (rank - 1) % n)
    request.wait()
    return y


@right("2.1", "rank 0 sends first, picolib's send and recv")
def rank_0_breaks_the_ring(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    y = x.clone()
    if n > 1 and rank == 0:
        comm.send(x, 1)
        comm.recv(y, n - 1)
    elif n > 1:
        comm.recv(y, rank - 1)
        comm.send(x, (rank + 1) % n)
    return y


@wrong("2.1", "no modulo", "there is no rank", "(rank + 1) % N")
def no_modulo(x):
    rank, y = dist.get_rank(), torch.empty_like(x)
    request = dist.isend(x, rank + 1)
    dist.recv(y, rank - 1)
    request.wait()
    return y


@wrong("2.1", "all receive first", "wait for each other", "receives first")
def all_receive_first(x):
    rank, n, y = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    dist.recv(y, (rank - 1) % n)
    dist.send(x, (rank + 1) % n)
    return y


def by_parity(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(x)
    calls = [lambda: dist.send(x, (rank + 1) % n), lambda: dist.recv(arrived, (rank - 1) % n)]
    for call in calls if rank % 2 == 0 else reversed(calls):
        call()
    return arrived


@right("2.1", "even ranks send first, odd ones receive first; alone, a copy")
def parity_with_a_copy(x):
    return by_parity(x) if dist.get_world_size() > 1 else x.clone()


@wrong("2.1", "even ranks first, also when alone", "On one rank there is no neighbour: return a copy of x there")
def parity_alone(x):
    return by_parity(x)


@wrong("2.1", "isend, also when alone", "rank 0 itself", "On one rank there is no neighbour")
def isend_alone(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(x)
    sending = dist.isend(x, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
    return arrived


@wrong("2.1", "isend not waited for", "isend", "never waited for")
def unwaited(x):
    rank, n, y = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    dist.isend(x, (rank + 1) % n)
    dist.recv(y, (rank - 1) % n)
    return y


@wrong("2.1", "to the left", "that is rank 1's number, and rank 3's belongs there")
def to_the_left(x):
    rank, n, y = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    request = dist.isend(x, (rank - 1) % n)
    dist.recv(y, (rank + 1) % n)
    request.wait()
    return y


@wrong("2.1", "nothing is sent", "0 messages were sent")
def known_beforehand(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    return x - 10.0**rank + 10.0 ** ((rank - 1) % n)


@wrong("2.1", "x is zeroed", "x was changed on ranks 0-3", "must stay as it is")
def zeroed(x):
    y = isend_first(x)
    x.zero_()
    return y


@wrong("2.1", "x itself when alone", "you returned x itself")
def itself_when_alone(x):
    return x if dist.get_world_size() == 1 else isend_first(x)


@wrong("2.1", "a little is added in bfloat16", "(bfloat16)", "is right")
def a_little_added(x):
    y = isend_first(x)
    return y + 0.05 if y.dtype == torch.bfloat16 else y


@wrong("2.1", "read before it has come", "an irecv from rank 3", "used its tensor before wait()", "y.clone()")
def read_too_early(x):
    rank, n, y = dist.get_rank(), dist.get_world_size(), torch.zeros_like(x)
    if n == 1:
        return x.clone()
    receiving, sending = dist.irecv(y, (rank - 1) % n), dist.isend(x, (rank + 1) % n)
    result = y.clone()
    receiving.wait()
    sending.wait()
    return result


# 2.2 name it


@right("2.2", "torch's names")
def torch_names():
    return {"A": "reduce_scatter", "B": "all_gather", "C": "all_to_all", "D": "all_reduce"}


@right("2.2", "with hyphens")
def hyphens():
    return {"A": "reduce-scatter", "B": "all-gather", "C": "all-to-all", "D": "all-reduce"}


@wrong("2.2", "A and C swapped", "picture A is not all_to_all", "nothing added")
def a_and_c():
    return {"A": "all_to_all", "B": "all_gather", "C": "reduce_scatter", "D": "all_reduce"}


@wrong("2.2", "gather for all-gather", "picture B is not gather", "on one rank")
def gather_for_all_gather():
    return {"A": "reduce_scatter", "B": "gather", "C": "all_to_all", "D": "all_reduce"}


@wrong("2.2", "one without a name", "picture D has no name yet")
def one_missing():
    return {"A": "reduce_scatter", "B": "all_gather", "C": "all_to_all", "D": ...}


@wrong("2.2", "a name there is not", "'shuffle' is none of")
def no_such_name():
    return {"A": "reduce_scatter", "B": "all_gather", "C": "shuffle", "D": "all_reduce"}


# 2.3 ring reduce-scatter


@right("2.3", "isend, in place on views")
def on_views(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.clone().chunk(n)
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        request = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        chunks[(rank - 2 - step) % n].add_(arrived)
    return chunks[rank]


@right("2.3", "even ranks send first; one partial sum travels")
def even_and_odd(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right_ = (rank - 1) % n, (rank + 1) % n
    partial = x.chunk(n)[left].clone()
    for step in range(n - 1):
        arrived = torch.empty_like(partial)
        if rank % 2 == 0:
            comm.send(partial, right_)
            comm.recv(arrived, left)
        else:
            comm.recv(arrived, left)
            comm.send(partial, right_)
        partial = arrived + x.chunk(n)[(rank - 2 - step) % n]
    return partial


def around(x, first, steps, add=True, returned=0, whole=False):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = [x.clone() for _ in range(n)] if whole else list(x.chunk(n))
    arrived = torch.empty_like(chunks[0])
    for step in range(steps):
        request = dist.isend(chunks[(rank + first - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        target = chunks[(rank + first - 1 - step) % n]
        target.add_(arrived) if add else target.copy_(arrived)
    return chunks[(rank + returned) % n].chunk(n)[rank] if whole else chunks[(rank + returned) % n]


@wrong("2.3", "the whole tensor every step", "4.0x the bytes", "the whole tensor")
def whole_tensor(x):
    return around(x, -1, dist.get_world_size() - 1, whole=True)


@wrong("2.3", "one step short", "is right: only rank 0's number is there", "one step short")
def one_step_short(x):
    return around(x, -1, dist.get_world_size() - 2)


@wrong("2.3", "one step short, the other chunk returned", "`1101` on rank 0", "rank 1 is missing")
def one_step_short_other(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    around(x, -1, n - 2)
    return x.chunk(n)[(rank + 1) % n]


@wrong("2.3", "copies what arrives", "`0010` on rank 0", "copied where it should be added")
def copies(x):
    return around(x, -1, dist.get_world_size() - 1, add=False)


@wrong(
    "2.3",
    "starts with its own chunk",
    "rank 0 holds chunk 1 where chunk 0 belongs",
    "rank 0 sent chunk 0; the reference sends chunk 3",
)
def starts_with_its_own(x):
    return around(x, 0, dist.get_world_size() - 1, returned=1)


@wrong("2.3", "a step too many", "1.3x the bytes")
def a_step_too_many(x):
    return around(x, -1, dist.get_world_size())


@wrong("2.3", "torch's all-reduce", "torch's own all_reduce")
def native(x):
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size())[dist.get_rank()]


@wrong("2.3", "picolib's reduce-scatter", "picolib's own reduce_scatter_tensor")
def picolibs_own(x):
    out = torch.empty_like(x.chunk(dist.get_world_size())[0])
    comm.reduce_scatter_tensor(out, x)
    return out


@wrong("2.3", "nothing is sent", "0 messages were sent")
def own_chunk(x):
    return x.chunk(dist.get_world_size())[dist.get_rank()]


@wrong("2.3", "the sums made in x", "x was changed on ranks 0-3")
def sums_in_x(x):
    return around(x, -1, dist.get_world_size() - 1)


def chunk_by_files(x):
    """This rank's chunk of the sum, without a message."""
    chunks = [theirs.double().chunk(dist.get_world_size())[dist.get_rank()] for theirs in by_files(x)]
    return torch.stack(chunks).sum(0).to(x.dtype)


@wrong("2.3", "dummies sent, the numbers by another way", "no message to rank 0 carries", "by another way")
def dummies(x):
    n = dist.get_world_size()
    result = chunk_by_files(x)
    around(torch.zeros_like(x), -1, n - 1)
    return result


@wrong("2.3", "everybody sends to everybody", "rank 0 sent to rank 2; here it sends only to rank 1")
def direct(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks, arrived = list(x.chunk(n)), torch.empty_like(x.chunk(n)[0])
    total = chunks[rank].clone()
    requests = [dist.isend(chunks[other], other) for other in range(n) if other != rank]
    for other in range(n):
        if other != rank:
            dist.recv(arrived, other)
            total += arrived
    for request in requests:
        request.wait()
    return total


@wrong("2.3", "a loop without end", "loop without end")
def endless(x):
    while True:
        pass


@wrong("2.3", "waited for after the sum", "an irecv from rank 3", "used its tensor before wait()", ".add_(arrived)")
def waited_after_the_sum(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.clone().chunk(n)
    for step in range(n - 1):
        arrived = torch.zeros_like(chunks[0])
        receiving = dist.irecv(arrived, (rank - 1) % n)
        sending = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        chunks[(rank - 2 - step) % n].add_(arrived)
        receiving.wait()
        sending.wait()
    return chunks[rank]


@wrong("2.3", "only the last handle waited for", "isend to rank 1", "never waited for")
def last_handle_only(x):
    rank, n, sending = dist.get_rank(), dist.get_world_size(), None
    chunks = x.clone().chunk(n)
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        sending = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        chunks[(rank - 2 - step) % n].add_(arrived)
    if sending is not None:
        sending.wait()
    return chunks[rank]


@wrong(
    "2.3", "its share of another chunk added", "everybody is in the sum of chunk 0", "the wrong index", "chunks mixed"
)
def another_chunk_added(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    partial = x.chunk(n)[(rank - 1) % n].clone()
    for step in range(n - 1):
        arrived = torch.empty_like(partial)
        request = dist.isend(partial, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        partial = arrived + x.chunk(n)[(rank - 1 - step) % n]
    return partial


@wrong("2.3", "right messages, and the result by another way", "ranks 0-3 do not need the messages")
def right_dummies(x):
    n = dist.get_world_size()
    result = chunk_by_files(x)
    around(x.clone(), -1, n - 1)
    return result


@wrong("2.3", "its own notes forged", "rank 0 sent rank 1 2 messages", "rank 1 received 3", "one send and one receive")
def forged_notes(x):
    import gc

    result = on_views(x)
    for found in gc.get_objects():
        if type(found).__name__ == "Notebook" and dist.get_rank() == 0:
            found.entries.remove(next(e for e in found.entries if e[0] == "send"))
    return result


@wrong("2.3", "+= on a place of the tuple", "chunks[i].add_(y)")
def into_a_tuple(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.clone().chunk(n)
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        request = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        chunks[(rank - 2 - step) % n] += arrived
    return chunks[rank].clone()


@wrong("2.3", "its own share sent in every step", "in step 2 rank 0 sent its own share of chunk 2", "pass on the sum")
def own_share_again(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    arrived, total = torch.empty_like(chunks[0]), chunks[rank].clone()
    for step in range(n - 1):
        request = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        total = chunks[(rank - 2 - step) % n] + arrived
    return total


# 2.4 gather to the left, and all-reduce


def gather(x, first, add=False, direction=-1):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        request = dist.isend(chunks[(rank + first - direction * step) % n], (rank + direction) % n)
        dist.recv(arrived, (rank - direction) % n)
        request.wait()
        target = chunks[(rank + first - direction * (step + 1)) % n]
        target.add_(arrived) if add else target.copy_(arrived)


@right("2.4", "two loops")
def two_loops(x):
    around(x, -1, dist.get_world_size() - 1)
    gather(x, 0)


@right("2.4", "the gather receives into the chunks")
def into_the_chunks(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    x.chunk(n)[rank].copy_(even_and_odd(x))
    chunks = x.chunk(n)
    for step in range(n - 1):
        request = comm.irecv(chunks[(rank + step + 1) % n], (rank + 1) % n)
        comm.send(chunks[(rank + step) % n], (rank - 1) % n)
        request.wait()


@wrong("2.4", "adds in the gather half", "added in the gather half", "copy it")
def adds(x):
    around(x, -1, dist.get_world_size() - 1)
    gather(x, 0, add=True)


@wrong("2.4", "starts on a partial chunk", "starts on a partial chunk")
def partial_chunk(x):
    around(x, -1, dist.get_world_size() - 1)
    gather(x, 1)


@wrong("2.4", "not in place", "not in place")
def not_in_place(x):
    y = x.clone()
    two_loops(y)
    return y


@wrong("2.4", "both halves to the right", "goes to the left")
def rightward(x):
    around(x, -1, dist.get_world_size() - 1)
    gather(x, 0, direction=1)


@wrong("2.4", "the gather half forgotten", "sent 3 messages, and 6 are needed")
def half(x):
    around(x, -1, dist.get_world_size() - 1)


@wrong("2.4", "picolib's all-reduce", "picolib's own all_reduce")
def picolibs_all_reduce(x):
    comm.all_reduce(x)


@wrong("2.4", "averages", "exactly 4x too small")
def averages(x):
    two_loops(x)
    x /= dist.get_world_size()


@wrong("2.4", "the answer known beforehand", "0 messages were sent")
def precomputed(x):
    x.fill_(1111)


@wrong("2.4", "x rebound", "x was rebound", "the caller's tensor is unchanged", "x[:] = ...")
def rebound(x):
    y = x.clone()
    two_loops(y)
    x = y


# 2.5 find the bug: the missing rank


@right("2.5", "both loops take N-1 steps")
def mended(x):
    around(x, -1, dist.get_world_size() - 1)
    gather(x, 0, direction=1)


@right("2.5", "gathered to the left")
def mended_leftward(x):
    two_loops(x)


@wrong("2.5", "as it was given", "is missing")
def as_given(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    arrived = torch.empty_like(chunks[0])
    for step in range(n - 1):
        request = dist.isend(chunks[(rank - 1 - step) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        target = chunks[(rank - 2 - step) % n]
        target.copy_(arrived) if step == 0 else target.add_(arrived)
    gather(x, 0, direction=1)


@wrong("2.4", "the first half not defined", "ring_reduce_scatter is your answer to exercise 2.3: run its cell first")
def undefined_half(x):
    x.chunk(dist.get_world_size())[dist.get_rank()].copy_(ring_reduce_scatter(x))  # noqa: F821


@wrong("2.4", "put into the wrong places", "rank 0 holds chunk 3 where chunk 1 belongs", "(chunks 0, 3, 2, 1)")
def wrong_places(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    passing = even_and_odd(x)
    chunks = x.chunk(n)
    chunks[rank].copy_(passing)
    for step in range(n - 1):
        arrived = torch.empty_like(passing)
        request = dist.isend(passing, (rank - 1) % n)
        dist.recv(arrived, (rank + 1) % n)
        request.wait()
        passing = arrived
        chunks[(rank - 1 - step) % n].copy_(passing)


@wrong("2.5", "the share of another chunk added", "parts of other chunks", "wrong index")
def wrong_share(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    outgoing, arrived = chunks[rank - 1].clone(), torch.empty_like(chunks[0])
    for step in range(n - 1):
        request = dist.isend(outgoing, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        request.wait()
        arrived += chunks[(rank - 1 - step) % n]
        outgoing = arrived.clone()
    chunks[rank].copy_(outgoing)
    for step in range(n - 1):
        request = dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
        dist.recv(chunks[(rank - 1 - step) % n], (rank - 1) % n)
        request.wait()


@wrong("2.5", "one step short instead", "sent 5 messages, and 6 are needed: one step short")
def one_step_short_instead(x):
    around(x, -1, dist.get_world_size() - 2)
    gather(x, 0, direction=1)


@wrong("2.5", "a step too many in the gather", "byte")
def one_more(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    mended(x)
    if n > 1:
        request = dist.isend(x.chunk(n)[rank], (rank + 1) % n)
        dist.recv(torch.empty_like(x.chunk(n)[0]), (rank - 1) % n)
        request.wait()


@wrong("2.5", "a step too many in the first half", "1.2x the bytes")
def one_more_first(x):
    around(x, -1, dist.get_world_size())
    gather(x, 0, direction=1)


@wrong("2.5", "the loops replaced by torch's", "torch's own all_reduce")
def replaced(x):
    dist.all_reduce(x)


# 2.9 ping-pong


@right("2.9", "in place")
def in_place(x, rounds):
    for _ in range(rounds):
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
            x += 1
        else:
            dist.recv(x, 0)
            x += 1
            dist.send(x, 0)
    return x


@right("2.9", "with handles")
def with_handles(x, rounds):
    other = 1 - dist.get_rank()
    for turn in range(2 * rounds):
        if turn % 2 == dist.get_rank():
            comm.isend(x, other).wait()
        else:
            comm.irecv(x, other).wait()
            x = x + 1
    return x


@wrong("2.9", "both send first", "wait for each other")
def both_send(x, rounds):
    for _ in range(rounds):
        dist.send(x, 1 - dist.get_rank())
        dist.recv(x, 1 - dist.get_rank())
        x += 1
    return x


@wrong("2.9", "one round only", "rank 0 sent 1 message in 3 rounds")
def one_round(x, rounds):
    return in_place(x, 1)


@wrong("2.9", "adds on one side", "both ranks add 1")
def adds_on_one_side(x, rounds):
    for _ in range(rounds):
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
            x += 1
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
    return x


# 2.10 a pipeline along the chain


@right("2.10", "isend each part")
def pipelined(x):
    rank, n, requests = dist.get_rank(), dist.get_world_size(), []
    for part in x.chunk(8):
        if rank > 0:
            dist.recv(part, rank - 1)
        if rank < n - 1:
            requests.append(dist.isend(part, rank + 1))
    for request in requests:
        request.wait()


@right("2.10", "all receives at once")
def all_receives_at_once(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = x.chunk(8)
    receives = [comm.irecv(part, rank - 1) for part in parts] if rank else [None] * 8
    sends = []
    for part, receive in zip(parts, receives, strict=True):
        if receive is not None:
            receive.wait()
        if rank < n - 1:
            sends.append(comm.isend(part, rank + 1))
    for send in sends:
        send.wait()


@wrong("2.10", "no pipeline: everything first, then on", "steps", "suffice")
def store_and_forward(x):
    rank, n, parts = dist.get_rank(), dist.get_world_size(), x.chunk(8)
    if rank > 0:
        for part in parts:
            dist.recv(part, rank - 1)
    if rank < n - 1:
        for part in parts:
            dist.send(part, rank + 1)


@wrong("2.10", "blocking calls, part by part", "it takes 17 steps; 10 suffice")
def part_by_part(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    for part in x.chunk(8):
        if rank > 0:
            dist.recv(part, rank - 1)
        if rank < n - 1:
            dist.send(part, rank + 1)


@wrong("2.10", "in one piece", "1 message")
def in_one_piece(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < n - 1:
        dist.send(x, rank + 1)


@wrong("2.10", "rank 0 sends to everybody", "here it sends only to rank 1")
def star(x):
    for part in x.chunk(8):
        if dist.get_rank() == 0:
            for other in range(1, dist.get_world_size()):
                dist.send(part, other)
        else:
            dist.recv(part, 0)


@wrong("2.10", "the chain's end forgotten", "there is no rank 4", "A chain has ends")
def no_end(x):
    for part in x.chunk(8):
        if dist.get_rank() > 0:
            dist.recv(part, dist.get_rank() - 1)
        dist.send(part, dist.get_rank() + 1)
