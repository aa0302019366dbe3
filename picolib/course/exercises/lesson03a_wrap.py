"""Exercise 3.1: a module whose ranks start alike, and whose gradients are means over a group after each backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from picolib.course import observe
from picolib.course.exercise import Case
from picolib.course.exercises import gradients
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson03a_refuse import no_ready_made_ddp
from picolib.course.exercises.lesson03a_replicas import (
    BACKWARD,
    Nasty,
    not_alike,
    not_all_copied,
    state_of,
    trainable,
)
from picolib.course.exercises.rebuilt import note_calls_into
from picolib.course.words import apart, number_of, ranks_text, times
from picolib.launch.wording import listed

FEW, MANY = 2, (4, 9)  # backward passes that are looked at: of digits; of random numbers, as many as nobody can know


def wrap_cases(world_size: int, seed: int) -> list[Case]:
    """All ranks as one group; then, on four, two groups at a time: ranks 0 and 2, ranks 1 and 3."""
    random = generator(seed, world_size)
    everybody = [list(range(world_size))]
    many = int(torch.randint(*MANY, (), generator=random))
    made = [_case("digits", everybody, FEW, random), _case("float64", everybody, many, random)]
    return [*made, _case("digits", [[0, 2], [1, 3]], FEW, random)] if world_size == 4 else made


def _case(kind: str, groups: list[list[int]], passes: int, random: torch.Generator) -> Case:
    n = sum(map(len, groups))
    states = [state_of(rank, kind, random) for rank in range(n)]
    own = [[_gradients(kind, rank, random) for _ in range(passes)] for rank in range(n)]
    inputs, expected = [], []
    for rank in range(n):
        group = next(ranks for ranks in groups if rank in ranks)
        inputs.append(({"state": states[rank], "gradients": own[rank], "groups": groups},))
        means = [
            {name: torch.stack([own[r][i][name] for r in group]).mean(0) for name in own[rank][i]}
            for i in range(passes)
        ]
        expected.append({"state": states[group[0]], "gradients": means, "group": group})
    return Case(kind, tuple(inputs), tuple(expected))


def _gradients(kind: str, rank: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    names = trainable(Nasty())
    if kind == "digits":
        return {name: torch.full_like(p, 10.0**rank, requires_grad=False) for name, p in names.items()}
    return {name: torch.randn(p.shape, dtype=torch.float64, generator=random) for name, p in names.items()}


def wrap_and_train(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: wrap a module of its own, then backward passes whose gradients are known: loss = sum of w·x.

    The first parameter gets its gradient last in the first pass, first in the second, and so on.
    """
    (given,) = arguments
    module, group, left = Nasty(), _group_of(given["groups"]), []
    module.load_state_dict(given["state"])
    observe.forget()
    with no_ready_made_ddp(), note_calls_into("picolib.parallel", "picolib.train"):
        fn(module, group)
        state = {name: t.detach().clone() for name, t in module.state_dict().items()}
        for number, x in enumerate(given["gradients"]):
            module.zero_grad()
            observe.note(BACKWARD)
            order = list(trainable(module).items())[:: 1 if number % 2 == 0 else -1]
            sum((p * x[name]).sum() for name, p in order).backward()
            left.append({name: None if p.grad is None else p.grad.clone() for name, p in trainable(module).items()})
    return {"state": state, "gradients": left}


def _group_of(groups: list[list[int]]) -> Any:
    """This rank's group. All ranks make all groups, as torch asks for."""
    if len(groups) == 1:
        return dist.group.WORLD
    made = [dist.new_group(ranks) for ranks in groups]
    return next(group for group, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)


# The verdict ---------------------------------------------------------------------------------------------------


def judge_wrap(attempt: Any) -> str | None:
    """Replicas alike, gradients the mean over the group in both passes, one all-reduce a parameter and pass."""
    return (
        not_alike(attempt)
        or not_all_copied(attempt)
        or _gradients_of_passes(attempt)
        or _broadcast_later(attempt)
        or _once_each(attempt)
        or _others_gradients(attempt)
    )


def ignores_all_reduce(attempt: Any) -> list[int]:
    """The ranks of which a gradient is the mean, though the result of every all-reduce was changed."""
    return [rank for rank in range(attempt.world_size) if any(map(_some_right, *_passes(attempt, rank)))]


def _passes(attempt: Any, rank: int) -> tuple[list, list]:
    return attempt.outputs[rank]["gradients"], attempt.case.expected[rank]["gradients"]


def _some_right(got: dict, right: dict) -> bool:
    return any(got[name] is not None and _close(got[name], right[name]) for name in right)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def _gradients_of_passes(attempt: Any) -> str | None:
    for number in range(len(attempt.outputs[0]["gradients"])):
        for rank in range(attempt.world_size):
            got, right = (passes[number] for passes in _passes(attempt, rank))
            missing = [name for name in right if got[name] is None]
            if missing:
                return f"rank {rank}: `{missing[0]}` has no gradient after backward()."
            wrong = [name for name in right if not _close(got[name], right[name])]
            if wrong:
                return _which_pass(number) + _gradient_fault(attempt, rank, number, wrong)
    return None


def _which_pass(number: int) -> str:
    if number == 0:
        return ""
    right, then = ("pass is", "second") if number == 1 else (f"{number} passes are", "next")
    first = "The first backward" if number == 1 else "The first"
    return f"{first} {right} right. In the {then} one, "


