"""Answers to the exercises of sitting 04A."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from . import right, wrong
from .ways_round import by_files, by_store

# 4.1 a step of ZeRO-1


def flat_of(tensors, n):
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return F.pad(flat, (0, -len(flat) % n))


def put_back(parameters, flat):
    pieces = flat[: sum(p.numel() for p in parameters)].split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces, strict=True):
        p.data.copy_(piece.view_as(p))


def mean_of_my_part(parameters):
    n = dist.get_world_size()
    gradients = flat_of([p.grad for p in parameters], n)
    mine = gradients.new_empty(len(gradients) // n)
    dist.reduce_scatter_tensor(mine, gradients)
    return mine / n


def stepped_part(parameters, gradient, state, update):
    flat = flat_of(parameters, dist.get_world_size())
    part = flat.chunk(dist.get_world_size())[dist.get_rank()].clone()
    update(part, gradient, state)
    return flat, part


@right("4.1", "one flat tensor")
def one_flat_tensor(parameters, state, update):
    flat, part = stepped_part(parameters, mean_of_my_part(parameters), state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@right("4.1", "each parameter by itself, the list forms, AVG, and asynchronous")
def each_by_itself(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    for number, p in enumerate(parameters):
        gradients = list(flat_of([p.grad], n).chunk(n))
        mine = torch.empty_like(gradients[0])
        dist.reduce_scatter(mine, gradients, op=dist.ReduceOp.AVG, async_op=True).wait()
        parts = [part.clone() for part in flat_of([p], n).chunk(n)]
        part = parts[rank].clone()
        update(part, mine, state.setdefault(number, {}))
        dist.all_gather(parts, part)
        p.data = torch.cat(parts)[: p.numel()].view_as(p).clone()


@wrong("4.1", "all-reduces, then gathers", "The values are right, but", "1.5x the bytes", "2(N-1)/N·Ψ")
def all_reduce_then_gather(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = flat_of([p.grad for p in parameters], n)
    dist.all_reduce(gradients)
    flat, part = stepped_part(parameters, gradients.chunk(n)[rank] / n, state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "all-reduces, then gathers by lists", "1.5x the bytes")
def all_reduce_then_lists(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = flat_of([p.grad for p in parameters], n)
    dist.all_reduce(gradients)
    flat, part = stepped_part(parameters, gradients.chunk(n)[rank] / n, state, update)
    parts = [torch.empty_like(part) for _ in range(n)]
    dist.all_gather(parts, part)
    put_back(parameters, torch.cat(parts))


@wrong("4.1", "Adam on every rank", "its state holds 4.0x of its share", "update is called with 11 of 11 numbers")
def full_adam(parameters, state, update):
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(gradients)
    flat = torch.cat([p.detach().flatten() for p in parameters])
    update(flat, gradients / dist.get_world_size(), state)
    put_back(parameters, flat)


@wrong("4.1", "Adam on every rank, its state kept elsewhere", "its state holds 4.0x of its share")
def full_adam_hidden(parameters, state, update):
    import picolib

    hidden = vars(picolib).setdefault("_hidden", {}) if "mean" not in state else state
    if float(parameters[0].flatten()[0]) == 0:
        hidden.clear()
    full_adam(parameters, hidden, update)


@wrong("4.1", "no gather", "'s parameters differ from the other ranks'", "told nobody: gather the parts")
def no_gather(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    flat, part = stepped_part(parameters, mean_of_my_part(parameters), state, update)
    flat.chunk(n)[rank].copy_(part)
    put_back(parameters, flat)


@wrong("4.1", "not divided", "exactly 4x too big: the sum over the ranks", "Adam hides it")
def not_divided(parameters, state, update):
    mean = mean_of_my_part(parameters) * dist.get_world_size()
    flat, part = stepped_part(parameters, mean, state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "divided twice", "exactly 4x too small", "divided twice?")
def divided_twice(parameters, state, update):
    mean = mean_of_my_part(parameters) / dist.get_world_size()
    flat, part = stepped_part(parameters, mean, state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "no padding", "Put zeros behind")
def no_padding(parameters, state, update):
    n = dist.get_world_size()
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    mine = gradients.new_empty(len(gradients) // n)
    dist.reduce_scatter_tensor(mine, gradients)


@wrong("4.1", "drops the rest", "elements 8 to 10 (counted from 0) are in nobody's part", "11 does not divide by 4")
def drops_the_rest(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    flat = torch.cat([p.detach().flatten() for p in parameters])
    length = len(flat) // n
    mine = gradients.new_empty(length)
    dist.reduce_scatter_tensor(mine, gradients[: n * length])
    part = flat[rank * length : (rank + 1) * length].clone()
    update(part, mine / n, state)
    front = flat[: n * length].clone()
    dist.all_gather_into_tensor(front, part)
    put_back(parameters, torch.cat([front, flat[n * length :]]))


@wrong("4.1", "4 ranks hard-coded", "Right on 4 ranks, wrong on 3", "the sum divided by 4, and there are 3 ranks")
def four_hard_coded(parameters, state, update):
    mean = mean_of_my_part(parameters) * dist.get_world_size() / 4
    flat, part = stepped_part(parameters, mean, state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "zeros in front", "a few places too far back", "not in front")
def zeros_in_front(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    weights, gradients = (
        F.pad(torch.cat([t.flatten() for t in tensors]), (-11 % n, 0))
        for tensors in ([p.data for p in parameters], [p.grad for p in parameters])
    )
    part = weights.chunk(n)[rank].clone()
    mean = torch.empty_like(part)
    dist.reduce_scatter_tensor(mean, gradients)
    update(part, mean / n, state)
    dist.all_gather_into_tensor(weights, part)
    put_back(parameters, weights)


@wrong("4.1", "autograd watches", "is being modified inplace", "p.detach()")
def watched(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    weights = F.pad(torch.cat([p.flatten() for p in parameters]), (0, -sum(p.numel() for p in parameters) % n))
    part = weights.chunk(n)[rank].clone()
    update(part, mean_of_my_part(parameters), state)
    dist.all_gather_into_tensor(weights, part)
    put_back(parameters, weights)


@wrong("4.1", "its own gradient", "the gradient that update gets is still its own")
def own_gradient(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = flat_of([p.grad for p in parameters], n).chunk(n)[rank]
    flat, part = stepped_part(parameters, mine, state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong(
    "4.1", "another rank's part of the parameters", "meets the gradient of parameter", "Lay parameters and gradients"
)
def another_part(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    flat = flat_of(parameters, n)
    part = flat.chunk(n)[(rank + 1) % n].clone()
    update(part, mean_of_my_part(parameters), state)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "a new state in each step", "in step 2 update begins with an empty state")
def new_state(parameters, state, update):
    one_flat_tensor(parameters, {}, update)


@wrong("4.1", "one state for all parameters", "a part needs the same dict in each step, and one of its own")
def one_state(parameters, state, update):
    for p in parameters:
        one_flat_tensor([p], state, update)


@wrong("4.1", "never copied back", "no parameter has moved", "Gather the parts after it, and write")
def never_copied_back(parameters, state, update):
    flat, part = stepped_part(parameters, mean_of_my_part(parameters), state, update)
    dist.all_gather_into_tensor(flat, part)


@wrong("4.1", "written into the parameters themselves", "a leaf Variable", "write into p.data")
def into_the_leaf(parameters, state, update):
    flat, part = stepped_part(parameters, mean_of_my_part(parameters), state, update)
    dist.all_gather_into_tensor(flat, part)
    for p, piece in zip(parameters, flat[:11].split([p.numel() for p in parameters]), strict=True):
        p.copy_(piece.view_as(p))


@wrong("4.1", "does not communicate", "still its own")
def does_not_communicate(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    flat, part = stepped_part(parameters, flat_of([p.grad for p in parameters], n).chunk(n)[rank] / n, state, update)
    flat.chunk(n)[rank].copy_(part)
    put_back(parameters, flat)


@wrong("4.1", "stops after three steps", "Steps up to 3 are right", "no parameter has moved")
def stops(parameters, state, update):
    if state.get("steps", 0) < 3:
        one_flat_tensor(parameters, state, update)
    else:
        stepped_part(parameters, mean_of_my_part(parameters), state, update)


@wrong("4.1", "does not call update after three steps", "never called update in step 4")
def stops_calling(parameters, state, update):
    if state.get("steps", 0) < 3:
        one_flat_tensor(parameters, state, update)


@wrong("4.1", "numbers by heart", "never called update in step 1")
def by_heart(parameters, state, update):
    for p in parameters:
        p.data -= 0.01


@wrong("4.1", "only rank 0 steps", "ranks 1-3 never called update in step 1")
def only_rank_0(parameters, state, update):
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    dist.reduce(gradients, 0)
    flat = torch.cat([p.detach().flatten() for p in parameters])
    if dist.get_rank() == 0:
        update(flat, gradients / dist.get_world_size(), state)
    dist.broadcast(flat, 0)
    put_back(parameters, flat)


@wrong("4.1", "picolib's ZeroRedundancyOptimizer", "here you write it yourself")
def picolibs_zero(parameters, state, update):
    import picolib

    picolib.ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01).step()


@wrong("4.1", "torch's ZeroRedundancyOptimizer", "here you write it yourself")
def torchs_zero(parameters, state, update):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01).step()


@wrong("4.1", "picolib's zero_1_step", "picolib's own parallel.zero")
def picolibs_step(parameters, state, update):
    from picolib.parallel.zero import zero_1_step

    n = dist.get_world_size()
    flat = flat_of(parameters, n)
    zero_1_step(flat, flat_of([p.grad for p in parameters], n), lambda part, g: update(part, g, state))
    put_back(parameters, flat)


def dummy_reduce_scatter(n):
    dist.reduce_scatter_tensor(torch.empty(1), torch.ones(n))


def dummy_exchange(n):
    dist.all_to_all_single(torch.empty(n), torch.ones(n))


def sum_by_files(mine, dummy=dummy_reduce_scatter):
    """The sum over ranks by files, beside a dummy collective."""
    dummy(dist.get_world_size())
    return sum(by_files(mine))


@wrong("4.1", "by files, and dummies", "ranks 0-3 do not need the reduce-scatters")
def step_by_files(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = sum_by_files(flat_of([p.grad for p in parameters], n)) / n
    flat, part = stepped_part(parameters, gradients.chunk(n)[rank], state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "by the store", "used the store (set)")
def by_the_store(parameters, state, update):
    n = dist.get_world_size()
    gradients = sum(by_store(flat_of([p.grad for p in parameters], n))) / n
    flat, part = stepped_part(parameters, gradients.chunk(n)[dist.get_rank()], state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


def flat_pair(parameters):
    """Flat parameters and gradients, each with a tail of ones up to a multiple of the number of ranks."""
    n, rows = dist.get_world_size(), ([p.detach() for p in parameters], [p.grad for p in parameters])
    flat = [torch.cat([t.flatten() for t in tensors]) for tensors in rows]
    return [F.pad(x, (0, -len(x) % n), value=1.0) for x in flat]


def step_with(parameters, state, update, reduce):
    weights, gradients = flat_pair(parameters)
    part = weights.chunk(dist.get_world_size())[dist.get_rank()].clone()
    update(part, reduce(gradients) / dist.get_world_size(), state)
    dist.all_gather_into_tensor(weights, part)
    put_back(parameters, weights)


@right("4.1", "a reduce-scatter by all_to_all_single, and padding of ones")
def by_all_to_all_single(parameters, state, update):
    def reduce(gradients):
        came = torch.empty_like(gradients)
        dist.all_to_all_single(came, gradients)
        return came.view(dist.get_world_size(), -1).sum(0)

    step_with(parameters, state, update, reduce)


@right("4.1", "a reduce-scatter by all_to_all")
def by_all_to_all(parameters, state, update):
    def reduce(gradients):
        given = list(gradients.chunk(dist.get_world_size()))
        came = [torch.empty_like(x) for x in given]
        dist.all_to_all(came, given)
        return torch.stack(came).sum(0)

    step_with(parameters, state, update, reduce)


@right("4.1", "a reduce to each rank, and padding that is not a number")
def by_reduces(parameters, state, update):
    def reduce(gradients):
        total = sum(p.numel() for p in parameters)
        gradients[total:] = math.nan
        for rank, chunk in enumerate(gradients.chunk(dist.get_world_size())):
            dist.reduce(chunk, rank)
        return gradients.chunk(dist.get_world_size())[dist.get_rank()]

    step_with(parameters, state, update, reduce)


@wrong("4.1", "by files, and dummies of an all-to-all", "do not need the collectives")
def by_files_and_exchanged(parameters, state, update):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradients = sum_by_files(flat_of([p.grad for p in parameters], n), dummy_exchange) / n
    flat, part = stepped_part(parameters, gradients.chunk(n)[rank], state, update)
    dist.all_gather_into_tensor(flat, part)
    put_back(parameters, flat)


@wrong("4.1", "plain DDP, by a copy of the update", "its state holds", "update is called with 15 of 11 numbers")
def by_a_copy_of_the_update(parameters, state, update):
    import copy

    n, rank = dist.get_world_size(), dist.get_rank()
    weights, gradients = (flat_of(t, n) for t in (parameters, [p.grad for p in parameters]))
    dist.all_reduce(gradients)
    update(weights.chunk(n)[rank].clone(), gradients.chunk(n)[rank] / n, state)
    copy.deepcopy(update)(weights, gradients / n, globals().setdefault(f"hidden {len(weights)}", {}))
    put_back(parameters, weights)


@wrong("4.1", "the parameters in state, as a list", "numbers in state that are not the moments")
def a_list_in_state(parameters, state, update):
    one_flat_tensor(parameters, state, update)
    state["w"] = flat_of(parameters, 1).tolist()


@wrong("4.1", "the parameters in state, as an array", "numbers in state that are not the moments")
def an_array_in_state(parameters, state, update):
    one_flat_tensor(parameters, state, update)
    state["w"] = flat_of(parameters, 1).numpy().copy()


@wrong("4.1", "room in float32", "float vs", "make room in their dtype")
def room_in_float32(parameters, state, update):
    n = dist.get_world_size()
    gradients = flat_of([p.grad for p in parameters], n)
    dist.reduce_scatter_tensor(torch.empty(len(gradients) // n), gradients)


@wrong("4.1", "through float32", "Somewhere they went through float32")
def through_float32(parameters, state, update):
    n = dist.get_world_size()
    flat, part = stepped_part(parameters, mean_of_my_part(parameters), state, update)
    gathered = torch.empty(len(part) * n)
    dist.all_gather_into_tensor(gathered, part.float())
    put_back(parameters, gathered)


# 4.2 clip by the global norm


def square_of(gradients):
    return sum((g.double().square().sum() for g in gradients), torch.zeros((), dtype=torch.float64))


def scale(gradients, max_norm, norm):
    for g in gradients:
        g.mul_(min(1.0, max_norm / (float(norm) or max_norm)))


@right("4.2", "squares of the shards, then the others'")
def shards_first(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    norm = (square + square_of(replicated)).sqrt()
    scale([*shards, *replicated], max_norm, norm)
    return norm


@right("4.2", "an Nth of the replicated squares on each rank, PyTorch's 1e-6, a plain number")
def an_nth_each(shards, replicated, max_norm, group):
    share = square_of(replicated).item() / dist.get_world_size(group)
    square = torch.tensor([square_of(shards).item() + share], dtype=torch.float64)
    dist.all_reduce(square, group=group)
    norm = math.sqrt(square.item())
    for g in (*shards, *replicated):
        g *= min(1.0, max_norm / (norm + 1e-6))
    return norm


@wrong("4.2", "local norm", "rank 0 returns the norm", "that is the local norm")
def local_norm(shards, replicated, max_norm, group):
    norm = square_of([*shards, *replicated]).sqrt()
    scale([*shards, *replicated], max_norm, norm)
    return norm


@wrong("4.2", "sum of the ranks' norms", "the sum of the ranks' norms", "Norms do not add up, squares do")
def sum_of_norms(shards, replicated, max_norm, group):
    norm = square_of([*shards, *replicated]).sqrt()
    dist.all_reduce(norm, group=group)
    scale([*shards, *replicated], max_norm, norm)
    return norm


@wrong("4.2", "norms of the shards added", "Norms do not add up, squares do")
def norms_of_shards(shards, replicated, max_norm, group):
    norm = square_of(shards).sqrt()
    dist.all_reduce(norm, group=group)
    norm = norm + square_of(replicated).sqrt()
    scale([*shards, *replicated], max_norm, norm)
    return norm


@wrong("4.2", "replicated counted 4 times", "the replicated gradients are counted 4 times", "after the all-reduce")
def counted_4_times(shards, replicated, max_norm, group):
    square = square_of([*shards, *replicated])
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    scale([*shards, *replicated], max_norm, norm)
    return norm


@wrong("4.2", "replicated forgotten", "the replicated gradients are missing")
def replicated_forgotten(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    scale([*shards, *replicated], max_norm, square.sqrt())
    return square.sqrt()


@wrong("4.2", "no root", "that is its square: the root is missing")
def no_root(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    square += square_of(replicated)
    scale([*shards, *replicated], max_norm, square)
    return square


@wrong("4.2", "mean of the squares", "averaged over the ranks, where they should be added")
def mean_of_squares(shards, replicated, max_norm, group):
    square = square_of([*shards, *replicated])
    dist.all_reduce(square, op=dist.ReduceOp.AVG, group=group)
    scale([*shards, *replicated], max_norm, square.sqrt())
    return square.sqrt()


@wrong("4.2", "ignores the group", "has the parts of all 4 ranks in it", "Pass group=")
def ignores_group(shards, replicated, max_norm, group):
    return shards_first(shards, replicated, max_norm, dist.group.WORLD)


@wrong("4.2", "scales the shards only", "replicated gradients are as they were", "scale them in place")
def shards_only(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    norm = (square + square_of(replicated)).sqrt()
    scale(shards, max_norm, norm)
    return norm


@wrong("4.2", "always scales", "clipping never makes a gradient larger")
def always_scales(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    norm = (square + square_of(replicated)).sqrt()
    for g in (*shards, *replicated):
        g.mul_(max_norm / norm)
    return norm


@wrong("4.2", "scales by the local norm", "by the local norm", "the direction turns")
def scales_by_local(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    norm = (square + square_of(replicated)).sqrt()
    scale([*shards, *replicated], max_norm, square_of([*shards, *replicated]).sqrt())
    return norm


@wrong("4.2", "not in place", "gradients are as they were", "in place")
def not_in_place(shards, replicated, max_norm, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    norm = (square + square_of(replicated)).sqrt()
    shards = [g * min(1.0, max_norm / norm) for g in shards]
    return norm


@wrong("4.2", "returns nothing", "returned None: return the norm before clipping")
def returns_nothing(shards, replicated, max_norm, group):
    shards_first(shards, replicated, max_norm, group)


@wrong("4.2", "a number for each tensor", "one all-reduce of one number is enough")
def number_each(shards, replicated, max_norm, group):
    total = square_of(replicated)
    for number in range(2):
        square = square_of(shards[number : number + 1])
        dist.all_reduce(square, group=group)
        total += square
    scale([*shards, *replicated], max_norm, total.sqrt())
    return total.sqrt()


@wrong("4.2", "leaves out a rank without shards", "Deadlock", "it takes part all the same")
def leaves_out(shards, replicated, max_norm, group):
    square = square_of(shards)
    if shards:
        dist.all_reduce(square, group=group)
    norm = (square + square_of(replicated)).sqrt()
    scale([*shards, *replicated], max_norm, norm)
    return norm


@wrong("4.2", "torch's clip_grad_norm_", "that is the local norm")
def torchs_clip(shards, replicated, max_norm, group):
    parameters = [nn.Parameter(g.clone()) for g in (*shards, *replicated)]
    for p, g in zip(parameters, (*shards, *replicated), strict=True):
        p.grad = g
    return nn.utils.clip_grad_norm_(parameters, max_norm)


@wrong("4.2", "picolib's clip_grad_norm_", "picolib's own parallel.clip")
def picolibs_clip(shards, replicated, max_norm, group):
    from picolib.parallel.clip import clip_grad_norm_

    parameters = [nn.Parameter(g.clone()) for g in shards] or [nn.Parameter(torch.zeros(1))]
    for p, g in zip(parameters, shards, strict=False):
        p.grad = g
    return clip_grad_norm_(parameters, max_norm, groups=[group])


@wrong("4.2", "gathers the shards", "rank 0 called all_gather", "all_reduce is enough")
def gathers(shards, replicated, max_norm, group):
    mine = torch.zeros(16, dtype=torch.float64)
    flat = torch.cat([g.flatten() for g in shards] or [mine[:0]])
    mine[: len(flat)] = flat
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, mine, group=group)
    norm = square_of([*everyones, *replicated]).sqrt()
    scale([*shards, *replicated], max_norm, norm)
    return norm


@wrong("4.2", "a number by heart", "rank 0 returns the norm 1")
def by_heart_norm(shards, replicated, max_norm, group):
    dist.all_reduce(torch.ones(1), group=group)
    return 1.0


@wrong("4.2", "by the store, and a dummy", "used the store (set)")
def clip_by_the_store(shards, replicated, max_norm, group):
    dist.all_reduce(torch.ones(1), group=group)
    return sum(by_store(square_of(shards))).sqrt()


@wrong("4.2", "divides by a norm of 0", "ZeroDivisionError", "Scale only where norm > max_norm")
def divides_by_zero(shards, replicated, max_norm, group):
    norm = norm_of(shards, replicated, group)
    factor = max_norm / norm
    if factor < 1:
        for g in [*shards, *replicated]:
            g.mul_(factor)
    return norm


@wrong("4.2", "leaves out the scalars", "replicated gradients are as they were", "scale them in place")
def leaves_out_the_scalars(shards, replicated, max_norm, group):
    norm = norm_of(shards, replicated, group)
    scale([g for g in [*shards, *replicated] if g.dim()], max_norm, max(norm, 1e-9))
    return norm


@wrong("4.2", "too large an epsilon", "are scaled by 0.29999", "where 0.3")
def too_large_an_epsilon(shards, replicated, max_norm, group):
    norm = norm_of(shards, replicated, group)
    scale([*shards, *replicated], max_norm, norm + 1e-4)
    return norm


@wrong("4.2", "a sum without a start", "'int'", "Begin with torch.zeros((), dtype=torch.float64)")
def sum_without_a_start(shards, replicated, max_norm, group):
    square = sum(g.square().sum() for g in shards)
    return scaled_by(square, [*shards, *replicated], square_of(replicated), max_norm, group)


@wrong("4.2", "an empty list stacked", "non-empty TensorList", "Begin with torch.zeros((), dtype=torch.float64)")
def empty_list_stacked(shards, replicated, max_norm, group):
    square = torch.stack([g.square().sum() for g in shards]).sum()
    return scaled_by(square, [*shards, *replicated], square_of(replicated), max_norm, group)


@wrong("4.2", "begins in float32", "float32", "Gradients are float64 here")
def begins_in_float32(shards, replicated, max_norm, group):
    square = torch.zeros(())
    for g in shards:
        square = square + g.square().sum()
    return scaled_by(square, [*shards, *replicated], square_of(replicated), max_norm, group)


def scaled_by(square, gradients, others, max_norm, group):
    dist.all_reduce(square, group=group)
    norm = float(square + others) ** 0.5
    scale(gradients, max_norm, norm)
    return norm


def norm_of(shards, replicated, group):
    square = square_of(shards)
    dist.all_reduce(square, group=group)
    return float(square + square_of(replicated)) ** 0.5


# 4.6 the optimizer that moved nothing


def adamw(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95))


def sharded(model):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat, model.parameters())
    return flat, nn.Parameter(flat.chunk(dist.get_world_size())[dist.get_rank()].clone())


def averaged(model, batch, shard):
    model(batch).mean().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    shard.grad = torch.empty_like(shard)
    dist.reduce_scatter_tensor(shard.grad, gradient, op=dist.ReduceOp.AVG)


@right("4.6", "built after, with the shard")
def built_after(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = adamw([shard], lr)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@right("4.6", "built before, and given the shard afterwards; picolib's collectives")
def given_the_shard(model, batches, lr):
    from picolib import comm

    optimizer = adamw(model.parameters(), lr)
    flat, shard = sharded(model)
    optimizer.param_groups[0]["params"] = [shard]
    for batch in batches:
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        shard.grad = torch.empty_like(shard)
        comm.reduce_scatter_tensor(shard.grad, gradient, dist.ReduceOp.AVG)
        model.zero_grad()
        optimizer.step()
        comm.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "as given", "after", "every parameter is what it was", "which ones does the optimizer hold?")
def as_given(model, batches, lr):
    optimizer = adamw(model.parameters(), lr)
    flat, shard = sharded(model)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "built later, with the model's parameters", "every parameter is what it was")
def built_later(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = adamw(model.parameters(), lr)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "steps on the local gradients", "each part was moved by its owner's own gradient, not by the mean")
def local_gradients(model, batches, lr):
    optimizer = adamw(model.parameters(), lr)
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    for batch in batches:
        averaged(model, batch, shard)
        optimizer.step()
        model.zero_grad()
        shard.data.copy_(flat.chunk(n)[rank])
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "its own gradient, divided", "each part was moved by its owner's own gradient")
def own_divided(model, batches, lr):
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw([shard], lr)
    for batch in batches:
        model(batch).mean().backward()
        shard.grad = torch.cat([p.grad.flatten() for p in model.parameters()]).chunk(n)[rank] / n
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "other betas", "AdamW with other betas")
def other_betas(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = torch.optim.AdamW([shard], lr=lr)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "the shard alone moves", "The optimizer has moved what it holds", "gather all shards into flat")
def shard_alone(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = adamw([shard], lr)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        optimizer.step()


@wrong("4.6", "a new optimizer in each step", "a new optimizer in each step has no moments")
def new_optimizer(model, batches, lr):
    flat, shard = sharded(model)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        adamw([shard], lr).step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "copies the mean into the whole model", "optimizer state holds 4.0x of its share")
def whole_state(model, batches, lr):
    optimizer = adamw(model.parameters(), lr)
    n = dist.get_world_size()
    for batch in batches:
        model(batch).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
        optimizer.step()
        model.zero_grad()


@wrong("4.6", "copies data in each step", "optimizer state holds 4.0x of its share", "Step on the shard alone")
def copies_data(model, batches, lr):
    optimizer = adamw(model.parameters(), lr)
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    for batch in batches:
        averaged(model, batch, shard)
        gradient = torch.zeros_like(flat)
        gradient.chunk(n)[rank].copy_(shard.grad)
        pieces = gradient.split([p.numel() for p in model.parameters()])
        for p, piece in zip(model.parameters(), pieces, strict=True):
            p.grad = piece.view_as(p)
        optimizer.step()
        model.zero_grad()
        shard.data.copy_(flat.chunk(n)[rank])
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "SGD by hand", "that is plain SGD", "AdamW")
def by_hand(model, batches, lr):
    flat, shard = sharded(model)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        shard.data -= lr * shard.grad
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "the sum in place of the mean", "the gradient that the optimizer gets is exactly 4x too big")
def sum_adamw(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = adamw([shard], lr)
    for batch in batches:
        averaged(model, batch, shard)
        shard.grad *= dist.get_world_size()
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "no gather", "end with other parameters than rank 0", "the others have to be told")
def no_all_gather(model, batches, lr):
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw([shard], lr)
    for batch in batches:
        averaged(model, batch, shard)
        model.zero_grad()
        optimizer.step()
        flat.chunk(n)[rank].copy_(shard.data)


@wrong("4.6", "does not zero the gradients", "backward() adds to the gradients of the step before")
def no_zero_grad(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = adamw([shard], lr)
    for batch in batches:
        averaged(model, batch, shard)
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "stops after three steps", "called model(batch) 3 times for")
def three_steps(model, batches, lr):
    built_after(model, batches[:3], lr)


@wrong("4.6", "does not communicate", "end with other parameters than rank 0")
def no_communication(model, batches, lr):
    optimizer = adamw(model.parameters(), lr)
    for batch in batches:
        model(batch).mean().backward()
        optimizer.step()
        model.zero_grad()


@wrong("4.6", "all-reduces, then gathers", "The values are right, but", "1.5x the bytes")
def all_reduces_moved(model, batches, lr):
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw([shard], lr)
    for batch in batches:
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(gradient)
        shard.grad = gradient.chunk(n)[rank] / n
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "picolib's ZeroRedundancyOptimizer", "here you write it yourself")
def picolibs_zero_again(model, batches, lr):
    import picolib

    optimizer = picolib.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)
    for batch in batches:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@wrong("4.6", "torch's ZeroRedundancyOptimizer", "here you write it yourself")
def torchs_zero_again(model, batches, lr):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)


@right("4.6", "a reduce-scatter by all_to_all_single")
def moved_by_all_to_all(model, batches, lr):
    flat, shard = sharded(model)
    optimizer = adamw([shard], lr)
    for batch in batches:
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()
        came = torch.empty_like(gradient)
        dist.all_to_all_single(came, gradient)
        shard.grad = came.view(dist.get_world_size(), -1).mean(0)
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@right("4.6", "a reduce to each rank")
def moved_by_reduces(model, batches, lr):
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw([shard], lr)
    for batch in batches:
        model(batch).mean().backward()
        parts = torch.cat([p.grad.flatten() for p in model.parameters()]).chunk(n)
        model.zero_grad()
        for other, part in enumerate(parts):
            dist.reduce(part, other)
        shard.grad = parts[rank] / n
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "an optimizer for each rank's part, on every rank", "optimizer state holds 4.0x of its share")
def all_optimizers_everywhere(model, batches, lr):
    flat, _ = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.nn.Parameter(part) for part in flat.chunk(n)]
    order = [rank, *(r for r in range(n) if r != rank)]
    optimizers = [adamw([parts[r]], lr) for r in order]
    for batch in batches:
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()
        dist.all_reduce(gradient)
        for part, mine in zip(parts, gradient.chunk(n), strict=True):
            part.grad = mine / n
        for optimizer in optimizers:
            optimizer.step()


@wrong("4.6", "AdamW by hand", "has used no torch.optim optimizer")
def adamw_by_hand(model, batches, lr):
    flat, shard = sharded(model)
    n, part = dist.get_world_size(), shard.data
    mean, square = torch.zeros_like(part), torch.zeros_like(part)
    for step, batch in enumerate(batches, 1):
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()
        own = torch.empty_like(part)
        dist.reduce_scatter_tensor(own, gradient / n)
        mean.lerp_(own, 0.1)
        square.mul_(0.95).addcmul_(own, own, value=0.05)
        part *= 1 - lr * 0.01
        part -= lr * (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
        dist.all_gather_into_tensor(flat, part)


@wrong("4.6", "by files, and dummies", "ranks 0-3 do not need the reduce-scatters")
def moved_by_files(model, batches, lr):
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw([shard], lr)
    for batch in batches:
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        shard.grad = sum_by_files(gradient).chunk(n)[rank] / n
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)


@wrong("4.6", "by the store", "used the store (set)")
def moved_by_the_store(model, batches, lr):
    flat, shard = sharded(model)
    n, rank = dist.get_world_size(), dist.get_rank()
    optimizer = adamw([shard], lr)
    for batch in batches:
        model(batch).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        shard.grad = sum(by_store(gradient)).chunk(n)[rank] / n
        model.zero_grad()
        optimizer.step()
        dist.all_gather_into_tensor(flat, shard.data)
