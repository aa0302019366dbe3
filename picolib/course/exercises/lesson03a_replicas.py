"""Exercise 3.1, the first half: the module that is wrapped, and whether its replicas start alike."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from picolib.course.words import apart, number_of

LARGE = 2**24, 2**40  # whole numbers that float32 cannot hold, among the buffers
BACKWARD = "backward"  # the note at the begin of each backward pass


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


def state_of(rank: int, kind: str, random: torch.Generator) -> dict[str, torch.Tensor]:
    """Parameters and buffers of one rank before the broadcast: all of them 10^rank, or each number another."""
    module = Nasty()
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if kind == "digits":
                tensor.fill_(10**rank)
            elif tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, dtype=tensor.dtype, generator=random))
            else:
                tensor.copy_(torch.randint(*LARGE, tensor.shape, generator=random))
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def not_alike(attempt: Any) -> str | None:
    """Which rank differs from the first of its group after wrap, and why."""
    for rank, output in enumerate(attempt.outputs):
        right = attempt.case.expected[rank]
        wrong = [name for name, value in right["state"].items() if not torch.equal(output["state"][name], value)]
        if wrong:
            return _difference(attempt, rank, wrong[0]) + _why_it_differs(attempt, rank, wrong)
    return None


def _difference(attempt: Any, rank: int, name: str) -> str:
    group, own = attempt.case.expected[rank]["group"], attempt.inputs()[rank]["state"][name]
    got, right = attempt.outputs[rank]["state"][name], attempt.case.expected[rank]["state"][name]
    whose = " still has its own" if torch.equal(got, own) else ""
    first = f"what it was on rank {group[0]}" if rank == group[0] else f"rank {group[0]}'s"
    index = int((got != right).flatten().int().argmax())
    shown = apart(float(got.flatten()[index]), float(right.flatten()[index]))
    return (
        f"rank {rank}{whose}: `{name}` differs from {first}, the first of its group: {shown[0]} where {shown[1]} is "
        "right. "
    )


def _why_it_differs(attempt: Any, rank: int, wrong: list[str]) -> str:
    right, got = attempt.case.expected[rank], attempt.outputs[rank]["state"]
    if 0 not in right["group"] and torch.equal(got[wrong[0]], attempt.inputs()[0]["state"][wrong[0]]):
        return (
            f"That is rank 0's number, and rank 0 is not in the group {right['group']}: pass group= to every broadcast."
        )
    if all(torch.allclose(got[name].double(), right["state"][name].double(), rtol=0.01) for name in wrong):
        return "It was rounded on the way: broadcast each tensor as it is, in its own dtype."
    if len(wrong) == len(right["state"]):
        return "Nothing was broadcast from there: replicas that start apart stay apart."
    if set(wrong) <= {name for name, _ in Nasty().named_buffers()}:
        return "Buffers are part of the replica too: module.buffers()."
    if all(name.startswith("frozen") for name in wrong):
        return "It gets no gradient, but it is used: broadcast it like the others."
    return not_all_copied(attempt) or "Broadcast every parameter and every buffer."


def not_all_copied(attempt: Any) -> str | None:
    """In wrap as many numbers were broadcast as the module has."""
    has = sum(tensor.numel() for tensor in [*Nasty().parameters(), *Nasty().buffers()])
    for rank, record in enumerate(attempt.ranks):
        broadcast = _broadcast_by(record)
        if broadcast < has and len(attempt.case.expected[rank]["group"]) > 1:
            return (
                f"Rank {rank} broadcasts {number_of(broadcast, 'number')}; parameters and buffers have {has}. What "
                "the first rank has, no other can know: all of it has to be broadcast."
            )
    return None


def _broadcast_by(record: Any) -> int:
    """Elements of all broadcasts before the first backward pass."""
    before = itertools.takewhile(lambda entry: entry[:2] != ["note", BACKWARD], record.entries)
    return sum(entry[2] for entry in before if entry[:2] == ["collective", "broadcast"])
