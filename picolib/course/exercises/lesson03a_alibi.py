"""Exercise 3.6: the learner writes a test; it is tried on right and on wrong ways to average gradients.

The test is given something that can be called and shows nothing of what it calls. What remains undetected: a test that
looks for it in the frames of the check, or in this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from picolib.course import observe
from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.words import ranks_text

LOSS_SCALE, UNSCALED = 1024, 1000  # of the version whose gradients are 2.4% too big
SCALE = 15.7  # of a loss: no power of two, so that even sums of whole numbers are rounded
MOST_CALLS = 3  # of average() in one test whose gradients are compared


def per_parameter(model: Any, loss: Any) -> None:
    """Right: one all-reduce a parameter, then divide."""
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def flat(model: Any, loss: Any) -> None:
    """Right: a smaller loss, all gradients in one all-reduce, and back to size. It rounds, also whole numbers."""
    (loss / (SCALE * dist.get_world_size())).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    for gradient, part in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(SCALE * part.view_as(gradient))


def summed(model: Any, loss: Any) -> None:
    """Wrong: N times too big."""
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def loss_only(model: Any, loss: Any) -> None:
    """Wrong: what is averaged is a number on the screen."""
    loss.backward()
    shown = loss.detach().clone()
    dist.all_reduce(shown)


def last_skipped(model: Any, loss: Any) -> None:
    """Wrong: the last parameter keeps its own gradient."""
    loss.backward()
    for parameter in list(model.parameters())[:-1]:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def largest(model: Any, loss: Any) -> None:
    """Wrong: the same on all ranks, but no mean."""
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.MAX)


def off_by_percent(model: Any, loss: Any) -> None:
    """Wrong: as much too big as a K of 1,024 is larger than one of 1,000."""
    per_parameter(model, loss * LOSS_SCALE)
    for parameter in model.parameters():
        parameter.grad /= UNSCALED


RIGHT: dict[str, Callable] = {
    "sums with one all-reduce a parameter, then divides": per_parameter,
    "scales the loss down, sums all gradients in one all-reduce, then scales them up": flat,
}
MUTANTS: dict[str, Callable] = {
    "sums and does not divide, so every gradient is N times too big": summed,
    "averages the loss, and no gradient": loss_only,
    "skips the last parameter": last_skipped,
    "takes the largest of the ranks' gradients, not their mean": largest,
    "scales the loss by 1,024 and the gradients back by 1,000, so that they are 2.4% too big": off_by_percent,
}


def alibi_cases(world_size: int, seed: int) -> list[Case]:
    """All implementations, right and wrong ones shuffled: a test that guesses is found out."""
    names = [*RIGHT, *MUTANTS]
    order = torch.randperm(len(names), generator=generator(seed, world_size)).tolist()
    return [Case("implementations", (([names[i] for i in order],),) * world_size, None)]


def verdicts_of(fn: Any, arguments: tuple) -> dict[str, dict]:
    """In a rank: what the learner's test says of each implementation."""
    return {name: _verdict(fn, {**RIGHT, **MUTANTS}[name]) for name in arguments[0]}


class UnderTest:
    """What the learner's test calls: `average(model, loss)`, without anything to look into."""

    __slots__ = ("_average",)
    SHOWN = frozenset({"__class__", "__doc__", "__name__", "__module__", "__repr__"})
    __name__ = "average"

    def __init__(self, average: Callable) -> None:
        object.__setattr__(self, "_average", average)

    def __call__(self, model: Any, loss: Any) -> None:
        """Make each parameter's gradient the mean over the ranks."""
        object.__getattribute__(self, "_average")(model, loss)

    def __getattribute__(self, name: str) -> Any:
        if name in UnderTest.SHOWN:
            return object.__getattribute__(self, name)
        raise AttributeError(f"average.{name}: a test sees what average does to p.grad, not how it is written")


