"""Answers to 1.4 that keep by other means what they should not, or go wrong on the way back."""

import torch
from torch.autograd.graph import saved_tensors_hooks

from . import right, wrong
from .lesson01b import Again, function_for_each, keeps_everything

KEPT = []  # what a module's global holds, nobody lets go of


def through(function, layers, x):
    """The stack, each layer by this Function."""
    for layer in layers:
        x = function.apply(x, layer)
    return x


class WithGraph(Again):
    """The layer's graph is made in forward already, and kept by `keep`."""

    @classmethod
    def keep(cls, ctx, graph):
        ctx.graph = graph

    @classmethod
    def kept(cls, ctx):
        return ctx.graph

    @classmethod
    def forward(cls, ctx, x, layer):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            cls.keep(ctx, (x, layer(x)))
        return cls.kept(ctx)[1].detach()

    @classmethod
    def backward(cls, ctx, gradient):
        x, output = cls.kept(ctx)
        torch.autograd.backward(output, gradient)
        return x.grad, None


@wrong("1.4", "each layer's graph on ctx", "after the forward pass 40 times the input is held", "on ctx")
def graph_on_ctx(layers, x):
    return through(WithGraph, layers, x)


@wrong("1.4", "each layer's graph in a module's global", "40 times the input is held", "wherever it is kept")
def graph_in_a_global(layers, x):
    class InAGlobal(WithGraph):
        @classmethod
        def keep(cls, ctx, graph):
            KEPT.append(graph)
            ctx.number = len(KEPT) - 1

        @classmethod
        def kept(cls, ctx):
            return KEPT[ctx.number]

    return through(InAGlobal, layers, x)


class ByHand(torch.autograd.Function):
    """The layer's backward pass written out, from its hidden activation, which `put` puts away and `take` takes out."""

    @classmethod
    def forward(cls, ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        hidden = layer[0](x).tanh()
        cls.put(ctx, hidden)
        return layer[2](hidden)

    @classmethod
    def backward(cls, ctx, gradient):
        (x,), hidden, (first, _, last) = ctx.saved_tensors, cls.take(ctx), ctx.layer
        inside = gradient @ last.weight * (1 - hidden**2)
        terms = gradient.T @ hidden, gradient.sum(0), inside.T @ x, inside.sum(0)
        for p, term in zip((last.weight, last.bias, first.weight, first.bias), terms, strict=True):
            p.grad = term if p.grad is None else p.grad + term
        return inside @ first.weight, None


@wrong("1.4", "activations as bytes on ctx", "times the input is held", "Bytes, numbers and arrays need memory")
def bytes_on_ctx(layers, x):
    class Bytes(ByHand):
        @classmethod
        def put(cls, ctx, hidden):
            ctx.shape, ctx.bytes = hidden.shape, hidden.numpy().tobytes()

        @classmethod
        def take(cls, ctx):
            return torch.frombuffer(bytearray(ctx.bytes), dtype=torch.float64).view(ctx.shape)

    return through(Bytes, layers, x)


@wrong("1.4", "activations in a file", "layer 0 runs once: it is to run twice")
def in_a_file(layers, x):
    import tempfile

    folder = tempfile.TemporaryDirectory()

    class File(ByHand):
        @classmethod
        def put(cls, ctx, hidden):
            ctx.folder, ctx.path = folder, f"{folder.name}/{id(ctx)}"
            torch.save(hidden, ctx.path)

        @classmethod
        def take(cls, ctx):
            return torch.load(ctx.path)

    return through(File, layers, x)


@wrong("1.4", "hooks that keep everything", "40 times the input is held", "by a hook")
def hooks_that_keep(layers, x):
    with saved_tensors_hooks(lambda tensor: [tensor.detach()], lambda packed: packed[0]):
        return keeps_everything(layers, x)


@wrong("1.4", "hooks that turn it into arrays", "times the input is held", "arrays need memory as tensors do")
def hooks_with_arrays(layers, x):
    with saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), torch.from_numpy):
        return keeps_everything(layers, x)


@wrong("1.4", "torch's hooks that move it to where it is", "40 times the input is held")
def saved_on_the_cpu(layers, x):
    with torch.autograd.graph.save_on_cpu():
        return keeps_everything(layers, x)


@wrong(
    "1.4",
    "torch's wrapper for modules",
    "your function calls checkpoint_wrapper. This",
    "an autograd.Function of your own",
)
def torchs_wrapper(layers, x):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for layer in layers:
        x = checkpoint_wrapper(layer)(x)
    return x


