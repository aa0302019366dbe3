"""Exercise 1.5: SGD on bf16 parameters, with float32 masters in which small updates add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from picolib.course.exercise import Case
from picolib.course.exercises.borrowed import calls_into
from picolib.course.exercises.data import generator
from picolib.course.words import apart

STEPS, RATE = 100, 1e-3


def master_cases(world_size: int, seed: int) -> list[Case]:
    """Two weights of 1 that each step moves by 0.001; then three random ones, with another learning rate.

    Arguments of each: (weights, gradient, more weights, their gradient, …), learning rate.
    """
    random = generator(seed, world_size)
    ones = torch.ones(4), torch.ones(4), torch.ones(2, 3), torch.full((2, 3), -1.0)
    shapes = [(3, 5), (3, 5), (7,), (7,), (2, 4), (2, 4)]
    numbers = [torch.randn(shape, generator=random) for shape in shapes]
    return [Case("small steps", ((ones, RATE),), None), Case("random", ((tuple(numbers), 4 * RATE),), None)]


def train_with(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: 100 steps with the learner's function; what is left in parameters and masters.

    Each step gets lists of its own, as nothing but the tensors in them is the model's.
    """
    tensors, rate = arguments
    weights, gradients = tensors[::2], tensors[1::2]
    parameters = [nn.Parameter(w.bfloat16()) for w in weights]
    masters = [w.clone() for w in weights]
    places, dtypes, listed = [p.data_ptr() for p in parameters], [], True
    cleared, changed = set(), set()  # numbers of the parameters whose .grad is not as it was before a step
    with calls_into("torch.optim", "torch.amp") as called:
        for step in range(STEPS):
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = (gradient * _wave(step)).bfloat16()
            kept = [p.grad.clone() for p in parameters]
            handed = list(masters)
            fn(list(parameters), handed, rate)
            dtypes = [str(p.dtype).removeprefix("torch.") for p in parameters]
            cleared |= {i for i, p in enumerate(parameters) if p.grad is None}
            changed |= {i for i, p in enumerate(parameters) if p.grad is not None and not p.grad.equal(kept[i])}
            listed = len(handed) == len(masters) and all(a is b for a, b in zip(handed, masters, strict=True))
            if set(dtypes) != {"bfloat16"} or not listed:
                break
    return {
        "borrowed": called[:1],
        "parameters": list(parameters),
        "masters": masters,
        "dtypes": dtypes,
        "same": [p.data_ptr() == place for p, place in zip(parameters, places, strict=True)],
        "cleared": sorted(cleared),
        "changed": sorted(changed),
        "listed": listed,
    }


def _wave(step: int) -> float:
    return 1 + 0.25 * (step % 3)


def reference(tensors: tuple, rate: float, rounded: bool = False) -> list[torch.Tensor]:
    """float32 masters after plain SGD; `rounded`: as they are when lr·gradient is rounded to bf16 in each step."""
    masters = [w.clone() for w in tensors[::2]]
    for step in range(STEPS):
        for master, gradient in zip(masters, tensors[1::2], strict=True):
            gradient = (gradient * _wave(step)).bfloat16()
            master -= (rate * gradient).float() if rounded else rate * gradient.float()
    return masters


def all_in_bf16(tensors: tuple, rate: float) -> list[torch.Tensor]:
    """What becomes of the parameters without masters."""
    weights = [w.bfloat16() for w in tensors[::2]]
    for step in range(STEPS):
        for weight, gradient in zip(weights, tensors[1::2], strict=True):
            weight -= rate * (gradient * _wave(step)).bfloat16()
    return weights


def judge_masters(attempt: Any) -> str | None:
    """Masters as float32 SGD leaves them, parameters their rounding, in the tensors that the model uses."""
    got, (tensors, rate) = attempt.outputs[0], attempt.case.inputs[0]
    wrong = next((dtype for dtype in got["dtypes"] if dtype != "bfloat16"), None)
    if wrong:
        return (
            f"after the step a parameter is {wrong}: the model would compute in it, with twice the memory. "
            "p.copy_(master) rounds to the parameter's own dtype."
        )
    if not all(got["same"]):
        return "a parameter lives in new memory after the step. Write into it (p.copy_(…)): others hold views of it."
    if not got["listed"]:
        return (
            "after the step the list of masters holds other tensors: masters[i] = … puts a new one into the list, and "
            "the one that is kept from step to step has not moved. Change that one in place: masters[i] -= …, or copy_."
        )
    exact = reference(tensors, rate)
    return (
        _moved(got, tensors, exact, rate)
        or _masters(got, tensors, exact, rate)
        or _rounded(got)
        or _gradients_left(got)
    )


