"""What the exercises of 05A share: f and g that are right, ways round an exercise, and which pass reduced what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from picolib.course import observe
from picolib.course.exercise import COLLECTIVES
from picolib.course.words import number_of

LESSON = "05A_tensor"
AFTER = "after the exercise"  # a note: what comes behind it was not made by the learner
# Ready-made ones are among them so that `borrowed` is the one to speak, which knows their names.
ALLOWED = COLLECTIVES | {"barrier", "poll", "parallel.tensor", "backward", "copy_to_group", "reduce_from_group"}
READY_MADE = (  # modules whose functions do what stands in these exercises
    "picolib.parallel",
    "picolib.comm.functional",
    "torch.distributed.tensor",
    "torch.distributed.nn",
    "torch.distributed._functional_collectives",
)


class Enter(torch.autograd.Function):
    """f: nothing forward, the sum of the ranks' gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return _summed(grad)


class Leave(torch.autograd.Function):
    """g: the sum of the ranks' tensors forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def f(x: torch.Tensor) -> torch.Tensor:
    """Where a tensor that all ranks hold enters a layer that is split."""
    return Enter.apply(x)


def g(x: torch.Tensor) -> torch.Tensor:
    """Where the ranks' summands leave it."""
    return Leave.apply(x)


class Largest(TorchDispatchMode):
    """Inside, `most` is the number of elements of the largest tensor that an operation has made. Views don't count.

    `products`: multiplications in matrix products.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = self.products = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports the compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.products += _products(func, args)
        known = {_address(leaf) for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor) and _address(leaf) not in known:
                self.most = max(self.most, leaf.numel())
        return result


def _products(func: Any, args: tuple) -> int:
    """[a, b] @ [b, c] takes a·b·c multiplications; 0 for what is no matrix product."""
    first = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}.get(func.overloadpacket.__name__)
    if first is None:
        return 0
    left, right = args[first : first + 2]
    return left.numel() * (right.shape[-1] if right.dim() > 1 else 1)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def of_the_learner(record: Any) -> Any:
    """A rank's record without what the check itself did afterwards."""
    ends = [at for at, entry in enumerate(record.entries) if entry[0] == "note" and entry[1] == AFTER]
    return dataclasses.replace(record, entries=record.entries[: ends[0]]) if ends else record


def reduced(record: Any, label: str) -> list[list[int]]:
    """For each note of this label, the elements of the all-reduces between it and the next note."""
    found: list[list[int]] = []
    inside = False
    for entry in record.entries:
        if entry[0] == "note":
            inside = entry[1] == label
            found += [[]] if inside else []
        elif inside and entry[0] == "collective" and entry[1] == "all_reduce":
            found[-1].append(entry[2])
    return found


class Passes(NamedTuple):
    """What `both_passes` has seen: the output, whether there was a backward pass, and what each of the two made."""

    output: Any
    both: bool
    forward: Largest
    backward: Largest


def both_passes(
    call: Callable[[], Any],
    fits: Callable[[torch.Tensor], bool],
    grad: torch.Tensor | float = 1.0,
    also: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
) -> Passes:
    """In a rank: a forward pass by `call`, and a backward pass where what it returns has a graph and fits.

    grad: the gradient of the output, or a number for all of it. also: other tensors that the backward pass starts from,
    each with its gradient. `reduced` finds either pass by its notes.
    """
    observe.note("forward")
    with Largest() as forward:
        y = call()
    observe.note("backward")
    both = isinstance(y, torch.Tensor) and y.requires_grad and fits(y)
    with Largest() as backward:
        if both:
            starts = [(y, grad if isinstance(grad, torch.Tensor) else torch.full_like(y, grad)), *also]
            torch.autograd.backward(*map(list, zip(*starts, strict=True)))
    observe.note("between")
    return Passes(y, both, forward, backward)


def first_fault(looks: Sequence[Callable], attempt: Any, number: int, *right: Any) -> str | None:
    """The first text that one of these looks has for a rank's call of this number: look by look, on all ranks."""
    for look in looks:
        for rank, output in enumerate(attempt.outputs):
            text = look(attempt, rank, output["calls"][number], *right)
            if text:
                return text
    return None


def count_fault(attempt: Any, what: str, right: dict[str, tuple[int, str]]) -> str | None:
    """Another number of all-reduces in a pass than in `right`, which has for each pass the number and what to say.

    what: what is right so far, as "Output and gradients".
    """
    for rank, record in enumerate(attempt.ranks):
        for way, (count, told) in right.items():
            made = next((len(calls) for calls in reduced(record, way) if len(calls) != count), None)
            if made is not None:
                calls = number_of(made, "all-reduce")
                return f"{what} are right, but rank {rank} made {calls} in the {way} pass; {told}"
    return None


def other_numbers(record: Any, label: str, right: Sequence[int]) -> tuple[int, int] | None:
    """(elements, right) of the first all-reduce after a note of this label with more elements, or fewer, than is right.

    right: for each such note, the elements of an all-reduce.
    """
    found = zip(reduced(record, label), right, strict=False)
    return next(((size, needed) for sizes, needed in found for size in sizes if size != needed), None)


def in_the_graph(attempt: Any) -> str | None:
    """What to say where dist.all_reduce was given a tensor that autograd has computed, and all came out right."""
    for rank, record in enumerate(map(of_the_learner, attempt.ranks)):
        if any(entry[0] == "graph" for entry in record.entries):
            return (
                f"All numbers are right, but rank {rank} gives all_reduce a tensor with a graph. It tells autograd "
                "nothing, and passing the gradient on as it comes is right here by chance; torch warns that such "
                "gradients may be silently wrong. Say both passes: with a torch.autograd.Function, such as g."
            )
    return None


def only_all_reduce(instead: str) -> Callable[[Any], str | None]:
    """A rule: of all collectives only all_reduce. `instead` says why that is enough."""

    def rule(attempt: Any) -> str | None:
        for rank, record in enumerate(map(of_the_learner, attempt.ranks)):
            other = next((name for name, *_ in record.collectives if name in COLLECTIVES - {"all_reduce"}), None)
            if other:
                return f"rank {rank} called {other}. {instead}"
            if record.sends:
                return f"rank {rank} sent messages of its own. {instead}"
            if any(name == "barrier" for name, *_ in record.collectives):
                return f"rank {rank} called barrier: an all-reduce is one already."
        return None

    return rule


def same(one: Any, other: torch.Tensor) -> bool:
    """Equal but for rounding."""
    return (
        isinstance(one, torch.Tensor)
        and one.shape == other.shape
        and torch.allclose(one.to(other.dtype), other, rtol=1e-9, atol=1e-9 * max(1.0, float(other.abs().max())))
    )


def numbers_text(numbers: Sequence[int]) -> str:
    """ "0 to 3" for neighbours, "0, 2, 5" for others, "none"."""
    numbers = list(numbers)
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "") or "none"
