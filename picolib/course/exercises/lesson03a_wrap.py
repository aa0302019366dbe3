"""Exercise 3.1: a module whose ranks start alike, and whose gradients are means over a group after each backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson03a_refuse import no_ready_made_ddp
from picolib.course.words import apart, number_of, ranks_text, times

PASSES = ("first", "second")  # backward passes that are looked at


class Nasty(nn.Module):
    """Small, with everything that is easily forgotten: buffers, one of them int64, a frozen and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.frozen = nn.Linear(2, 2, bias=False).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight
        self.double()


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Full name -> parameter, of those that require a gradient; a tied one once, by its first name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def wrap_cases(world_size: int, seed: int) -> list[Case]:
    """All ranks as one group; then, on four, two groups at a time: ranks 0 and 2, ranks 1 and 3."""
    random = generator(seed, world_size)
    everybody = [list(range(world_size))]
    made = [_case("digits", everybody, random), _case("float64", everybody, random)]
    return [*made, _case("digits", [[0, 2], [1, 3]], random)] if world_size == 4 else made


def _case(kind: str, groups: list[list[int]], random: torch.Generator) -> Case:
    n = sum(map(len, groups))
    states = [_state(rank) for rank in range(n)]
    gradients = [[_gradients(kind, rank, random) for _ in PASSES] for rank in range(n)]
    inputs, expected = [], []
    for rank in range(n):
        group = next(ranks for ranks in groups if rank in ranks)
        inputs.append(({"state": states[rank], "gradients": gradients[rank], "groups": groups},))
        means = [
            {name: torch.stack([gradients[r][i][name] for r in group]).mean(0) for name in gradients[rank][i]}
            for i in range(len(PASSES))
        ]
        expected.append({"state": states[group[0]], "gradients": means, "group": group})
    return Case(kind, tuple(inputs), tuple(expected))


def _state(rank: int) -> dict[str, torch.Tensor]:
    """Parameters and buffers of one rank before the broadcast, all of them 10^rank."""
    return {name: torch.full_like(t, 10**rank) for name, t in Nasty().state_dict().items()}


def _gradients(kind: str, rank: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    names = trainable(Nasty())
    if kind == "digits":
        return {name: torch.full_like(p, 10.0**rank, requires_grad=False) for name, p in names.items()}
    return {name: torch.randn(p.shape, dtype=torch.float64, generator=random) for name, p in names.items()}


def wrap_and_train(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: wrap a module of its own, then two backward passes whose gradients are known: loss = sum of w·x.

    The first parameter gets its gradient last in the first pass, and first in the second.
    """
    (given,) = arguments
    module = Nasty()
    module.load_state_dict(given["state"])
    with no_ready_made_ddp():
        fn(module, _group_of(given["groups"]))
    state = {name: t.detach().clone() for name, t in module.state_dict().items()}
    left = []
    for x, step in zip(given["gradients"], (1, -1), strict=True):
        module.zero_grad()
        sum((p * x[name]).sum() for name, p in list(trainable(module).items())[::step]).backward()
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
    return _replicas(attempt) or _gradients_of_passes(attempt) or _once_each(attempt)


def _replicas(attempt: Any) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        right = attempt.case.expected[rank]
        wrong = [name for name, value in right["state"].items() if not torch.equal(output["state"][name], value)]
        if wrong:
            got, there = (float(t.flatten()[0]) for t in (output["state"][wrong[0]], right["state"][wrong[0]]))
            return _difference(rank, right["group"], wrong[0], got, there) + _why_it_differs(wrong, right, got)
    return None


def _difference(rank: int, group: list[int], name: str, got: float, there: float) -> str:
    whose = " still has its own" if got == 10**rank else ""
    first = f"what it was on rank {group[0]}" if rank == group[0] else f"rank {group[0]}'s"
    return (
        f"rank {rank}{whose}: `{name}` differs from {first}, the first of its group: {got:g} where {there:g} is right. "
    )


def _why_it_differs(wrong: list[str], right: dict, got: float) -> str:
    if got == 1 and 0 not in right["group"]:
        return (
            f"That is rank 0's number, and rank 0 is not in the group {right['group']}: pass group= to every broadcast."
        )
    if len(wrong) == len(right["state"]):
        return "Nothing was broadcast from there: replicas that start apart stay apart."
    if set(wrong) <= {name for name, _ in Nasty().named_buffers()}:
        return "Buffers are part of the replica too: module.buffers()."
    if all(name.startswith("frozen") for name in wrong):
        return "It gets no gradient, but it is used: broadcast it like the others."
    return "Broadcast every parameter and every buffer."


def _gradients_of_passes(attempt: Any) -> str | None:
    for number, which in enumerate(PASSES):
        for rank, output in enumerate(attempt.outputs):
            got, right = output["gradients"][number], attempt.case.expected[rank]["gradients"][number]
            missing = [name for name in right if got[name] is None]
            if missing:
                return f"rank {rank}: `{missing[0]}` has no gradient after backward()."
            wrong = [name for name in right if not torch.allclose(got[name], right[name], rtol=1e-10, atol=1e-12)]
            if wrong:
                again = "" if number == 0 else f"The first backward pass is right. In the {which} one, "
                return again + _gradient_fault(attempt, rank, number, wrong)
    return None


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
    shown = apart(float(got[wrong[0]].flatten()[0]), float(right[wrong[0]].flatten()[0]))
    return f"rank {rank}: `{wrong[0]}` has the gradient {shown[0]}, where {shown[1]} is right."


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


def _once_each(attempt: Any) -> str | None:
    """In each backward pass one all-reduce a parameter, of its size: a tied one once, a frozen one never."""
    sizes = [p.numel() for p in trainable(Nasty()).values()]
    for rank, record in enumerate(attempt.ranks):
        reduced = [c[1] for c in record.collectives if c[0] == "all_reduce"]
        if sorted(reduced) == sorted(sizes * len(PASSES)):
            continue
        twice = Nasty().embed.weight.numel()
        if reduced.count(twice) > sizes.count(twice) * len(PASSES):
            return (
                f"The gradients are right, but rank {rank} averaged the tied weight `embed.weight` = `head.weight` "
                "more than once a backward pass. module.parameters() gives each parameter once."
            )
        return (
            f"The gradients are right, with {number_of(len(reduced), 'all-reduce')} in {len(PASSES)} backward passes "
            f"on rank {rank}; {len(sizes) * len(PASSES)} are right: in each pass, one for each of the {len(sizes)} "
            "parameters that require a gradient."
        )
    return None