def _moved(got: dict, tensors: tuple, exact: list[torch.Tensor], rate: float) -> str | None:
    first = tensors[::2]
    stuck = all(torch.equal(p, w.bfloat16()) for p, w in zip(got["parameters"], first, strict=True))
    if stuck and not any(torch.equal(m, w) for m, w in zip(got["masters"], first, strict=True)):
        if _one_step_away(got["masters"], tensors, rate):
            return (
                f"after {STEPS} steps the masters stand one step from where they began, and {STEPS} updates are lost: "
                "made from the parameters again each time, a master forgets what was rounded off. It has to be kept."
            )
        return "the masters have moved, and no parameter has: the model never sees the steps. Copy the masters back."
    if stuck:
        return (
            f"after {STEPS} steps no parameter has moved: {STEPS} updates are lost. In bf16 the neighbours of 1 are "
            "0.996 and 1.0078, so 1 - 0.001 rounds back to 1. The update has to add up in float32, in the master "
            "itself: master = … makes another tensor, master -= … changes this one."
        )
    for p, bf16, right, w in zip(got["parameters"], all_in_bf16(tensors, rate), exact, first, strict=True):
        if not torch.equal(p, w.bfloat16()) and torch.equal(p, bf16) and not torch.equal(p, right.bfloat16()):
            lost = float((bf16.float() - right).abs().max())
            return (
                f"the update is added in bf16: after {STEPS} steps a parameter is {lost:.2g} off, as most updates are "
                "smaller than the distance to its neighbours. Add it to the float32 master."
            )
    return None


def _one_step_away(masters: list[torch.Tensor], tensors: tuple, rate: float) -> bool:
    last = [rate * (gradient * _wave(STEPS - 1)).bfloat16().float() for gradient in tensors[1::2]]
    return all(
        torch.allclose(master, weight - step, rtol=0, atol=1e-6)
        for master, weight, step in zip(masters, tensors[::2], last, strict=True)
    )


def _masters(got: dict, tensors: tuple, exact: list[torch.Tensor], rate: float) -> str | None:
    for number, (master, right) in enumerate(zip(got["masters"], exact, strict=True)):
        if master.shape == right.shape and torch.allclose(master, right, rtol=2e-6, atol=2e-6):
            continue
        shown = apart(float(master.flatten()[0]), float(right.flatten()[0]))
        says = f"master {number} is {shown[0]} after {STEPS} steps, where {shown[1]} is right. "
        start = tensors[2 * number]
        if torch.equal(master, start):
            return says + "It has never moved: the update belongs into it."
        if torch.allclose(master - start, start - right, rtol=1e-3):
            return says + "It went the other way: a step goes against the gradient."
        if rate != RATE and torch.allclose(master, reference(tensors, RATE)[number], rtol=1e-5, atol=1e-5):
            return says + f"It steps with a learning rate of {RATE}; here lr is {rate}."
        if torch.allclose(master, reference(tensors, rate, rounded=True)[number], rtol=1e-6, atol=1e-7):
            return says + "lr · gradient was rounded to bf16: turn the gradient into float32 first."
        if torch.equal(master, master.bfloat16().float()):
            return says + "It holds bf16 numbers only: made from the parameter again, it forgets what was rounded off."
        return says + "master -= lr · gradient, in float32."
    return None


def _rounded(got: dict) -> str | None:
    for number, (p, master) in enumerate(zip(got["parameters"], got["masters"], strict=True)):
        if not torch.equal(p, master.bfloat16()):
            return f"the masters are right, but parameter {number} is not its master's rounding: copy after the step."
    return None


def _gradients_left(got: dict) -> str | None:
    """A step reads .grad, and leaves it as it is."""
    if got["cleared"]:
        return (
            f"parameters and masters are right, but after the step .grad of parameter {got['cleared'][0]} is None. A "
            "step leaves it: whoever calls may want its norm, and clears it by zero_grad() before the next backward()."
        )
    if got["changed"]:
        return (
            f"parameters and masters are right, but .grad of parameter {got['changed'][0]} is changed by the step. "
            "Compute lr · gradient in a tensor of its own."
        )
    return None
