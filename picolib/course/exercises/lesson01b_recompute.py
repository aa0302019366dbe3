"""Exercise 1.4: activation checkpointing, judged by what autograd holds, at the end of forward and at its most."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from picolib.course.exercise import Case
from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.data import generator
from picolib.course.words import apart, times
from picolib.plan.memory import measure

LAYERS, BATCH, WIDTH = 8, 16, 8
INSIDE = 5  # what one layer saves, as a multiple of its input: the input, and the widened hidden activation
NO_GRAPH = "a tensor without a graph"
TORCHS = ("torch.utils.checkpoint", "torch.autograd.graph", "torch.distributed.algorithms")


def stack(seed: int, counter: list[int] | None = None) -> nn.ModuleList:
    """Layers h -> 4h -> h in float64, each adding to the stream; `counter` counts how often each one runs."""
    torch.manual_seed(seed)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
                           for _ in range(LAYERS)).double()  # fmt: skip
    if counter is not None:
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, number=number: counter.__setitem__(number, counter[number] + 1))
    return layers


def recompute_cases(world_size: int, seed: int) -> list[Case]:
    """The seed of the weights, and an input."""
    random = generator(seed, world_size)
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=random)
    return [Case("recompute", ((seed % 10_000, x),), None)]


def forward_and_backward(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: a forward pass, then another with its backward pass, through the learner's function."""
    seed, x = arguments
    counter = [0] * LAYERS
    layers, x = stack(seed, counter), x.clone().requires_grad_()
    with measure(layers) as forward, calls_into(*TORCHS) as called:
        output = fn(layers, x)
    if called or not isinstance(output, torch.Tensor) or not output.requires_grad:
        return {"borrowed": _public(called), "kind": _kind(output)}
    del output
    counter[:] = [0] * LAYERS
    with measure(layers) as both:
        output = fn(layers, x)
        _backward(output)
    runs = list(counter)
    gradients = {name: p.grad for name, p in layers.named_parameters()} | {"x": x.grad}
    held = {"forward": forward.activations / x.nbytes, "most": both.activations / x.nbytes}
    return {"borrowed": [], "kind": "", "output": output, "gradients": gradients, "runs": runs, **held}


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


def _public(called: list[str]) -> list[str]:
    """The first call, by the name of its module."""
    return [name.rsplit(".", 1)[0] if "checkpoint" in name else name for name in called[:1]]


def plain(seed: int, x: torch.Tensor) -> dict[str, Any]:
    """The same through the plain loop."""
    layers, x = stack(seed), x.clone().requires_grad_()
    y = x
    for layer in layers:
        y = layer(y)
    (y * torch.arange(WIDTH)).sum().backward()
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
    right = plain(*attempt.case.inputs[0])
    return _output(got, right) or _gradients(got, right) or _held(got) or _runs(got)


def _output(got: dict, right: dict) -> str | None:
    if got["output"].shape == right["output"].shape and torch.allclose(got["output"], right["output"], atol=1e-12):
        return None
    return "the output differs from that of the plain stack: x = layer(x) for each layer."


def _gradients(got: dict, right: dict) -> str | None:
    missing = [name for name in right["gradients"] if got["gradients"][name] is None]
    if missing and missing[0] != "x":
        return (
            f"`{missing[0]}` has no gradient. The layer that runs again in backward needs a backward pass of its own, "
            "through its parameters too: torch.autograd.backward(output, gradient)."
        )
    if missing:
        return "x has no gradient: backward must return that of the layer's input."
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
    if bool((mine.abs() < 1e-15).all()):
        return " It is zero."
    return " Is the incoming gradient passed on to the layer's own backward pass?"


def _held(got: dict) -> str | None:
    whole = LAYERS * INSIDE
    if got["forward"] > LAYERS + 1.01:
        return (
            f"after the forward pass autograd holds {got['forward']:g} times the input; the plain stack holds {whole}, "
            f"and {LAYERS} are enough: the input of each of the {LAYERS} layers."
        )
    if got["most"] > LAYERS + INSIDE + 1.01:
        return (
            f"after the forward pass little is held ({got['forward']:g} times the input), but during backward it is "
            f"{got['most']:g} times: {times(got['most'] / (LAYERS + INSIDE - 1))} what one layer at a time needs. "
            "Make each layer a piece of its own, so that one is computed again when the one after it is done."
        )
    return None


def _runs(got: dict) -> str | None:
    for number, runs in enumerate(got["runs"]):
        if runs != 2:
            return (
                f"right, and little is held; but layer {number} runs {runs} times: twice are enough, once in forward "
                "and once in backward, from its own saved input."
            )
    return None
