"""Answers to the exercises of sitting 01B."""

import torch
import torch.nn.functional as F

from . import right, wrong

# 1.4 recompute


class Again(torch.autograd.Function):
    """The layer's input is kept; in backward it runs again."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.layer(x)
        torch.autograd.backward(output, gradient)
        return x.grad, None


@right("1.4", "a Function for each layer")
def function_for_each(layers, x):
    for layer in layers:
        x = Again.apply(x, layer)
    return x


@right("1.4", "with autograd.grad, parameters as inputs")
def with_grad(layers, x):
    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer, *parameters):
            ctx.layer = layer
            ctx.save_for_backward(x)
            return layer(x)  # no graph inside a Function's forward

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().requires_grad_(True)
            parameters = list(ctx.layer.parameters())
            with torch.enable_grad():
                found = torch.autograd.grad(ctx.layer(x), [x, *parameters], gradient)
            return found[0], None, *found[1:]

    for layer in layers:
        x = Layer.apply(x, layer, *layer.parameters())
    return x


@wrong("1.4", "keeps everything", "after the forward pass 40 times the input is held", "8 are enough")
def keeps_everything(layers, x):
    for layer in layers:
        x = layer(x)
    return x


@wrong("1.4", "no graph at all", "a tensor without a graph", "nothing is recorded")
def no_graph(layers, x):
    with torch.no_grad():
        for layer in layers:
            x = layer(x)
    return x


@wrong("1.4", "returns nothing", "your function returned nothing: return what the last layer puts out")
def returns_nothing(layers, x):
    function_for_each(layers, x)


@wrong("1.4", "the whole stack as one piece", "but during backward", "Make each layer a piece of its own")
def one_piece(layers, x):
    return Again.apply(x, torch.nn.Sequential(*layers))


@wrong("1.4", "only the input's gradient", "`0.0.weight` has no gradient", "through its parameters too")
def input_only(layers, x):
    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer):
            ctx.layer = layer
            ctx.save_for_backward(x)
            return layer(x)

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                (found,) = torch.autograd.grad(ctx.layer(x), x, gradient)
            return found, None

    for layer in layers:
        x = Layer.apply(x, layer)
    return x


@wrong("1.4", "forgets the incoming gradient", "differs", "Is the incoming gradient passed on")
def forgets_the_incoming(layers, x):
    class Layer(Again):
        @staticmethod
        def backward(ctx, gradient):
            return Again.backward(ctx, torch.ones_like(gradient))

    for layer in layers:
        x = Layer.apply(x, layer)
    return x


@wrong("1.4", "from the first input each time", "layer 0 runs")
def from_the_first(layers, x):
    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, first, number):
            ctx.number = number
            ctx.save_for_backward(first)
            return layers[number](x)

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach()
            with torch.no_grad():
                for layer in layers[: ctx.number]:
                    x = layer(x)
            x.requires_grad_()
            with torch.enable_grad():
                output = layers[ctx.number](x)
            torch.autograd.backward(output, gradient)
            return x.grad, None, None

    first = x.detach()
    for number in range(len(layers)):
        x = Layer.apply(x, first, number)
    return x


@wrong("1.4", "forgets to detach", "graph a second time", "detach() it")
def forgets_to_detach(layers, x):
    class Layer(Again):
        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                output = ctx.layer(x)
            torch.autograd.backward(output, gradient)
            return x.grad, None

    for layer in layers:
        x = Layer.apply(x, layer)
    return x


@wrong("1.4", "torch's own", "your function calls torch.utils.checkpoint")
def torchs_checkpoint(layers, x):
    from torch.utils.checkpoint import checkpoint

    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


# 1.5 master weights


@right("1.5", "in place, without a graph")
def masters_in_place(parameters, masters, lr):
    with torch.no_grad():
        for p, master in zip(parameters, masters, strict=True):
            master -= lr * p.grad.float()
            p.copy_(master)


@right("1.5", "add_ and data")
def masters_by_data(parameters, masters, lr):
    for i, p in enumerate(parameters):
        masters[i].add_(p.grad.to(torch.float32), alpha=-lr)
        p.data[...] = masters[i].to(p.dtype)


@wrong("1.5", "in bf16", "100 updates are lost", "1 - 0.001 rounds back to 1")
def in_bf16(parameters, masters, lr):
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad


@wrong("1.5", "masters made anew from the parameters", "100 updates are lost", "It has to be kept")
def made_anew(parameters, masters, lr):
    with torch.no_grad():
        for p, master in zip(parameters, masters, strict=True):
            master.copy_(p)
            master -= lr * p.grad.float()
            p.copy_(master)


@wrong("1.5", "with a graph", "leaf Variable", "write into it in `with torch.no_grad():`")
def with_a_graph(parameters, masters, lr):
    for p, master in zip(parameters, masters, strict=True):
        master -= lr * p.grad.float()
        p.copy_(master)


@wrong("1.5", "the first two parameters only", "master 2 is", "It has never moved")
def first_two_only(parameters, masters, lr):
    masters_in_place(parameters[:2], masters[:2], lr)


@wrong("1.5", "never copies back", "the masters have moved, and no parameter has")
def never_copies_masters_back(parameters, masters, lr):
    for p, master in zip(parameters, masters, strict=True):
        master -= lr * p.grad.float()


@wrong("1.5", "parameters become float32", "after the step a parameter is float32")
def becomes_float32(parameters, masters, lr):
    for p, master in zip(parameters, masters, strict=True):
        master -= lr * p.grad.float()
        p.data = master.clone()


@wrong("1.5", "parameters in new memory", "lives in new memory")
def new_memory(parameters, masters, lr):
    for p, master in zip(parameters, masters, strict=True):
        master -= lr * p.grad.float()
        p.data = master.bfloat16()


@wrong("1.5", "copies before the step", "is not its master's rounding")
def copies_before(parameters, masters, lr):
    with torch.no_grad():
        for p, master in zip(parameters, masters, strict=True):
            p.copy_(master)
            master -= lr * p.grad.float()


@wrong("1.5", "rounds the update", "turn the gradient into float32 first")
def rounds_the_update(parameters, masters, lr):
    with torch.no_grad():
        for p, master in zip(parameters, masters, strict=True):
            master -= lr * p.grad
            p.copy_(master)


@wrong("1.5", "the wrong way", "It went the other way")
def wrong_way(parameters, masters, lr):
    masters_in_place(parameters, masters, -lr)


@wrong("1.5", "clears the gradients", "after the step .grad of parameter 0 is None", "zero_grad()")
def clears_gradients(parameters, masters, lr):
    masters_in_place(parameters, masters, lr)
    for p in parameters:
        p.grad = None


@wrong("1.5", "zeroes the gradients", ".grad of parameter 0 is changed by the step", "a tensor of its own")
def zeroes_gradients(parameters, masters, lr):
    masters_in_place(parameters, masters, lr)
    for p in parameters:
        p.grad.zero_()


@wrong("1.5", "new masters in the list", "masters[i] = … puts a new one into the list")
def new_masters(parameters, masters, lr):
    with torch.no_grad():
        for i, p in enumerate(parameters):
            masters[i] = masters[i] - lr * p.grad.float()
            p.copy_(masters[i])


@wrong("1.5", "a master that is forgotten", "100 updates are lost", "master -= … changes this one")
def forgotten_master(parameters, masters, lr):
    with torch.no_grad():
        for p, master in zip(parameters, masters, strict=True):
            master = master - lr * p.grad.float()
            p.copy_(master)


@wrong("1.5", "a learning rate of its own", "It steps with a learning rate of 0.001; here lr is 0.004")
def own_rate(parameters, masters, lr):
    masters_in_place(parameters, masters, 0.001)


@wrong("1.5", "masters of its own", "100 updates are lost", "in the master itself")
def own_masters(parameters, masters, lr):
    own = own_masters.__dict__.setdefault("kept", {})
    with torch.no_grad():
        for p in parameters:
            master = own.setdefault(id(p), p.detach().clone())
            master -= lr * p.grad
            p.copy_(master)


@wrong("1.5", "the first parameter only", "master 1 is", "It has never moved")
def first_only(parameters, masters, lr):
    masters_in_place(parameters[:1], masters[:1], lr)


@wrong("1.5", "torch's own", "your function calls torch.optim")
def torchs_sgd(parameters, masters, lr):
    for master, p in zip(masters, parameters, strict=True):
        master.grad = p.grad.float()
    torch.optim.SGD(masters, lr=lr).step()
    with torch.no_grad():
        for p, master in zip(parameters, masters, strict=True):
            p.copy_(master)


# 1.6 find the bug


@right("1.6", "backward in the loop")
def backward_in_the_loop(model, micro_batches):
    total = 0.0
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets) / len(micro_batches)
        loss.backward()
        total += loss.item()
    return total


@right("1.6", "sums over rows, divided by all rows; a detached tensor")
def sums_over_rows(model, micro_batches):
    rows = sum(len(targets) for _, targets in micro_batches)
    losses = []
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets, reduction="sum") / rows
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


@right("1.6", "gradients by autograd.grad, added up by hand")
def added_by_hand(model, micro_batches):
    total, parameters = 0.0, list(model.parameters())
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets) / len(micro_batches)
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = g if p.grad is None else p.grad + g
        total += loss.item()
    return total


@wrong("1.6", "as it was given", "every gradient is exactly 4x too big", "a sum of 4 means")
def as_given(model, micro_batches):
    total = 0
    for inputs, targets in micro_batches:
        total = total + F.cross_entropy(model(inputs), targets)
    total.backward()
    return total


@wrong("1.6", "the mean, but all graphs until the end", "held 4x what one micro-batch needs", "graphs live on")
def graphs_until_the_end(model, micro_batches):
    total = sum(F.cross_entropy(model(inputs), targets) for inputs, targets in micro_batches)
    (total / len(micro_batches)).backward()
    return total.item() / len(micro_batches)


@wrong("1.6", "in the loop, not divided", "every gradient is exactly 4x too big", "Divide each micro-batch's loss")
def not_divided(model, micro_batches):
    total = 0.0
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        total += loss.item()
    return total / len(micro_batches)


@wrong("1.6", "backward on the running total", "graph a second time", "not on the running total", "loss.item()")
def running_total(model, micro_batches, **options):
    total = 0
    for inputs, targets in micro_batches:
        total = total + F.cross_entropy(model(inputs), targets) / len(micro_batches)
        total.backward(**options)
    return total.item()


@wrong("1.6", "the same with retain_graph=True", "count 4x, 3x, 2x, 1x", "not on the running total")
def retained_total(model, micro_batches):
    return running_total(model, micro_batches, retain_graph=True)


@wrong("1.6", "all but the first divided", "count 4x, 1x, 1x, 1x", "Divide every loss by m, not some of them")
def all_but_the_first_divided(model, micro_batches):
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches):
        loss = F.cross_entropy(model(inputs), targets) / (len(micro_batches) if number else 1)
        loss.backward()
        total += loss.item()
    return total


@wrong("1.6", "256 rows written out", "with 3 micro-batches")
def rows_written_out(model, micro_batches):
    total = 0.0
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets, reduction="sum") / (256 * len(micro_batches))
        loss.backward()
        total += loss.item()
    return total


@wrong("1.6", "divided twice", "every gradient is exactly 4x too small")
def divided_twice(model, micro_batches):
    total = backward_in_the_loop(model, micro_batches)
    for p in model.parameters():
        p.grad /= len(micro_batches)
    return total


@wrong("1.6", "clears the gradients in the loop", "those of one micro-batch alone, the last of 4")
def clears_in_the_loop(model, micro_batches):
    total = 0.0
    for inputs, targets in micro_batches:
        model.zero_grad()
        loss = F.cross_entropy(model(inputs), targets) / len(micro_batches)
        loss.backward()
        total += loss.item()
    return total


@wrong("1.6", "the whole batch at once", "held 4x what one micro-batch needs")
def whole_batch(model, micro_batches):
    inputs, targets = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.item()


@wrong(
    "1.6", "torch's checkpoint", "your function calls torch.utils.checkpoint.checkpoint", "before the next one is made"
)
def with_checkpoint(model, micro_batches):
    from torch.utils.checkpoint import checkpoint

    losses = [F.cross_entropy(checkpoint(model, x, use_reentrant=False), t) for x, t in micro_batches]
    mean = sum(losses) / len(micro_batches)
    mean.backward()
    return mean.item()


@wrong("1.6", "hooks that keep every graph", "autograd itself held little", "lived at a time, kept in another way")
def hooks_keep_graphs(model, micro_batches):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor.detach()], lambda packed: packed[0]):
        return graphs_until_the_end(model, micro_batches)


@wrong("1.6", "hooks that keep arrays", "lived at a time, kept in another way")
def hooks_keep_arrays(model, micro_batches):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), torch.from_numpy):
        return graphs_until_the_end(model, micro_batches)


@wrong("1.6", "recomputes by hand", "what one micro-batch needs")
def recomputes_by_hand(model, micro_batches):
    losses = [F.cross_entropy(Again.apply(x.requires_grad_(), model), t) for x, t in micro_batches]
    mean = sum(losses) / len(micro_batches)
    mean.backward()
    return mean.item()


@wrong("1.6", "the loss from another forward pass", "the model runs 8 times for 4 micro-batches", "once for each")
def loss_again(model, micro_batches):
    backward_in_the_loop(model, micro_batches)
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), t).item() for x, t in micro_batches) / len(micro_batches)


@wrong("1.6", "steps as well", "has changed. Asked are gradients, no step")
def steps_as_well(model, micro_batches):
    loss = backward_in_the_loop(model, micro_batches)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


@wrong("1.6", "4 written out", "every gradient is 0.75x the right one with 3 micro-batches", "len(micro_batches)")
def four_written_out(model, micro_batches):
    total = 0.0
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets) / 4
        loss.backward()
        total += loss.item()
    return total


@wrong("1.6", "hidden activations kept in a list", "lived at a time, kept in another way")
def keeps_activations(model, micro_batches):
    kept, total = [], 0.0
    for inputs, targets in micro_batches:
        kept.append([model[:2](inputs).detach().repeat(1, 3), inputs])
        total += backward_in_the_loop(model, [(inputs, targets)])
    for p in model.parameters():
        p.grad /= len(micro_batches)
    return total / len(micro_batches)


@wrong("1.6", "the loss of the last one", "the loss returned is", "Is it the mean over all?")
def last_loss(model, micro_batches):
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets)
        (loss / len(micro_batches)).backward()
    return loss.item()


@wrong("1.6", "keeps the graphs it no longer needs", "what one micro-batch needs", "graphs live on")
def retains(model, micro_batches):
    losses = []
    for inputs, targets in micro_batches:
        losses.append(F.cross_entropy(model(inputs), targets) / len(micro_batches))
        losses[-1].backward(retain_graph=True)
    return sum(losses).item()


@wrong("1.6", "returns a graph", "still has a graph", "loss.detach()")
def returns_a_graph(model, micro_batches):
    total = 0
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets) / len(micro_batches)
        loss.backward()
        total = total + loss
    return total


@wrong("1.6", "returns the sum", "the loss returned is", "It is 4x the mean")
def returns_the_sum(model, micro_batches):
    return backward_in_the_loop(model, micro_batches) * len(micro_batches)


@wrong("1.6", "never calls backward", "has no gradient: was backward() called")
def never_backward(model, micro_batches):
    with torch.no_grad():
        return sum(F.cross_entropy(model(inputs), targets).item() for inputs, targets in micro_batches) / 4