def _gradient_fault(attempt: Any, rank: int, number: int, wrong: list[str]) -> str:
    got = attempt.outputs[rank]["gradients"][number]
    right, group = attempt.case.expected[rank]["gradients"][number], attempt.case.expected[rank]["group"]
    own = attempt.inputs()[rank]["gradients"][number]
    all_of_them = len(wrong) == len(right)
    if all(torch.equal(got[name], own[name]) for name in wrong):
        if all_of_them:
            return f"rank {rank}: every gradient is still its own: nothing has averaged it when backward() returns."
        return (
            f"rank {rank}: `{wrong[0]}` still has its own gradient; {ranks_or_names(right, wrong)} averaged. "
            "Does each hook average the parameter it was made for? (In a lambda, a loop's variable has its last value.)"
        )
    for factor, word, guess in _factors(len(group), attempt.world_size):
        if all_of_them and all(torch.allclose(got[name], right[name] * factor) for name in wrong):
            size = times(factor if factor > 1 else 1 / factor)
            return f"rank {rank}: every gradient is exactly {size} too {word}. {guess}"
    total = {name: torch.stack([i["gradients"][number][name] for i in attempt.inputs()]).sum(0) for name in right}
    for divisor, what in ((attempt.world_size, "the mean"), (len(group), f"the sum, divided by {len(group)},")):
        if all(torch.allclose(got[name], total[name] / divisor) for name in wrong):
            return (
                f"rank {rank}: gradients are {what} over all {attempt.world_size} ranks; its group is "
                f"{ranks_text(group)} only. Pass group= to every collective."
            )
    if all_of_them and (factor := _one_factor(got, right)):
        size = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
        squared = round(factor, 6) == len(group) ** 2
        guess = "Was it multiplied by N, where it should be divided?" if squared else "What is it multiplied with?"
        return f"rank {rank}: every gradient is exactly {size}. {guess}"
    shown = apart(float(got[wrong[0]].flatten()[0]), float(right[wrong[0]].flatten()[0]))
    return f"rank {rank}: `{wrong[0]}` has the gradient {shown[0]}, where {shown[1]} is right."


def _one_factor(got: dict, right: dict) -> float | None:
    """The whole number, or one over it, that every gradient is the right one times; None where there is none."""
    ratios = torch.cat([(got[name] / right[name]).flatten() for name in right])
    factor = float(ratios[0])
    whole = factor > 0 and any(abs(one - round(one)) < 1e-6 for one in (factor, 1 / factor))
    return factor if whole and torch.allclose(ratios, ratios[:1], rtol=1e-9) else None


def ranks_or_names(right: dict, wrong: list[str]) -> str:
    """ "`norm.weight` is", "`a` and 2 more are": the parameters that are right."""
    good = [name for name in right if name not in wrong]
    return f"`{good[0]}` is" if len(good) == 1 else f"`{good[0]}` and {len(good) - 1} more are"


def _factors(size: int, world_size: int) -> list[tuple[float, str, str]]:
    """Usual factors of a wrong mean, what they are called, and where they come from."""
    return [
        (size, "big", "Was it summed where it should be averaged?"),
        (size / world_size, "small", "Divide by the number of ranks in the group, not in the world."),
        (1 / size, "small", "Was it divided twice?"),
    ]


def _broadcast_later(attempt: Any) -> str | None:
    """Broadcasts make replicas alike; a gradient that is broadcast has come by another way than this one."""
    for rank, record in enumerate(attempt.ranks):
        order = [e[1] for e in record.entries if e[0] in ("note", "collective")]
        if "broadcast" in order[order.index(BACKWARD) :]:
            return (
                f"The gradients are right, but rank {rank} broadcasts during backward(). What is copied is copied "
                "once, in wrap; a gradient takes one all-reduce."
            )
    return None


def _of_passes(record: Any) -> list[list[list]]:
    """The all-reduces of each backward pass; those before the first come first."""
    made: list[list[list]] = [[]]
    for entry in record.entries:
        if entry[:2] == ["note", BACKWARD]:
            made.append([])
        elif entry in record.reductions:
            made[-1].append(entry)
    return made


def _others_gradients(attempt: Any) -> str | None:
    for rank, record in enumerate(attempt.ranks):
        for given, own in zip(_of_passes(record)[1:], attempt.inputs()[rank]["gradients"], strict=True):
            if text := gradients.not_its_own(rank, given, own):
                return text
    return None


def _once_each(attempt: Any) -> str | None:
    """In each backward pass one all-reduce a parameter, of its size: a tied one once, a frozen one never."""
    sizes = sorted(p.numel() for p in trainable(Nasty()).values())
    for rank, record in enumerate(attempt.ranks):
        before, *passes = [[entry[2] for entry in made] for made in _of_passes(record)]
        if before:
            made = number_of(len(before), "all-reduce")
            return f"rank {rank} made {made} in wrap: no gradient is there yet, and values are what broadcast copies."
        number = next((i for i, reduced in enumerate(passes) if sorted(reduced) != sizes), None)
        if number is None:
            continue
        reduced, twice = passes[number], Nasty().embed.weight.numel()
        if reduced.count(twice) > sizes.count(twice):
            return (
                f"The gradients are right, but rank {rank} averaged the tied weight `embed.weight` = `head.weight` "
                "more than once a backward pass. module.parameters() gives each parameter once."
            )
        return (
            f"The gradients are right, but in a backward pass rank {rank} made {_all_reduces(reduced)}; "
            f"{_all_reduces(sizes)} are right: one for each parameter that requires a gradient."
        )
    return None


def _all_reduces(sizes: list[int]) -> str:
    of = f" of {listed(sorted(map(str, sizes), key=int))} elements" if sizes else ""
    return number_of(len(sizes), "all-reduce") + of
