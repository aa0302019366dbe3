"""What exercise 5.1 is tried with: rounds of numbers, both passes of both functions, and calls alive together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from picolib.comm.gradcheck import spmd_gradcheck
from picolib.course import observe
from picolib.course.exercise import Case
from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson05a_common import AFTER, READY_MADE


def conjugate_cases(world_size: int, seed: int) -> list[Case]:
    """Rank r has 10^r where ranks differ; then some rounds of random numbers, the last in float32 and 3 dimensions."""
    random = generator(seed, world_size)
    digits = lambda rank: torch.full((3,), 10.0**rank, dtype=torch.float64)  # noqa: E731
    noise = lambda: torch.randn(2, 3, dtype=torch.float64, generator=random)  # noqa: E731
    one = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    made = [Case("powers", tuple(([_round(one, digits(r), digits(r), one)],) for r in range(world_size)), None)]
    rounds = [
        [(x, noise(), noise(), grad) for _ in range(world_size)]
        for x, grad in ((noise(), noise()) for _ in range(2 + seed % 4))
    ]
    eighths = lambda *shape: torch.randint(1, 80, shape, generator=random) / 8  # noqa: E731 (float32 adds them exactly)
    even = lambda: eighths(1, 1, 1).expand(2, 1, 3)  # noqa: E731
    x, grad = eighths(2, 1, 3), even()
    rounds.append([(x, even(), eighths(2, 1, 3), grad) for _ in range(world_size)])
    return [*made, Case("rounds", tuple(([_round(*r[rank]) for r in rounds],) for rank in range(world_size)), None)]


def _round(f_x: torch.Tensor, f_grad: torch.Tensor, g_x: torch.Tensor, g_grad: torch.Tensor) -> dict[str, tuple]:
    """The same on all ranks: f's input, g's incoming gradient. Each rank's own: f's incoming gradient, g's input."""
    return {"f": (f_x, f_grad), "g": (g_x, g_grad)}


def run_both(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: both passes of both functions, for each round; where there is but one, the gradient check as well."""
    (rounds,) = arguments
    with calls_into(*READY_MADE) as called:
        pair = fn()
        fine = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(callable, pair))
        if not fine:
            return {"kind": type(pair).__name__, "rounds": [], "borrowed": called[:1], "checked": ""}
        functions = dict(zip("fg", pair, strict=True))
        passes = [{name: _passes(functions[name], name, *one[name]) for name in "fg"} for one in rounds]
        fits = all(one[name]["fits"] for one in passes for name in "fg")
        twice = _twice(*pair, *rounds[:2]) if fits and len(rounds) > 1 else None
        borrowed_names = called[:1]
    observe.note(AFTER)
    checked = _gradcheck(*pair) if fits and len(rounds) == 1 else ""
    return {"kind": "", "rounds": passes, "borrowed": borrowed_names, "checked": checked, "twice": twice}


def _passes(function: Callable, name: str, x: torch.Tensor, grad: torch.Tensor) -> dict[str, Any]:
    variable, given = x.clone().requires_grad_(), grad.clone()
    if x.dtype == torch.float32:
        given = given.flatten()[0].expand(grad.shape)  # as y.sum() sends it back: one number for all
    observe.note(f"{name} forward")
    y = function(variable)
    observe.note(f"{name} backward")
    fits = isinstance(y, torch.Tensor) and y.requires_grad and y.shape == grad.shape
    result = y.detach().clone() if isinstance(y, torch.Tensor) else None
    if fits:
        y.backward(given)
    observe.note("between")
    gradient = None if variable.grad is None else variable.grad.clone()
    kept = torch.equal(variable.detach(), x), torch.equal(given, grad)
    return {"kind": type(y).__name__, "fits": fits, "y": result, "x": gradient, "kept": list(kept)}


def _twice(f: Callable, g: Callable, one: dict, two: dict) -> dict[str, Any]:
    """Two calls that are alive together, as of the layers of q and k; and g where nobody wants a gradient."""
    observe.note("twice")
    variable = one["f"][0].clone().requires_grad_()
    torch.autograd.backward([f(variable), f(variable)], [one["f"][1].clone(), two["f"][1].clone()])
    first = g(one["g"][0].clone().requires_grad_())
    g(two["g"][0].clone().requires_grad_())
    first = first.detach().clone()
    with torch.no_grad():
        bare = g(one["g"][0].clone())
    return {"f": variable.grad, "g": first, "bare": bare}


def _gradcheck(f: Callable, g: Callable) -> str:
    """What is wrong, with one element of one rank moved at a time; empty where nothing is."""
    weight = torch.arange(1.0, 3.0, dtype=torch.float64) + dist.get_rank()
    x = torch.tensor([0.3, -0.2], dtype=torch.float64)
    f, g = (lambda x, one=one: one(x if x.requires_grad else x.clone().requires_grad_()) for one in (f, g))
    try:
        spmd_gradcheck(f, x, replicated_input=True)
        spmd_gradcheck(g, weight[:1], replicated_output=True)
        layer = lambda x: x + g(torch.tanh(weight * f(x)))  # noqa: E731
        spmd_gradcheck(layer, x, replicated_input=True, replicated_output=True)
    except AssertionError as error:
        return str(error)
    return ""