@wrong("1.4", "torch's for a whole stack", "your function calls torch.utils.checkpoint.checkpoint_sequential")
def torchs_sequential(layers, x):
    from torch.utils.checkpoint import checkpoint_sequential

    return checkpoint_sequential(list(layers), len(layers), x, use_reentrant=False)


@wrong("1.4", "inputs in a global that nobody empties", "the step is over", "ctx.save_for_backward(x)")
def never_emptied(layers, x):
    class Global(Again):
        @staticmethod
        def forward(ctx, x, layer):
            KEPT.append(x.detach())
            return Again.forward(ctx, x, layer)

    return through(Global, layers, x)


@wrong("1.4", "the whole stack again for its first gradient", "but during backward", "a piece of its own")
def all_again_at_once(layers, x):
    graphs, first = [], x.detach()

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer):
            return layer(x)

        @staticmethod
        def backward(ctx, gradient):
            y = first
            for layer in () if graphs else layers:
                y = y.detach().requires_grad_()
                with torch.enable_grad():
                    graphs.append((y, y := layer(y)))
            x, output = graphs.pop()
            torch.autograd.backward(output, gradient)
            return x.grad, None

    return through(Late, layers, x)


@wrong("1.4", "a hook on a tensor that does not hang on x", "x has no gradient", "must hang on x")
def hangs_on_nothing(layers, x):
    inputs, y = [], x.detach()
    with torch.no_grad():
        for layer in layers:
            inputs.append(y)
            y = layer(y)

    def back(gradient):
        for layer, saved in zip(reversed(layers), reversed(inputs), strict=True):
            saved.requires_grad_()
            with torch.enable_grad():
                output = layer(saved)
            torch.autograd.backward(output, gradient)
            gradient = saved.grad
        x.grad = gradient

    y.requires_grad_().register_hook(back)
    return y * 1


class ByGrad(Again):
    """Gradients by autograd.grad, added to the parameters' .grad by hand: each sum is a new tensor."""

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        parameters = list(ctx.layer.parameters())
        with torch.enable_grad():
            output = ctx.layer(x)
        of_x, *found = torch.autograd.grad(output, [x, *parameters], gradient)
        for p, g in zip(parameters, found, strict=True):
            p.grad = g if p.grad is None else p.grad + g
        return of_x, None


@right("1.4", "new tensors in .grad, added up by hand")
def new_gradients(layers, x):
    return through(ByGrad, layers, x)


@wrong("1.4", "new tensors in .grad, and inputs in a global", "the step is over", "times the input lives on")
def new_gradients_and_a_global(layers, x):
    class Global(ByGrad):
        @staticmethod
        def forward(ctx, x, layer):
            KEPT.append(x.detach())
            return Again.forward(ctx, x, layer)

    return through(Global, layers, x)


@wrong("1.4", "puts gradients in place of those that are there", "What .grad held before", "adds to it")
def replaces_gradients(layers, x):
    class Replaces(Again):
        @staticmethod
        def backward(ctx, gradient):
            for p in ctx.layer.parameters():
                p.grad = None
            return Again.backward(ctx, gradient)

    return through(Replaces, layers, x)


@wrong("1.4", "without enable_grad in backward", "does not require grad", "run the layer under torch.enable_grad()")
def without_enable_grad(layers, x):
    class Unrecorded(Again):
        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.layer(x), gradient)
            return x.grad, None

    return through(Unrecorded, layers, x)


@wrong("1.4", "an input that requires no gradient", "the last layer has gradients, and `0.0.weight` has none")
def requires_none(layers, x):
    class NotRequired(Again):
        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach()
            with torch.enable_grad():
                output = ctx.layer(x)
            torch.autograd.backward(output, gradient)
            return x.grad, None

    return through(NotRequired, layers, x)


@wrong("1.4", "one gradient for two arguments", "one gradient for each argument of forward", "None for what")
def one_for_two(layers, x):
    class One(Again):
        @staticmethod
        def backward(ctx, gradient):
            return Again.backward(ctx, gradient)[0]

    return through(One, layers, x)


@wrong("1.4", "recomputes, and once more", "layer 0 runs 3 times: it is to run twice")
def once_more(layers, x):
    function_for_each(layers, x)
    return function_for_each(layers, x)
