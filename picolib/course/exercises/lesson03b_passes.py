"""The backward passes of exercise 3.4: the learner's hooks run under them, on weights of which one is tied.

Weights come in another order in each step, one rank is slow, sets are ordered in another way on each rank: whoever
relies on luck has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.course import observe
from picolib.course.exercise import Case
from picolib.course.exercises import gradients
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson03a_refuse import no_ready_made_ddp
from picolib.course.exercises.rebuilt import note_calls_into

SHAPES = {"embedding.weight": (3, 4), "positions.weight": (3, 4), "layers.0.weight": (4, 4), "layers.0.bias": (4,),
          "layers.1.weight": (5, 4), "layers.1.bias": (5,), "norm.weight": (3,)}  # fmt: skip
TIED = "embedding.weight"  # is the weight of the head, too: used first and last
BUCKETS = (
    ("norm.weight", "layers.1.bias", "layers.1.weight"),
    ("layers.0.bias", "layers.0.weight"),
    (TIED, "positions.weight", TIED),  # without its second place, the tied weight is the first here, and comes last
)
FEW_STEPS, MANY_STEPS = 2, (5, 10)  # steps of the first case, and of the second: as many as nobody can know


def overlap_cases(world_size: int, seed: int) -> list[Case]:
    """Gradients for two steps: digits, then random numbers; and for a number of steps that is new in each check."""
    random = generator(seed, world_size)
    many = int(torch.randint(*MANY_STEPS, (), generator=random))
    return [_case(("digits", "float64"), world_size, random), _case(("float64",) * many, world_size, random)]


def _case(kinds: Sequence[str], world_size: int, random: torch.Generator) -> Case:
    own = [[gradients.given(SHAPES, rank, kind, random, torch.float64) for kind in kinds] for rank in range(world_size)]
    right = [gradients.mean([steps[k] for steps in own]) for k in range(len(kinds))]
    return Case(kinds[0], tuple((steps,) for steps in own), (right,) * world_size)


def steps_of(fn: Callable, arguments: tuple) -> Any:
    """In a rank: the learner's hooks under some backward passes; the gradients after each.

    Between steps gradients are zeroed as both of `zero_grad`'s ways do it: to None once, then in place.
    """
    with no_ready_made_ddp(), note_calls_into("picolib.parallel"):
        return _steps_of(fn, arguments[0])


def _steps_of(fn: Callable, given_in_steps: Sequence[dict]) -> Any:
    few = len(given_in_steps) == FEW_STEPS
    weights, slow = _weights(contiguous=few), few and dist.get_rank() == dist.get_world_size() - 1
    for name, weight in weights.items():
        weight.register_post_accumulate_grad_hook(lambda _, name=name: _is_there(name, slow))
    finish = fn([[weights[name] for name in bucket] for bucket in BUCKETS])
    if not callable(finish):
        return type(finish).__name__
    after = []
    for number, given in enumerate(given_in_steps):
        observe.note("step")
        uses = _order_of_uses(number)
        terms = [(weights[name] * given[name]).sum() / uses.count(name) for name in uses]
        for weight in weights.values():
            if number < 2:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()
        sum(terms).backward()
        finish()
        after.append({name: w.grad.clone() if w.grad is not None else None for name, w in weights.items()})
    return after


def _order_of_uses(step: int) -> list[str]:
    """Names in the order of the forward pass; backward comes to the last first.

    Buckets keep their order. Within a bucket that of the parameters turns from step to step.
    """
    forward = [TIED]
    for bucket in reversed(BUCKETS):
        names = [name for name in reversed(bucket) if name != TIED]
        turn = step % len(names)
        forward += names[turn:] + names[:turn]
    return [*forward, TIED]


class Weight(torch.nn.Parameter):
    """A parameter whose place in a set differs between ranks, so that whoever relies on a set's order is found out."""

    place = 0

    def __hash__(self) -> int:
        return self.place


def _weights(contiguous: bool) -> dict[str, Weight]:
    """All zeros. A gradient is stored as its weight is, so it may be not contiguous either."""
    stored = torch.Tensor.clone if contiguous else gradients.stored_by_columns
    weights = {name: Weight(stored(torch.zeros(shape, dtype=torch.float64))) for name, shape in SHAPES.items()}
    for number, weight in enumerate(weights.values()):
        weight.place = (number + 3 * dist.get_rank()) % 8  # a small set holds its members in the order of these
    return weights


def _is_there(name: str, slow: bool) -> None:
    """The last rank is slow in the first case, so that whoever uses a result before wait() finds no luck there."""
    if slow:
        time.sleep(0.01)
    observe.note(name)
