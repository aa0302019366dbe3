"""Exercise 1.4: activation checkpointing, judged by what lives at the end of the forward pass, and at its most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from picolib.course.exercise import Case
from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.live import Live
from picolib.course.words import apart

LAYERS, BATCH, WIDTH = 8, 256, 8  # a large batch, beside which weights and the objects of the graph weigh nothing
INSIDE = 5  # what one layer saves, as a multiple of its input: the input, and the widened hidden activation
AT_WORK = 30  # what may live beside all inputs while one layer is differentiated: 13 to 20 do in right answers
NO_GRAPH = "a tensor without a graph"
# Imported by torch when a gradient is given to backward() for the first time: seconds, and thousands of objects.
LATE_IMPORTS = ("torch.fx.experimental.symbolic_shapes",)
TORCHS = ("torch.utils.checkpoint", "torch.distributed.algorithms")


def stack(seed: int) -> nn.ModuleList:
    """Layers h -> 4h -> h in float64."""
    torch.manual_seed(seed)
    return nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
                         for _ in range(LAYERS)).double()  # fmt: skip


def plain(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """The stack as it would be run without recomputation."""
    for layer in layers:
        x = layer(x)
    return x


def recompute_cases(world_size: int, seed: int) -> list[Case]:
    """The seed of the weights, and an input."""
    random = generator(seed, world_size)
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=random)
    return [Case("recompute", ((seed % 10_000, x),), None)]


def forward_and_backward(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: a forward pass, to see what is called and returned; then a step, and what lives in it."""
    seed, x = arguments
    layers = stack(seed)
    with calls_into(*TORCHS) as called:
        output = fn(layers, x.clone().requires_grad_())
    if called or not isinstance(output, torch.Tensor) or not output.requires_grad:
        return {"borrowed": called[:1], "instead": "an autograd.Function of your own", "kind": _kind(output)}
    del output
    _step(plain, layers, x)  # what torch sets up at the first time is nobody's
    return {"borrowed": [], "kind": "", **_step(fn, layers, x)}


def _step(fn: Callable, layers: nn.ModuleList, x: torch.Tensor) -> dict[str, Any]:
    """A step from gradients of 1 on; x is no leaf, as in a model. Sizes are multiples of that of x."""
    leaf = x.clone().requires_grad_()
    owners = {**dict(layers.named_parameters()), "x": leaf}
    for tensor in owners.values():
        tensor.grad = torch.ones_like(tensor)
    known = [t for owner in owners.values() for t in (owner, owner.grad)]
    x = leaf * 1
    with Live([*known, x], [layer[0].weight for layer in layers]) as live:
        output = fn(layers, x)
        kept = {"objects": live.objects() / x.nbytes, "tensors": live.now / x.nbytes}
        _backward(output)
        output = output.detach().clone()
        anew = live.not_its_own(owner.grad for owner in owners.values() if owner.grad is not None)
        left = (live.objects() + live.now - anew) / x.nbytes
    runs = [live.products[number] - 1 for number in range(len(layers))]  # one product is that of backward
    gradients = {name: gradient_of(tensor) for name, tensor in owners.items()}
    sizes = {**kept, "most": live.most / x.nbytes, "left": left}
    return {"output": output, "gradients": gradients, "runs": runs, **sizes}


