"""More answers to the exercises of sitting 05A: right numbers by another way, and right ones that look unusual."""

import torch
import torch.distributed as dist

from . import right, wrong
from .lesson05a import function, passed_on, summed

# 5.1 f and g


def padded(tensor, fill=0.0, **options):
    """Everybody's tensor, by an all-reduce of slots of which each rank fills one."""
    slots = torch.full((dist.get_world_size(), *tensor.shape), fill, dtype=tensor.dtype)
    slots[dist.get_rank()] = tensor
    dist.all_reduce(slots, **options)
    return slots


@wrong("5.1", "an all-reduce of slots as a gather, then a sum", "all-reduces 12 numbers", "x has 3")
def sum_of_slots():
    return function(passed_on, summed), function(lambda x: padded(x).sum(0), passed_on)


@wrong("5.1", "a gather by MAX, then a sum", "f's backward pass all-reduces 12 numbers", "x has 3")
def largest_of_slots():
    gathered = lambda x: padded(x, -float("inf"), op=dist.ReduceOp.MAX).sum(0)  # noqa: E731
    return function(passed_on, gathered), function(summed, passed_on)


@wrong("5.1", "gathers by an operator of torch, beside a dummy", "called all_gather_into_tensor", "One dist.all_reduce")
def by_an_operator():
    def total(tensor):
        functional, n = torch.ops._c10d_functional, dist.get_world_size()
        gathered = functional.all_gather_into_tensor(tensor.contiguous().flatten(), n, dist.group.WORLD.group_name)
        one = torch.ones(1, dtype=tensor.dtype)
        dist.all_reduce(one)
        return functional.wait_tensor(gathered).view(n, *tensor.shape).sum(0) * (one / n)

    return function(passed_on, total), function(total, passed_on)


@wrong("5.1", "one all-reduce more, by an operator of torch", "f's backward pass made 2 all-reduces")
def one_more_by_an_operator():
    def total(tensor):
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce(tensor.clone(), "sum", dist.group.WORLD.group_name))
        return summed(tensor)

    return function(passed_on, total), function(summed, passed_on)


def one_buffer():
    buffers = {}

    def total(tensor):
        buffer = buffers.setdefault(tensor.shape, torch.empty_like(tensor))
        buffer.copy_(tensor)
        dist.all_reduce(buffer)
        return buffer.view_as(buffer)

    return total


@wrong("5.1", "one buffer for all of g's results", "what g returned has changed with its next call")
def one_buffer_for_g():
    total = one_buffer()
    return function(passed_on, summed), function(lambda x: total(x).data, passed_on)


@wrong("5.1", "one buffer for all of f's gradients", "its gradient is not the sum of both", "a tensor of its own")
def one_buffer_for_f():
    return function(passed_on, one_buffer()), function(summed, passed_on)


@wrong("5.1", "always float64", "g(x) is of float64, and x of float32", "keep the dtype")
def always_double():
    return function(passed_on, summed), function(lambda x: summed(x.double()), passed_on)


@wrong("5.1", "no sum without a gradient", "under torch.no_grad()", "whether somebody wants a gradient or not")
def no_sum_without_a_gradient():
    leave = function(summed, passed_on)
    return function(passed_on, summed), lambda x: leave(x) if x.requires_grad else x


@wrong("5.1", "all-reduce in the graph", "gives all_reduce a tensor with a graph", "right here by chance")
def all_reduce_in_the_graph_of_g():
    def g(x):
        y = x * 1.0
        dist.all_reduce(y)
        return y

    return function(passed_on, summed), g


@wrong("5.1", "matrices only", "x must be a matrix")
def matrices_only():
    def total(tensor):
        if tensor.dim() > 2:
            raise ValueError("x must be a matrix")
        return summed(tensor)

    return function(passed_on, total), function(total, passed_on)


@right("5.1", "modules, and picolib's all-reduce, not waited for at once")
def modules():
    from picolib import comm

    def total(tensor):
        tensor = tensor.detach().clone()
        comm.all_reduce(tensor, async_op=True).wait()
        return tensor

    class Passes(torch.nn.Module):
        def __init__(self, forward, backward):
            super().__init__()
            self.apply_both = function(forward, backward)

        def forward(self, x):
            return self.apply_both(x)

    return Passes(passed_on, total), Passes(total, passed_on)


@right("5.1", "setup_context, waited for later, nothing where no gradient is needed")
def setup_context():
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            if not ctx.needs_input_grad[0]:
                return None
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, async_op=True).wait()
            return grad

    class Leave(Enter):
        @staticmethod
        def forward(x):
            return summed(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

    return Enter.apply, Leave.apply
