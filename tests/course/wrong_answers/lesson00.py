"""Answers to the exercises of lesson 00."""

import torch
import torch.distributed as dist

from . import right, wrong
from .ways_round import by_store

# 0.1 your share of 10 items


@right("0.1", "every N-th item")
def every_nth(items):
    return items[dist.get_rank() :: dist.get_world_size()]


@right("0.1", "contiguous, cut at whole-number multiples")
def contiguous(items):
    rank, n = dist.get_rank(), dist.get_world_size()
    return items[len(items) * rank // n : len(items) * (rank + 1) // n]


@wrong("0.1", "N hard-coded", "Right on 4 ranks, wrong on 3", "belong to nobody")
def hard_coded(items):
    return items[dist.get_rank() :: 4]


@wrong("0.1", "len // N, the remainder forgotten", "belong to nobody", "remainder of 2")
def floor(items):
    size = len(items) // dist.get_world_size()
    return items[dist.get_rank() * size : (dist.get_rank() + 1) * size]


@wrong("0.1", "the last item forgotten", "item 9 belongs to nobody")
def last_forgotten(items):
    return items[dist.get_rank() : len(items) - 1 : dist.get_world_size()]


@wrong("0.1", "only rank 0 returns", "ranks 1-3 returned None")
def only_rank_0(items):
    if dist.get_rank() == 0:
        return items[:: dist.get_world_size()]


@wrong("0.1", "everybody takes everything", "item 0 belongs to ranks 0-3")
def everything(items):
    return items


@wrong("0.1", "the last rank takes the whole remainder", "the shares have 2, 2, 2, 4 items")
def remainder_to_the_last(items):
    rank, n = dist.get_rank(), dist.get_world_size()
    size = len(items) // n
    return items[rank * size :] if rank == n - 1 else items[rank * size : (rank + 1) * size]


@wrong("0.1", "rank 0 hands the shares out", "messages sent", "without asking")
def handed_out(items):
    rank, n = dist.get_rank(), dist.get_world_size()
    start = torch.tensor([rank])
    if rank == 0:
        for other in range(1, n):
            dist.send(torch.tensor([other]), other)
    else:
        dist.recv(start, 0)
    return items[int(start) :: n]


@wrong("0.1", "something besides the items", "[1] is none of the items")
def something_besides(items):
    return every_nth(items) + [[1]]


@wrong("0.1", "a range", "rank 0 returned a range; a list of items is asked for")
def a_range(items):
    return range(3)


# 0.2 unblock two ranks


@right("0.2", "one sends first, the other receives first")
def one_turns_round(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    if dist.get_rank() == 0:
        dist.send(mine, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    return theirs


@right("0.2", "isend, then receive, then wait")
def with_isend(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    request = dist.isend(mine, other)
    dist.recv(theirs, other)
    request.wait()
    return theirs


@wrong("0.2", "both receive first", "wait for each other", "The circle is still there")
def both_receive(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    dist.recv(theirs, other)
    dist.send(mine, other)
    return theirs


@wrong("0.2", "both send first", "wait for each other", "The circle is still there")
def both_send(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    dist.send(mine, other)
    dist.recv(theirs, other)
    return theirs


@wrong("0.2", "a barrier added", "The circle is still there")
def barrier_added(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    dist.barrier()
    dist.recv(theirs, other)
    dist.send(mine, other)
    return theirs


@wrong("0.2", "rank 0 never receives", "it never called a matching recv", "one recv on the other side")
def never_receives(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    if dist.get_rank() == 0:
        dist.send(mine, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    return theirs


@wrong("0.2", "rank 1 receives from rank 1", "rank 1 itself", "The other rank is `other`")
def from_itself(mine):
    theirs = torch.empty_like(mine)
    if dist.get_rank() == 0:
        dist.send(mine, 1)
        dist.recv(theirs, 1)
    else:
        dist.recv(theirs, 1)
        dist.send(mine, 0)
    return theirs


@wrong("0.2", "rank 0 receives into mine", "what you return was never filled", "recv has overwritten mine")
def filled_the_wrong_one(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    if dist.get_rank() == 0:
        dist.send(mine, other)
        dist.recv(mine, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    return theirs


@wrong("0.2", "no communication", "0 messages were sent")
def nothing_sent(mine):
    return mine


@wrong("0.2", "one way only", "rank 0 still holds the input")
def one_way(mine):
    theirs = mine.clone()
    if dist.get_rank() == 0:
        dist.send(mine, 1)
    else:
        dist.recv(theirs, 0)
    return theirs


@wrong("0.2", "torch's all-gather", "torch's own all_gather")
def native_gather(mine):
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return both[1 - dist.get_rank()]


@wrong("0.2", "a thousand times the bytes", "1000.0x the bytes")
def thousandfold(mine):
    return one_turns_round(mine.repeat(1000))[: mine.numel()].clone()


@wrong("0.2", "received into mine", "mine was changed on rank 1", "must stay as it is")
def into_mine(mine):
    theirs = one_turns_round(mine)
    return mine.copy_(theirs) if dist.get_rank() else theirs


# 0.3 average gradients by hand


@right("0.3", "all-reduce, then divide")
def sum_then_divide(model, loss):
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@right("0.3", "divide, then picolib's all-reduce")
def divide_then_sum(model, loss):
    from picolib import comm

    (loss / dist.get_world_size()).backward()
    for parameter in model.parameters():
        comm.all_reduce(parameter.grad)


@wrong("0.3", "no division", "every gradient is exactly 4x too big", "summed where it should be averaged")
def no_division(model, loss):
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


@wrong("0.3", "averages the loss only", "0 gradients were sent", "Averaging the loss")
def loss_only(model, loss):
    loss.backward()
    loss = loss.detach()
    dist.all_reduce(loss)
    loss /= dist.get_world_size()


@wrong("0.3", "averages through the store, all-reduces for show", "rank 0 used the store (set)", "in collectives")
def averages_through_the_store(model, loss):
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.clone())
        parameter.grad = torch.stack(by_store(parameter.grad)).mean(0)


@wrong("0.3", "skips lm_head", "`lm_head.weight` differs")
def skips_one(model, loss):
    loss.backward()
    for name, parameter in model.named_parameters():
        if name != "lm_head.weight":
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@wrong("0.3", "divides twice", "exactly 4x too small")
def divides_twice(model, loss):
    (loss / dist.get_world_size()).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("0.3", "averages before backward", "has no gradient")
def no_backward(model, loss):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


@wrong("0.3", "backward forgotten", "p.grad is None: you have not called loss.backward()")
def backward_forgotten(model, loss):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("0.3", "nothing is averaged", "0 gradients were sent")
def only_backward(model, loss):
    loss.backward()


@wrong("0.3", "one flat all-reduce", "1 all-reduce for", "one a parameter")
def flat(model, loss):
    loss.backward()
    everything = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(everything)
    everything /= dist.get_world_size()
    for p, piece in zip(model.parameters(), everything.split([p.numel() for p in model.parameters()]), strict=True):
        p.grad.copy_(piece.view_as(p))


@wrong("0.3", "one flat all-reduce among dummies", "all-reduced 1 number at once", "each p.grad as it is")
def flat_among_dummies(model, loss):
    flat(model, loss)
    for _ in list(model.parameters())[1:]:
        dist.all_reduce(torch.zeros(1))


@wrong("0.3", "one flat all-reduce, and a message", "1 all-reduce for", "one a parameter")
def flat_and_a_message(model, loss):
    flat(model, loss)
    a_message_to_the_right()


@wrong("0.3", "a message besides", "rank 0 also sent 1 message", "one all-reduce a parameter is enough")
def a_message_besides(model, loss):
    sum_then_divide(model, loss)
    a_message_to_the_right()


def a_message_to_the_right():
    rank, n = dist.get_rank(), dist.get_world_size()
    if n > 1:
        request = dist.isend(torch.zeros(1), (rank + 1) % n)
        dist.recv(torch.zeros(1), (rank - 1) % n)
        request.wait()


@wrong("0.3", "a broadcast besides", "rank 0 also called broadcast")
def a_broadcast_besides(model, loss):
    sum_then_divide(model, loss)
    dist.broadcast(torch.zeros(1), 0)


@wrong("0.3", "asynchronous and not waited for", "an asynchronous all_reduce", "never waited for")
def async_unwaited(model, loss):
    (loss / dist.get_world_size()).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, async_op=True)


@wrong("0.3", "picolib's, asynchronous and not waited for", "an asynchronous all_reduce", "never waited for")
def picolibs_async_unwaited(model, loss):
    from picolib import comm

    (loss / dist.get_world_size()).backward()
    for parameter in model.parameters():
        comm.all_reduce(parameter.grad, async_op=True)


@wrong("0.3", "divided before it was waited for", "asynchronous all_reduce", "used its tensor before wait()")
def divided_too_early(model, loss):
    loss.backward()
    for parameter in model.parameters():
        handle = dist.all_reduce(parameter.grad, async_op=True)
        parameter.grad /= dist.get_world_size()
        handle.wait()