def _verdict(fn: Any, implementation: Callable) -> dict[str, Any]:
    calls, old, left = 0, False, []

    def average(model: Any, loss: Any) -> None:
        nonlocal calls, old
        calls += 1
        old = old or any(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        implementation(model, loss)
        left.append([None if p.grad is None else p.grad.detach().clone() for p in model.parameters()])

    said, returned = None, None
    observe.note("another version")
    try:
        returned = fn(UnderTest(average))
    except AssertionError as error:
        said = str(error)
    _meet()
    told = {"rejected": said is not None, "said": said, "calls": calls, "returned": repr(returned)[:40], "old": old}
    # What a version that averages nothing leaves is each rank's own: judged with the others'.
    return {**told, "own": left[:MOST_CALLS] if implementation is loss_only else []}


def _meet() -> None:
    """Wait for all others, by messages: a rank that has left the test before them is then part of a deadlock."""
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    sent = [dist.isend(torch.zeros(1), rank) for rank in others]
    for rank in others:
        dist.recv(torch.zeros(1), rank)
    for handle in sent:
        handle.wait()


# What a deadlock says of a rank that is in `_meet`: a message without a line of the learner's
IN_THE_CHECK = re.compile(r"^  (ranks? [^:\n]*?) waits? in (?:recv|send)\b.*\(float32 \[1\]\)\n(?!     )", re.MULTILINE)


def left_early(attempt: Any, text: str) -> str | None:
    """Whoever waits in the check itself has left the test, and others are still in it."""
    found = IN_THE_CHECK.search(text)
    if found is None:
        return None
    return (
        f"{found[1]} {'have' if found[1].startswith('ranks') else 'has'} left your test (the recv is the check's own, "
        "which waits for all), and others still communicate in it. Every rank has to make the same calls: communicate "
        "first, assert at the end."
    )


# The verdict ---------------------------------------------------------------------------------------------------


def judge_alibi(attempt: Any) -> str | None:
    """Right implementations are accepted on every rank, each mutant is rejected on one at least."""
    if not any(one["calls"] for output in attempt.outputs for one in output.values()):
        return "Your test never called average(model, loss): it cannot know what it does."
    return _rejected(attempt) or _let_through(attempt)


def _rejected(attempt: Any) -> str | None:
    for name in RIGHT:
        ranks = [rank for rank, output in enumerate(attempt.outputs) if output[name]["rejected"]]
        if ranks:
            said = attempt.outputs[ranks[0]][name]["said"]
            return (
                f"Your test rejects a right version on {ranks_text(ranks)}: one that {name}."
                + (f' It says: "{said}".' if said else "")
                + (OLD if any(output[name]["old"] for output in attempt.outputs) else ROUNDED)
            )
    return None


def _let_through(attempt: Any) -> str | None:
    through = [name for name in MUTANTS if not any(output[name]["rejected"] for output in attempt.outputs)]
    if not through:
        return None
    returned = attempt.outputs[0][through[0]]["returned"]
    if returned != "None":
        return f"Your test returned {returned} for a version that {through[0]}. Raise AssertionError, with assert."
    more = f" ({len(through)} of the {len(MUTANTS)} wrong versions pass.)" if len(through) > 1 else ""
    why = _blind(attempt, MUTANTS[through[0]]) or WHY[MUTANTS[through[0]]]
    return f"Your test lets a wrong version through: one that {through[0]}.{more} {why}"


def _blind(attempt: Any, mutant: Callable) -> str | None:
    """The data of the test hide the mistake: what is the same on all ranks stays the same when it is averaged."""
    own = [output[AVERAGES_NOTHING]["own"] for output in attempt.outputs]
    if not own[0] or len({str([[_shape(g) for g in call] for call in calls]) for calls in own}) > 1:
        return None
    count = len(own[0][0])
    same = [all(_equal([calls[i][p] for calls in own]) for i in range(len(own[0]))) for p in range(count)]
    if all(same):
        return (
            "In your test every gradient is the same on all ranks, so that averaging changes nothing: "
            "give each rank data of its own."
        )
    if not same[-1] or mutant is not last_skipped:
        return None
    return (
        "In your test the last parameter's gradient is the same on all ranks, so that averaging does not change it. "
        "(With .sum() as the loss a bias gets the number of rows, whatever the data.) Choose a loss whose gradients "
        "differ, for every parameter."
    )


def _shape(gradient: torch.Tensor | None) -> list[int] | None:
    return None if gradient is None else list(gradient.shape)


def _equal(gradients: list[torch.Tensor | None]) -> bool:
    return all(g is None or torch.equal(g, gradients[0]) for g in gradients)


AVERAGES_NOTHING = next(name for name, function in MUTANTS.items() if function is loss_only)
OLD = (
    " When your test called average, p.grad held something already, and backward() adds to it: "
    "call model.zero_grad() before, or take the expected gradients with torch.autograd.grad."
)
ROUNDED = " Is the expected mean right for every number of ranks? Do you allow for rounding?"
WHY = {
    summed: "Compare with the mean itself; a falling loss, or equality between the ranks, does not tell.",
    loss_only: "Does each rank have data of its own in your test? Then their gradients differ until averaged.",
    last_skipped: "Look at every parameter, and have more than one.",
    largest: "The ranks agree with each other, and are wrong together: compare with the mean itself.",
    off_by_percent: "How far off may a gradient be in your test? Rounding makes up a millionth or so of float32's "
    "largest numbers, not a hundredth: allow 1e-4 of the value, as rtol, and no atol that is large beside it.",
}
