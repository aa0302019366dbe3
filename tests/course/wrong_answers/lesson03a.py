"""Answers to the exercises of sitting 03A."""

import torch
import torch.distributed as dist
from torch import nn

from . import right, wrong

# 3.1 wrap it


def copy_all(module, group):
    for t in [*module.parameters(), *module.buffers()]:
        dist.broadcast(t.data, group_src=0, group=group)


def averages(parameter, group):
    dist.all_reduce(parameter.grad, group=group)
    parameter.grad /= dist.get_world_size(group)


@right("3.1", "a hook after each gradient")
def hooked(module, group):
    copy_all(module, group)
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: averages(p, group))


@right("3.1", "a hook on the way of the gradient, picolib's collectives")
def on_the_way(module, group):
    from picolib import comm

    first = dist.get_global_rank(group, 0)
    for t in module.state_dict().values():
        comm.broadcast(t, first, group=group)

    def mean(gradient):
        result = gradient / dist.get_world_size(group)
        comm.all_reduce(result, group=group)
        return result

    for p in module.parameters():
        if p.requires_grad:
            p.register_hook(mean)


def hooks_only(module, group):
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: averages(p, group))


@wrong("3.1", "no broadcast", "rank 1 still has its own: `embed.weight` differs", "Nothing was broadcast")
def no_broadcast(module, group):
    hooks_only(module, group)


def fill_first(module, group, tensors):
    """The first number of each of these tensors, broadcast and put into every place."""
    for t in tensors:
        number = t.data.flatten()[:1].clone()
        dist.broadcast(number, group_src=0, group=group)
        t.data.fill_(number.item())


@wrong("3.1", "one number of each tensor", "Rank 0 broadcasts 7 numbers; parameters and buffers have 19")
def one_number_each(module, group):
    fill_first(module, group, [*module.parameters(), *module.buffers()])
    hooks_only(module, group)


@wrong("3.1", "values in bf16", "It was rounded on the way", "in its own dtype")
def values_in_bf16(module, group):
    for t in [*module.parameters(), *module.buffers()]:
        rounded = t.data.bfloat16()
        dist.broadcast(rounded, group_src=0, group=group)
        t.data.copy_(rounded)
    hooks_only(module, group)


@wrong("3.1", "as objects", "rank 0 called broadcast_object_list; here broadcast and all_reduce are enough")
def as_objects(module, group):
    state = [module.state_dict()]
    dist.broadcast_object_list(state, group_src=0, group=group)
    module.load_state_dict(state[0])
    hooks_only(module, group)


@wrong("3.1", "gradients in float32", "all-reduced gradients in float32, and they are float64", "Keep the dtype")
def gradients_in_float32(module, group):
    def hook(p):
        short = p.grad.float()
        dist.all_reduce(short, group=group)
        p.grad.copy_(short / dist.get_world_size(group))

    copy_all(module, group)
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "only parameters", "`norm.running_mean` differs", "module.buffers()")
def only_parameters(module, group):
    for p in module.parameters():
        dist.broadcast(p.data, group_src=0, group=group)
    hooks_only(module, group)


@wrong("3.1", "the frozen parameter forgotten", "`frozen.weight` differs", "It gets no gradient, but it is used")
def frozen_forgotten(module, group):
    for t in [*(p for p in module.parameters() if p.requires_grad), *module.buffers()]:
        dist.broadcast(t.data, group_src=0, group=group)
    hooks_only(module, group)


@wrong(
    "3.1",
    "a hook on the frozen parameter",
    "a tensor that doesn't require gradient",
    "leave it out of the hooks, and only",
)
def frozen_hooked(module, group):
    copy_all(module, group)
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(lambda p: averages(p, group))


@wrong("3.1", "ignores the group", "Right on 2 ranks, wrong on 4", "That is rank 0's number", "pass group=")
def ignores_group(module, group):
    hooked(module, dist.group.WORLD)


@wrong("3.1", "the hook ignores the group", "mean over all 4 ranks", "its group is ranks 0 and 2 only")
def hook_ignores_group(module, group):
    copy_all(module, group)
    hooks_only(module, dist.group.WORLD)


