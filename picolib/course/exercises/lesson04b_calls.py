"""What exercises 4.3 and 4.5 are judged by alike: the weights that layers computed with, and the all-gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from picolib.course.exercises.lesson04b_layers import wholes_of
from picolib.course.exercises.lesson04b_refuse import GATHERS
from picolib.course.words import number_of

OBJECTS = 20_000  # bytes of Python's own objects that every answer makes
ROOM = (
    "There must be room for everybody's part in the first tensor: world size times len(shard) numbers, flat. The "
    "second is this rank's own part."
)
WRONG_ROOM = (
    (r"invalid tensor size", ROOM),
    (r"invalid tensor type", "Make room in the dtype of the shard: shard.new_empty(...)."),
)
ENOUGH = "dist.all_gather_into_tensor is enough"


def calls_fault(attempt: Any, rank: int, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """Each layer once, in this order, with its whole weight."""
    calls = attempt.ranks[rank].output["calls"]
    numbers = [call["layer"] for call in calls]
    if not attempt.ranks[rank].output["kept"]:
        return f"rank {rank}: a shard has changed. It is what the optimizer keeps: gather into a tensor of your own."
    if numbers != list(order):
        said = f"computed layers {', '.join(map(str, numbers))}" if numbers else "called no layer"
        return f"rank {rank} {said}; {', '.join(map(str, order))} is right, each once."
    for call in calls:
        text = _weight_fault(attempt, rank, call, wholes[call["layer"]])
        if text:
            return text
    return None


def _weight_fault(attempt: Any, rank: int, call: dict, right: torch.Tensor) -> str | None:
    got, n = call["weight"], attempt.world_size
    head = f"rank {rank}: the weight that layer {call['layer']} computed with "
    if not isinstance(got, torch.Tensor):
        return f"{head}is no tensor, but {type(got).__name__}."
    others = [i for i, one in enumerate(wholes_of(attempt.inputs())) if i != call["layer"] and _same(got, one)]
    if others:
        return f"{head}is that of layer {others[0]}. Layers come in the order given, which need not be that of numbers."
    if got.numel() != right.numel():
        own = " That is this rank's part alone." if got.numel() * n == right.numel() and n > 1 else ""
        own = " It is x: call layer(weight, x), in this order." if _same(call["x"], right) else own
        return f"{head}has {got.numel()} numbers, and the whole one has {right.numel()}.{own}"
    if torch.equal(got.flatten(), right):
        return None
    parts = list(zip(got.flatten().chunk(n), right.chunk(n), strict=True))
    wrong = next(q for q, (mine, theirs) in enumerate(parts) if not torch.equal(mine, theirs))
    return f"{head}is wrong in part {wrong}. {_told(attempt, wrong, parts[wrong][0], call['layer'])}"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.flatten(), other)


def _told(attempt: Any, part: int, got: torch.Tensor, layer: int) -> str:
    """Whose part stands there, read from the shards themselves."""
    for rank, shards in enumerate(attempt.inputs()):
        for i, shard in enumerate(shards):
            if torch.equal(shard.flatten(), got):
                where = f"the part of rank {rank}" + (f" of layer {i}" if i != layer else "")
                return f"There stands {where}. Parts stand in the order of the ranks: {part} is rank {part}'s."
    if not any(call[0] in GATHERS for record in attempt.ranks for call in record.collectives):
        return "Nobody's part stands there: nothing was gathered."
    return "Nobody's part stands there: was it used before it had arrived?"


def gathers_fault(rank: int, record: Any, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """One all-gather a layer, of its size."""
    gathered = [elements for _, elements in gathers_of(record)]
    if len(gathered) > len(wholes):
        each = len(gathered) / len(wholes)
        much = f": {each:g} times each layer" if each == int(each) else ""
        return (
            f"The values are right, but rank {rank} made {number_of(len(gathered), 'all-gather')} for "
            f"{len(wholes)} layers{much}. Once is enough: {len(wholes)} are right."
        )
    if len(gathered) < len(wholes):
        return (
            f"The values are right, but rank {rank} made {number_of(len(gathered), 'all-gather')} for {len(wholes)} "
            "layers: each layer has its own, since it is to be whole alone."
        )
    return _sizes_fault(rank, gathered, [wholes[i].numel() for i in order]) or _given_fault(rank, record, order, wholes)


def _given_fault(rank: int, record: Any, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """What torch's all-gathers were given must be this rank's parts. (Of picolib's it is not known.)"""
    given = record.output["given"]
    if len(given) != len(order):
        return None
    for i, tensor in zip(order, given, strict=True):
        if not torch.equal(tensor.flatten(), wholes[i].chunk(record.output["ranks"])[rank]):
            return (
                f"The values are right, but rank {rank} gave the all-gather other numbers than its part of layer {i}: "
                "the weight came by another way."
            )
    return None


def gathers_of(record: Any) -> list[tuple[int, int]]:
    """(position among the entries, numbers that come together) of a rank's all-gathers.

    picolib's note one part; torch's into a list of tensors notes 0, which means that it is not known.
    """
    n = record.output["ranks"]
    entries = [(at, e) for at, e in enumerate(record.entries) if e[0] == "collective" and e[1] in GATHERS]
    return [(at, e[2] * (n if e[3] else 1)) for at, e in entries]


def _sizes_fault(rank: int, gathered: Sequence[int], right: Sequence[int]) -> str | None:
    """Gathers of other sizes than the layers, in the order in which they compute."""
    if all(got in (0, asked) for got, asked in zip(gathered, right, strict=True)):
        return None
    return (
        f"The values are right, but rank {rank} gathered {_listed(gathered)} numbers, where {_listed(right)} are "
        "right: each all-gather has one layer's weight, and nothing else."
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def objects_fault(attempt: Any, rank: int, wholes: Sequence[torch.Tensor], enough: int) -> str | None:
    """Weights kept in another form than tensors: what Python's own objects have grown by since the first layer.

    Not judged in the first case, in which modules are imported.
    """
    calls, sizes = attempt.ranks[rank].output["calls"], [whole.nbytes for whole in wholes]
    grown = calls[-1]["objects"] - calls[0]["objects"] - OBJECTS
    if grown < 2 * max(sizes) or attempt.case.kind in ("equal", "forward"):
        return None
    at_once = min(len(sizes), whole_at_once(grown, sizes) + 1)
    return (
        f"The values are right, but rank {rank} holds {at_once} layers whole at once, {enough} "
        f"{'is' if enough == 1 else 'are'} right. What the layers before have used is "
        "kept as numbers, bytes or arrays: these need memory as tensors do."
    )


def whole_at_once(most: int, sizes: Sequence[int], least: int = 2) -> int:
    """How many layers of middle size these bytes are."""
    return max(least, round(most / (sum(sizes) / len(sizes))))