def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    """What the step has added to the ones that were there: nothing where .grad is gone."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad - 1


def _backward(output: torch.Tensor) -> None:
    try:
        (output * torch.arange(WIDTH)).sum().backward()
    except RuntimeError as error:
        if "graph a second time" not in str(error):
            raise
        says = f"{error}\nThe input that was saved still hangs on the graph of the layer before it: detach() it."
        raise RuntimeError(says).with_traceback(error.__traceback__) from None


def _kind(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return NO_GRAPH
    return "nothing" if output is None else f"a {type(output).__name__}"


def reference(seed: int, x: torch.Tensor) -> dict[str, Any]:
    """Output and gradients of the plain stack."""
    layers, x = stack(seed), x.clone().requires_grad_()
    y = plain(layers, x)
    _backward(y)
    return {"output": y.detach(), "gradients": {name: p.grad for name, p in layers.named_parameters()} | {"x": x.grad}}


def judge_recomputation(attempt: Any) -> str | None:
    """Output and gradients of the plain stack; L inputs held after forward, one layer more in backward; two runs."""
    got = attempt.outputs[0]
    if got["kind"] and got["kind"] != NO_GRAPH:
        return f"your function returned {got['kind']}: return what the last layer puts out, a tensor."
    if got["kind"]:
        return (
            f"the answer is {NO_GRAPH}: backward() cannot start from it. Under no_grad() nothing is recorded, so "
            "an autograd.Function has to stand in the graph in the layer's place."
        )
    right = reference(*attempt.case.inputs[0])
    return _output(got, right) or _gradients(got, right) or _held(got) or _runs(got) or _left(got)


def _output(got: dict, right: dict) -> str | None:
    if got["output"].shape == right["output"].shape and torch.allclose(got["output"], right["output"], atol=1e-12):
        return None
    return "the output differs from that of the plain stack: x = layer(x) for each layer."


def _gradients(got: dict, right: dict) -> str | None:
    missing = [name for name in right["gradients"] if not got["gradients"][name].any()]
    if "x" in missing[1:] and f"{LAYERS - 1}.2.bias" not in missing:
        return (
            f"the last layer has gradients, and `{missing[0]}` has none: on the way back the chain breaks off. Does "
            "backward return the gradient of the layer's input, and does that input require one when it runs again?"
        )
    if missing and missing[0] != "x":
        return (
            f"`{missing[0]}` has no gradient. The layer that runs again in backward needs a backward pass of its own, "
            "through its parameters too: torch.autograd.backward(output, gradient)."
        )
    if missing:
        return "x has no gradient: what you return must hang on x, layer by layer, as x is the output of other layers."
    for name, exact in right["gradients"].items():
        mine = got["gradients"][name]
        if mine.shape == exact.shape and torch.allclose(mine, exact, rtol=1e-9, atol=1e-12):
            continue
        index = int((mine - exact).abs().argmax())
        shown = apart(float(mine.flatten()[index]), float(exact.flatten()[index]))
        return f"the gradient of `{name}` differs: {shown[0]}, where {shown[1]} is right.{_factor(mine, exact)}"
    return None


def _factor(mine: torch.Tensor, exact: torch.Tensor) -> str:
    if torch.allclose(mine, 2 * exact, rtol=1e-9, atol=1e-12):
        return " It is there twice: does backward add it and return it, or run twice?"
    if torch.allclose(mine, exact - 1, rtol=1e-9, atol=1e-12):
        return " What .grad held before, from another micro-batch, is gone: a backward pass adds to it."
    return " Is the incoming gradient passed on to the layer's own backward pass?"


def _held(got: dict) -> str | None:
    """After the forward pass, and at the most."""
    objects = got["objects"] if got["objects"] > 5 else 0  # a few are there always
    if got["tensors"] + objects > LAYERS + 1.5:
        where = "It counts wherever it is kept: by autograd, on ctx, in a list, by a hook."
        if objects:
            where = "Bytes, numbers and arrays need memory as tensors do."
        return (
            f"after the forward pass {got['tensors'] + objects:.0f} times the input is held; the plain stack holds "
            f"{LAYERS * INSIDE}, and {LAYERS} are enough: the input of each of the {LAYERS} layers. {where}"
        )
    if got["most"] > LAYERS + AT_WORK:
        return (
            f"after the forward pass little is held ({got['tensors']:.0f} times the input), but during backward "
            f"{got['most']:.0f} times the input lives at a time, where {LAYERS + 13} are enough. Make each layer a "
            "piece of its own, so that one is computed again when the one after it is done."
        )
    return None


def _runs(got: dict) -> str | None:
    for number, runs in enumerate(got["runs"]):
        if runs != 2:
            often = "once" if runs == 1 else f"{runs} times"
            return (
                f"right, and little is held; but layer {number} runs {often}: it is to run twice, once in forward "
                "and once in backward, from its own saved input."
            )
    return None


def _left(got: dict) -> str | None:
    if got["left"] > 7:
        return (
            f"the step is over, and {got['left']:.0f} times the input lives on: your function keeps tensors outside "
            "the graph, where nobody lets go of them. ctx.save_for_backward(x) keeps them as long as they are needed."
        )
    return None