@wrong("3.1", "rank 0 as the source of every group", "Right on 2 ranks, wrong on 4", "rank 0 is not in the group")
def source_0(module, group):
    for t in [*module.parameters(), *module.buffers()]:
        dist.broadcast(t.data, 0, group=group)
    hooks_only(module, group)


@wrong("3.1", "sum instead of mean", "every gradient is exactly 2x too big", "summed where it should be averaged")
def summed(module, group):
    copy_all(module, group)
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=group))


@wrong("3.1", "divides by the world's size", "exactly 2x too small", "in the group, not in the world")
def divides_by_world(module, group):
    copy_all(module, group)

    def hook(p):
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size()

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "divides twice", "exactly 2x too small", "Was it divided twice?")
def divides_twice(module, group):
    hooked(module, group)
    for p in module.parameters():
        if p.requires_grad:
            p.register_hook(lambda g: g / dist.get_world_size(group))


@wrong("3.1", "no hooks", "every gradient is still its own")
def no_hooks(module, group):
    copy_all(module, group)


@wrong("3.1", "the loop's variable in the lambda", "p.grad is None", "a hook for each parameter", "its last value")
def late_binding(module, group):
    copy_all(module, group)
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _: averages(p, group))


@wrong("3.1", "averages in wrap itself", "wrap runs once, before the first backward pass", "Register a hook")
def wrap(module, group):
    copy_all(module, group)
    for p in module.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


@wrong("3.1", "averages the first time only", "In the second one, rank 0: every gradient is still its own")
def first_time_only(module, group):
    copy_all(module, group)
    for p in module.parameters():
        if p.requires_grad:
            handles = []

            def hook(p, handles=handles):
                averages(p, group)
                handles[0].remove()

            handles.append(p.register_post_accumulate_grad_hook(hook))


@wrong("3.1", "the tied weight twice", "averaged the tied weight `embed.weight` = `head.weight` more than once")
def tied_twice(module, group):
    copy_all(module, group)
    for part in module.modules():
        for p in part.parameters(recurse=False):
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p: averages(p, group))


@wrong("3.1", "torch's DistributedDataParallel", "here you write it yourself")
def torchs_own(module, group):
    nn.parallel.DistributedDataParallel(module, process_group=group)


@wrong("3.1", "picolib's DistributedDataParallel", "here you write it yourself")
def picolibs_own(module, group):
    import picolib

    picolib.DistributedDataParallel(module, process_group=group)


@wrong("3.1", "picolib's overlapped average", "picolib's own parallel.ddp", "with the collectives that it allows")
def picolibs_overlap(module, group):
    from picolib.parallel.ddp import OverlappedAverage

    copy_all(module, group)
    OverlappedAverage(module, 1, group)


@wrong("3.1", "one all-reduce for all", "made 1 all-reduce of 10 elements", "one for each parameter")
def all_at_once(module, group):
    copy_all(module, group)
    parameters = [p for p in module.parameters() if p.requires_grad]
    waiting = []

    def hook(p):
        waiting.append(p)
        if len(waiting) == len(parameters):
            together = torch.cat([p.grad.flatten() for p in waiting])
            dist.all_reduce(together, group=group)
            for p, part in zip(waiting, together.split([p.numel() for p in waiting]), strict=True):
                p.grad.copy_(part.view_as(p) / dist.get_world_size(group))
            waiting.clear()

    for p in parameters:
        p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "never waits", "started an asynchronous all_reduce and never waited for it")
def never_waits(module, group):
    copy_all(module, group)

    def hook(p):
        p.grad /= dist.get_world_size(group)
        dist.all_reduce(p.grad, group=group, async_op=True)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "constants in place of a broadcast", "Rank 0 broadcasts 0 numbers")
def constants(module, group):
    for t in module.state_dict().values():
        t.fill_(1)
    hooks_only(module, group)


@wrong("3.1", "the all-reduce ignores the group", "the sum, divided by 2, over all 4 ranks", "Pass group= to every")
def all_reduce_ignores_group(module, group):
    copy_all(module, group)

    def hook(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size(group)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


@wrong("3.1", "one hook averages everything", "may not have their gradients yet", "it was made for")
def one_hook_for_all(module, group):
    copy_all(module, group)
    parameters = [p for p in module.parameters() if p.requires_grad]

    def hook(_):
        for p in parameters:
            averages(p, group)

    parameters[0].register_post_accumulate_grad_hook(hook)


@wrong("3.1", "one hook averages what is there", "In the second one, ", "still has its own gradient")
def one_hook_for_what_is_there(module, group):
    copy_all(module, group)
    parameters = [p for p in module.parameters() if p.requires_grad]

    def hook(_):
        for p in parameters:
            if p.grad is not None:
                averages(p, group)

    parameters[0].register_post_accumulate_grad_hook(hook)


@wrong("3.1", "a hook that returns something", "hook returned 'list'", "changes p.grad, and returns nothing")
def hook_returns(module, group):
    copy_all(module, group)
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: [averages(p, group)])


@wrong("3.1", "takes a parameter away", "cannot be judged, so it counts as not passed")
def takes_a_parameter_away(module, group):
    hooked(module, group)
    module.norm.weight = None


# 3.2 one loss rule


@right("3.2", "the sum times N over the global count")
def sum_times_n(token_losses):
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count)
    return token_losses.sum() * dist.get_world_size() / count


@right("3.2", "the count as a vector of one number in float32")
def vector_of_one(token_losses):
    count = torch.tensor([float(token_losses.numel())])
    dist.all_reduce(count)
    per_rank = count / dist.get_world_size()
    return token_losses.sum() / per_rank


@wrong("3.2", "mean of means", "of the mean of the ranks' means", "Tokens: 3 on rank 0, 9 on rank 1")
def mean_of_means(token_losses):
    return token_losses.mean()


@wrong("3.2", "mean of means, the count for show", "mean of the ranks' means")
def mean_for_show(token_losses):
    dist.all_reduce(torch.tensor(1.0))
    return token_losses.mean()


@wrong("3.2", "N times too small", "every gradient is exactly 2x too small", "divided by N once more")
def n_times_too_small(token_losses):
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count)
    return token_losses.sum() / count


@wrong("3.2", "local count", "divided by the local count")
def local_count(token_losses):
    count = torch.tensor(float(len(token_losses)))
    return token_losses.sum() * dist.get_world_size() / count


@wrong("3.2", "nan on the empty rank", "rank 1 has 0 tokens and its loss is nan", "a mean over nothing")
def nan_when_empty(token_losses):
    return sum_times_n(token_losses) + 0 * token_losses.mean()


@wrong("3.2", "a mean, divided by all tokens", "a mean was divided once more", "Begin with token_losses.sum()")
def mean_divided_again(token_losses):
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count)
    return token_losses.mean() / count * dist.get_world_size()


@wrong("3.2", "an empty rank counted as one", "an empty rank is counted as one token")
def empty_counts_as_one(token_losses):
    count = torch.tensor(float(max(len(token_losses), 1)))
    dist.all_reduce(count)
    return token_losses.sum() * dist.get_world_size() / count


@wrong("3.2", "no division", "not divided by the number of tokens")
def no_division(token_losses):
    return token_losses.sum()


@wrong("3.2", "the largest count", "the largest of the ranks', not their sum")
def largest_count(token_losses):
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return token_losses.sum() * dist.get_world_size() / count


@wrong("3.2", "the count of the example", "rank 0 all-reduced nothing", "it cannot know")
def constant_count(token_losses):
    return token_losses.sum() * 2 / 12


@wrong("3.2", "no graph on the empty rank", "rank 1 has no tokens and returned a tensor without a graph", "for ever")
def no_graph_when_empty(token_losses):
    loss = sum_times_n(token_losses)
    return loss if len(token_losses) else torch.tensor(0.0)


@wrong(
    "3.2", "a graph of its own on the empty rank", "rank 1 has no tokens", "does not begin at token_losses", "for ever"
)
def own_graph_when_empty(token_losses):
    loss = sum_times_n(token_losses)
    return loss if len(token_losses) else torch.zeros((), requires_grad=True)


@wrong("3.2", "a new tensor with the right number", "does not begin at token_losses", "computed from token_losses")
def new_tensor(token_losses):
    return torch.tensor(sum_times_n(token_losses).item(), requires_grad=True)


@wrong(
    "3.2", "all-reduces the loss, and forgets N", "exactly 2x too small", "rank 0 all-reduced 2 numbers", "the screen"
)
def loss_reduced_without_n(token_losses):
    total, count = token_losses.sum(), torch.tensor(float(len(token_losses)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


@wrong("3.2", "changes what backward needs", "modified by an inplace operation", "Your function had returned by then")
def changed_in_place(token_losses):
    losses = (token_losses / 2).exp()
    result = losses.sum()
    losses += 1
    return result


@wrong("3.2", "all-reduces a number", "A collective works in place, on a tensor")
def reduces_a_number(token_losses):
    count = float(len(token_losses))
    dist.all_reduce(count)
    return token_losses.sum() * dist.get_world_size() / count


@wrong("3.2", "the empty rank leaves", "Deadlock", "a count to give as well")
def empty_leaves(token_losses):
    return sum_times_n(token_losses) if len(token_losses) else token_losses.sum()


@wrong("3.2", "all-reduces the loss too", "returned a tensor without a graph")
def loss_reduced(token_losses):
    total = token_losses.detach().sum()
    dist.all_reduce(total)
    count = torch.tensor(float(len(token_losses)))
    dist.all_reduce(count)
    return total / count


@wrong("3.2", "a number", "rank 0 returned a float")
def a_number(token_losses):
    return float(sum_times_n(token_losses))


@wrong("3.2", "two all-reduces", "made 2 all-reduces of 2 numbers", "one all-reduce of one number")
def two_reductions(token_losses):
    count, ranks = torch.tensor(float(len(token_losses))), torch.tensor(1.0)
    dist.all_reduce(count)
    dist.all_reduce(ranks)
    return token_losses.sum() * ranks / count


@wrong("3.2", "gathers all losses", "rank 0 called all_gather", "all_reduce is enough")
def gathers(token_losses):
    counts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor(float(len(token_losses))))
    return token_losses.sum() * dist.get_world_size() / sum(counts)


@wrong("3.2", "picolib's count", "picolib's own count_global_tokens", "with the collectives that it allows")
def picolibs_count(token_losses):
    from picolib.model import Batch
    from picolib.train import count_global_tokens

    tokens = torch.zeros(1, len(token_losses), dtype=torch.long)
    return token_losses.sum() * dist.get_world_size() / count_global_tokens([Batch(tokens, tokens)])


# 3.6 Adam's alibi


@right("3.6", "digits: the gradient is known")
def digits_test(average):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    average(model, sum((p * 10.0**rank).sum() for p in model.parameters()))
    for p in model.parameters():
        torch.testing.assert_close(p.grad, torch.full_like(p, sum(10.0**r for r in range(n)) / n))


@right("3.6", "one process with the whole batch")
def whole_batch(average):
    n, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model, rows = nn.Linear(3, 2).double(), torch.randn(4 * n, 3, dtype=torch.float64)
    expected = torch.autograd.grad(model(rows).square().mean(), list(model.parameters()))
    average(model, model(rows.chunk(n)[rank]).square().mean())
    assert all(torch.allclose(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@wrong("3.6", "a falling loss with Adam", "N times too big", "wrong versions pass", "a falling loss")
def adam_falls(average):
    torch.manual_seed(dist.get_rank())
    model, x = nn.Linear(4, 1), torch.randn(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        losses.append(loss.item())
        average(model, loss)
        optimizer.step()
    assert losses[-1] < losses[0]


@wrong("3.6", "the same data on all ranks", "averages the loss, and no gradient", "3 of the 5", "data of its own")
def same_data(average):
    model = nn.Linear(2, 1)
    average(model, model(torch.ones(1, 2)).sum())
    for p in model.parameters():
        assert torch.allclose(p.grad, torch.ones_like(p))


@wrong("3.6", "ranks compared with each other only", "N times too big", "3 of the 5 wrong versions pass")
def ranks_agree(average):
    model = nn.Linear(2, 1)
    average(model, sum((p * 10.0 ** dist.get_rank()).sum() for p in model.parameters()))
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    theirs = mine.clone()
    dist.broadcast(theirs, 0)
    assert torch.equal(mine, theirs)


@wrong("3.6", "only the first parameter", "skips the last parameter", "Look at every parameter")
def first_parameter(average):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(2, 1)
    average(model, sum((p * 10.0**rank).sum() for p in model.parameters()))
    assert torch.allclose(next(model.parameters()).grad, torch.tensor(sum(10.0**r for r in range(n)) / n))


@wrong(
    "3.6",
    "a bias whose gradient is 1 everywhere",
    "skips the last",
    "last parameter's gradient is the same on all ranks",
)
def bias_is_one(average):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(1, 1)
    average(model, model(torch.full((1, 1), 10.0**rank)).sum())
    mean = sum(10.0**r for r in range(n)) / n
    for p, right_one in zip(model.parameters(), (mean, 1.0), strict=True):
        assert torch.allclose(p.grad, torch.full_like(p, right_one))


@wrong("3.6", "the expected gradients left in p.grad", "rejects a right version", "p.grad held something already")
def left_in_grad(average):
    n, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model, rows = nn.Linear(3, 2).double(), torch.randn(4 * n, 3, dtype=torch.float64)
    model(rows).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    average(model, model(rows.chunk(n)[rank]).square().mean())
    assert all(torch.allclose(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@wrong("3.6", "to the last bit, in whole numbers", "rejects a right version", "rounding")
def whole_numbers_to_the_last_bit(average):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(1, 1, bias=False)
    average(model, model(torch.full((1, 1), 10.0**rank)).sum())
    assert model.weight.grad.item() == sum(10.0**r for r in range(n)) / n


@wrong("3.6", "to the last bit", "rejects a right version", "rounding")
def to_the_last_bit(average):
    n, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model, rows = nn.Linear(64, 32), torch.randn(4 * n, 64)
    expected = torch.autograd.grad(model(rows).square().mean(), list(model.parameters()))
    average(model, model(rows.chunk(n)[rank]).square().mean())
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@wrong("3.6", "4 ranks hard-coded", "Right on 4 ranks, wrong on 2", "for every number of ranks")
def four_ranks(average):
    model = nn.Linear(2, 1)
    average(model, sum((p * 10.0 ** dist.get_rank()).sum() for p in model.parameters()))
    assert all(torch.allclose(p.grad, torch.tensor(1111 / 4)) for p in model.parameters()), "not 277.75"


@wrong("3.6", "allows a third", "2.4% too big", "allow 1e-4 of the value")
def allows_a_third(average):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(2, 1)
    average(model, sum((p * 10.0**rank).sum() for p in model.parameters()))
    mean = sum(10.0**r for r in range(n)) / n
    assert all(torch.allclose(p.grad, torch.full_like(p, mean), rtol=0.3) for p in model.parameters())


@wrong("3.6", "gradients far smaller than what is allowed", "2.4% too big", "no atol that is large beside it")
def allows_a_hundredth(average):
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(2, 1)
    average(model, sum((p * 10.0 ** (rank - n)).sum() for p in model.parameters()))
    mean = sum(10.0 ** (r - n) for r in range(n)) / n
    assert all(torch.allclose(p.grad, torch.full_like(p, mean), atol=0.01) for p in model.parameters())


@wrong("3.6", "returns instead of asserting", "returned False for a version", "Raise AssertionError")
def returns(average):
    try:
        digits_test(average)
    except AssertionError:
        return False


@wrong("3.6", "rejects everything", "rejects a right version")
def rejects_everything(average):
    average(model := nn.Linear(2, 1), model(torch.ones(1, 2)).sum())
    raise AssertionError("it is wrong")


@wrong("3.6", "guesses without running it", "never called average")
def never_calls(average):
    assert "all_reduce" in (average.__doc__ or "all_reduce")


@wrong("3.6", "rank 0 has nothing to do", "rank 0 has left your test", "Every rank has to make the same calls")
def nothing_on_rank_0(average):
    if dist.get_rank():
        digits_test(average)


@wrong("3.6", "asserts between two runs", "Deadlock", "communicate first, assert at the end")
def asserts_in_between(average):
    for _ in range(2):
        rank, n = dist.get_rank(), dist.get_world_size()
        model = nn.Linear(2, 1)
        average(model, sum((p * 10.0**rank).sum() for p in model.parameters()))
        right_one = torch.tensor(sum(10.0**r for r in range(n)) / n)
        assert rank or all(torch.allclose(p.grad, right_one) for p in model.parameters())


# 3.7 one batch less


def take_step(model, losses, lr):
    count = torch.tensor(0.0 if losses is None else float(len(losses)))
    dist.all_reduce(count)
    if losses is not None:
        (losses.sum() / count).backward()
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.data -= lr * p.grad
        p.grad = None


def steps_of_all(batches, op):
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=op)
    return int(steps)


@right("3.7", "as many steps as the longest has")
def longest(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        take_step(model, model(batches[i]) if i < len(batches) else None, lr)


@right("3.7", "until nobody has tokens, with an empty batch, and the count in the all-reduce of the gradients")
def until_nobody(model, batches, lr):
    waiting, parameters = list(batches), list(model.parameters())
    while True:
        tokens = waiting.pop(0) if waiting else torch.empty(0, 4, dtype=torch.float64)
        model(tokens).sum().backward()
        together = torch.cat([*(p.grad.flatten() for p in parameters), torch.tensor([float(len(tokens))])])
        dist.all_reduce(together)
        *gradients, count = together.split([*(p.numel() for p in parameters), 1])
        if not count:
            return
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p -= lr * gradient.view_as(p) / count.item()
        model.zero_grad()


@right("3.7", "all counts in one all-reduce before the first step; gradients and a flag in another")
def counts_first(model, batches, lr):
    steps, parameters = steps_of_all(batches, dist.ReduceOp.MAX), list(model.parameters())
    counts = torch.tensor([float(len(batches[i])) if i < len(batches) else 0.0 for i in range(steps)])
    dist.all_reduce(counts)
    for i in range(steps):
        if i < len(batches):
            (model(batches[i]).sum() / counts[i]).backward()
        given = [p.grad if i < len(batches) else torch.zeros_like(p) for p in parameters]
        together = torch.cat([*(g.flatten() for g in given), torch.tensor([float(len(batches) > i), 1.0])])
        dist.all_reduce(together)
        for p, gradient in zip(parameters, together[:-2].split([p.numel() for p in parameters]), strict=True):
            p.data -= lr * gradient.view_as(p)
            p.grad = None


@wrong("3.7", "a learning rate of its own", "step with a learning rate of 0.1; here lr is 0.0")
def own_rate(model, batches, lr):
    longest(model, batches, 0.1)


@wrong("3.7", "the parameters of this model only", "not with one process")
def these_parameters(model, batches, lr):
    class These:
        __call__ = staticmethod(model)

        def parameters(self):
            return [model.weight, model.bias]

    longest(These(), batches, lr)


@wrong("3.7", "as given", "Deadlock", "has returned", "Whoever has no batch left still has to take part")
def as_given(model, batches, lr):
    for batch in batches:
        take_step(model, model(batch), lr)


@wrong("3.7", "no zeros without a batch", "p.grad is None on a rank without a batch", "Give zeros there")
def no_zeros(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        count = torch.tensor(float(len(batches[i])) if i < len(batches) else 0.0)
        dist.all_reduce(count)
        if i < len(batches):
            (model(batches[i]).sum() / count).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data -= lr * p.grad
            p.grad = None


@wrong("3.7", "gradients kept from step to step", "still the sum of the step before", "p.grad = None")
def kept_gradients(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        count = torch.tensor(float(len(batches[i])) if i < len(batches) else 0.0)
        dist.all_reduce(count)
        if i < len(batches):
            (model(batches[i]).sum() / count).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.data -= lr * p.grad


@wrong("3.7", "gradients kept, but zeros without a batch", "still the sum of the step before", "p.grad = None")
def kept_but_zeros(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        count = torch.tensor(float(len(batches[i])) if i < len(batches) else 0.0)
        dist.all_reduce(count)
        if i < len(batches):
            (model(batches[i]).sum() / count).backward()
        for p in model.parameters():
            p.grad = p.grad if i < len(batches) else torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.data -= lr * p.grad


@wrong("3.7", "as many steps as all batches", "about 5 more steps after its last batch", "not the sum of the lengths")
def idle_steps(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.SUM)):
        take_step(model, model(batches[i]) if i < len(batches) else None, lr)


@wrong("3.7", "an empty batch of another shape", "too many indices for tensor of dimension 1", "don't build a batch")
def empty_of_another_shape(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        take_step(model, model(batches[i] if i < len(batches) else torch.zeros(0)), lr)


@wrong("3.7", "a part of the first batch", "list index out of range", "perhaps none", "no batches[0]")
def part_of_the_first(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        take_step(model, model(batches[i] if i < len(batches) else batches[0][:0]), lr)


@wrong("3.7", "no count without a batch", "The shape differs under all_reduce", "it has 0 tokens to add")
def no_count(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        if i < len(batches):
            losses, count = model(batches[i]), torch.tensor(float(len(batches[i])))
            dist.all_reduce(count)
            (losses.sum() / count).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if i >= len(batches) else p.grad
            dist.all_reduce(p.grad)
            p.data -= lr * p.grad
            p.grad = None


@wrong("3.7", "drops the last batch everywhere", "2 batches, 6 tokens are lost")
def shortest(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MIN)):
        take_step(model, model(batches[i]), lr)


@wrong("3.7", "stops when anybody has nothing", "2 batches, 6 tokens are lost")
def anybody(model, batches, lr):
    for i in range(100):
        have = torch.tensor(int(i < len(batches)))
        dist.all_reduce(have, op=dist.ReduceOp.MIN)
        if not have:
            return
        take_step(model, model(batches[i]), lr)


@wrong("3.7", "repeats the first batch", "rank 2 has 6 tokens and trained on 9", "padding")
def repeats(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        take_step(model, model(batches[i % len(batches)]), lr)


@wrong("3.7", "the others go on alone", "end with other parameters than rank 0")
def alone(model, batches, lr):
    together = steps_of_all(batches, dist.ReduceOp.MIN)
    for i, batch in enumerate(batches):
        if i < together:
            take_step(model, model(batch), lr)
        else:
            model(batch).mean().backward()
            for p in model.parameters():
                p.data -= lr * p.grad
                p.grad = None


@wrong("3.7", "the finished rank does not step", "rank 2 ends with other parameters than rank 0")
def no_step(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        take_step(model, model(batches[i]) if i < len(batches) else None, lr if i < len(batches) else 0.0)


@wrong("3.7", "divides by the ranks", "all ranks agree, but not with one process", "divided by the tokens of all ranks")
def divides_by_ranks(model, batches, lr):
    for i in range(steps_of_all(batches, dist.ReduceOp.MAX)):
        if i < len(batches):
            model(batches[i]).mean().backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.data -= lr * p.grad / dist.get_world_size()
            p.grad = None


@wrong("3.7", "everybody gets all tokens", "all-reduced", "tokens stay where they are")
def shares_tokens(model, batches, lr):
    rank, n = dist.get_rank(), dist.get_world_size()
    room = torch.zeros(n, 3, 5, 5, dtype=torch.float64)
    for i, batch in enumerate(batches):
        room[rank, i, : len(batch), :4], room[rank, i, : len(batch), 4] = batch, 1
    dist.all_reduce(room)
    for i in range(3):
        tokens = room[:, i].reshape(-1, 5)
        tokens = tokens[tokens[:, 4] == 1][:, :4]
        if len(tokens):
            model(tokens).mean().backward()
            for p in model.parameters():
                p.data -= lr * p.grad
                p.grad = None


@wrong("3.7", "torch's Join and DDP", "here you write it yourself")
def joined(model, batches, lr):
    from torch.distributed.algorithms.join import Join

    ddp = nn.parallel.DistributedDataParallel(model)
    with Join([ddp]):
        for batch in batches:
            ddp(batch).mean().backward()


@wrong("3.7", "gathers the lengths", "rank 0 called all_gather", "all_reduce is enough")
def gathers_lengths(model, batches, lr):
    lengths = [torch.zeros((), dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor(len(batches)))
    for i in range(int(max(lengths))):
        take_step(model, model(batches[i]) if i < len(batches) else None, lr)
