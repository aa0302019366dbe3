"""Exercise 4.2: clip by the norm of all gradients, some of which are in parts over the ranks, others on every rank."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04a_common import nothing_ready_made
from picolib.course.words import apart, number_of, ranks_text

CLOSE = 1e-6  # relative: PyTorch's own adds 1e-6 to the norm
SHARDS, REPLICATED = ((2, 3), (5,)), ((3,), (2, 2), ())


def clip_cases(world_size: int, seed: int) -> list[Case]:
    """Squares that add up to digits; random numbers, once too large and once small; a rank without any part.

    On four ranks also two groups at a time: ranks 0 and 2, ranks 1 and 3.
    """
    random, everybody = generator(seed, world_size), [list(range(world_size))]
    made = [
        _case("digits", everybody, _digits(world_size), [torch.tensor([100.0, 100.0], dtype=torch.float64)], 0.5),
        _random("clipped", everybody, random, 0.3),
        _random("small", everybody, random, 3.0),
    ]
    if world_size == 4:
        made.append(_random("groups", [[0, 2], [1, 3]], random, 0.3))
    made.append(_zeros(everybody, world_size))
    return [*made, _random("empty", everybody, random, 0.3, nobody=world_size - 1)]


def _zeros(groups: list[list[int]], n: int) -> Case:
    """All gradients are 0, as in a first step: the norm is 0, and nobody may divide by it."""
    shards = [[torch.zeros(shape, dtype=torch.float64) for shape in SHARDS] for _ in range(n)]
    case = _case("zeros", groups, shards, [[torch.zeros(3, dtype=torch.float64)] for _ in range(n)], 1.0)
    return replace(case, inputs=tuple(({**given, "max_norm": 0.5},) for (given,) in case.inputs))


def _digits(n: int) -> list[list[torch.Tensor]]:
    """The squares of rank r's part add up to 10^r."""
    return [[torch.tensor([10.0**rank], dtype=torch.float64).sqrt()] for rank in range(n)]


def _random(kind: str, groups: list[list[int]], random: torch.Generator, below: float, nobody: int = -1) -> Case:
    """max_norm is `below` times the norm. nobody: a rank with an empty list of shards."""

    def draw(shapes: tuple) -> list[torch.Tensor]:
        return [torch.randn(shape, dtype=torch.float64, generator=random) for shape in shapes]

    n = sum(map(len, groups))
    shards = [[] if rank == nobody and n > 1 else draw(SHARDS[: 1 + rank % 2]) for rank in range(n)]
    replicated = {tuple(group): draw(REPLICATED) for group in groups}
    return _case(kind, groups, shards, [replicated[tuple(_of(groups, rank))] for rank in range(n)], below)


def _of(groups: list[list[int]], rank: int) -> list[int]:
    return next(group for group in groups if rank in group)


def _case(kind: str, groups: list, shards: list[list], replicated: list, below: float) -> Case:
    n, inputs, expected = len(shards), [], []
    for rank in range(n):
        same = replicated if kind == "digits" else replicated[rank]
        group = _of(groups, rank)
        whole = [*(g for r in group for g in shards[r]), *same]
        norm = torch.cat([g.flatten() for g in whole]).norm().item()
        max_norm = below * norm
        given = {"shards": shards[rank], "replicated": same, "max_norm": max_norm, "groups": groups}
        inputs.append((given,))
        expected.append({"norm": norm, "factor": min(1.0, below), "group": group})
    return Case(kind, tuple(inputs), tuple(expected))


def clipped(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: what the learner's function returns, and the gradients that it leaves."""
    (given,) = arguments
    shards, replicated = ([g.clone() for g in given[name]] for name in ("shards", "replicated"))
    group = dist.group.WORLD
    if len(given["groups"]) > 1:
        made = [dist.new_group(ranks) for ranks in given["groups"]]
        group = next(one for one, ranks in zip(made, given["groups"], strict=True) if dist.get_rank() in ranks)
    with nothing_ready_made():
        norm = fn(list(shards), list(replicated), given["max_norm"], group)
    return {"norm": norm, "shards": shards, "replicated": replicated}


# The verdict ---------------------------------------------------------------------------------------------------


def judge_clip(attempt: Any) -> str | None:
    """The norm of the whole model, everything scaled by it once, after one all-reduce of one number."""
    return next((text for look in (_norm, _scaled, _one_number) if (text := look(attempt))), None)


def clip_ignored(attempt: Any) -> list[int]:
    """Ranks with the right norm in a case in which the results of all-reduces were changed."""
    pairs = zip(attempt.outputs, attempt.case.expected, strict=True)
    norms = [(output["norm"], right["norm"]) for output, right in pairs]
    numbers = (int, float, torch.Tensor)
    return [r for r, (got, right) in enumerate(norms) if isinstance(got, numbers) and _close(float(got), right)]


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE)


def _norm(attempt: Any) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        got, right = output["norm"], attempt.case.expected[rank]["norm"]
        if got is None:
            return f"rank {rank} returned None: return the norm before clipping."
        if isinstance(got, torch.Tensor) and got.numel() != 1:
            return f"rank {rank} returned a tensor of shape {list(got.shape)}: the norm is one number."
        if not isinstance(got, (int, float, torch.Tensor)):
            return f"rank {rank} returned {got!r}: the norm is one number."
        if not _close(float(got), right):
            return _which_norm(attempt, rank, float(got), right)
    return None


def _squares(attempt: Any, rank: int) -> tuple[dict[int, float], float]:
    """(rank -> sum of squares of its shards, for this rank's group; sum of squares of the replicated ones)."""
    group = attempt.case.expected[rank]["group"]
    shards = {r: sum(float(g.square().sum()) for g in attempt.inputs()[r]["shards"]) for r in group}
    return shards, sum(float(g.square().sum()) for g in attempt.inputs()[rank]["replicated"])


def _which_norm(attempt: Any, rank: int, got: float, right: float) -> str:
    shards, same = _squares(attempt, rank)
    texts = apart(got, right)
    head = f"rank {rank} returns the norm {texts[0]}, where {texts[1]} is right"
    if not math.isfinite(got):
        return f"{head}."
    squares = f" (squared: {got**2:,.0f} and {right**2:,.0f})" if attempt.case.kind == "digits" else ""
    for number, why in _wrong_norms(attempt, rank, shards, same):
        if _close(got, number):
            return f"{head}{squares}: {why}"
    return f"{head}{squares}: the root of the sum of the squares of all elements, each once."


def _wrong_norms(attempt: Any, rank: int, shards: dict[int, float], same: float) -> list[tuple[float, str]]:
    """Usual wrong norms, and where they come from."""
    n, total, root = len(shards), sum(shards.values()), math.sqrt
    everyone = sum(float(g.square().sum()) for given in attempt.inputs() for g in given["shards"])
    largest = max(shards.values())
    return [
        (
            root(shards[rank] + same),
            "that is the local norm, of what this rank holds. The parts of the other ranks belong to it.",
        ),
        (root(shards[rank]), "that is the local norm of its shards alone."),
        (
            root(total + n * same),
            f"the replicated gradients are counted {n} times, once for each rank. Add them after the all-reduce.",
        ),
        (root(total + attempt.world_size * same), "the replicated gradients are counted more than once."),
        (root(total), "the replicated gradients are missing."),
        (root(same), "the shards are missing: every rank adds the squares of its own, and the all-reduce adds these."),
        (
            sum(root(part + same) for part in shards.values()),
            "that is the sum of the ranks' norms. Norms do not add up, squares do: add squares, then take one root.",
        ),
        (
            sum(map(root, shards.values())) + root(same),
            "that is a sum of norms. Norms do not add up, squares do: add squares, then take one root.",
        ),
        (
            root(sum(map(root, shards.values())) ** 2 + same),
            "the norms of the shards were added up. Norms do not add up, squares do.",
        ),
        (
            _sum_of_tensor_norms(attempt, rank),
            "that is a sum of norms, one for each tensor. Norms do not add up, squares do.",
        ),
        (total + same, "that is its square: the root is missing."),
        (attempt.inputs()[rank]["max_norm"], "that is max_norm. Return the norm before scaling."),
        (root(total + same) / n, f"that is an {n}th: the norm is of all elements, whoever holds them."),
        (root(n * (total + same)), f"everything is counted {n} times. Is there an all-reduce too many?"),
        (root((total + n * same) / n), "the squares are averaged over the ranks, where they should be added up."),
        (root(total / n + same), "the squares of the shards are averaged over the ranks, where they should be added."),
        (root(largest + same), "that has the largest of the ranks' parts in place of their sum."),
        (
            root(everyone + same),
            f"that has the parts of all {attempt.world_size} ranks in it; the group is "
            f"{ranks_text(attempt.case.expected[rank]['group'])} only. Pass group= to the all-reduce.",
        ),
    ]


def _sum_of_tensor_norms(attempt: Any, rank: int) -> float:
    group = attempt.case.expected[rank]["group"]
    shards = [g for r in group for g in attempt.inputs()[r]["shards"]]
    return sum(float(g.norm()) for g in [*shards, *attempt.inputs()[rank]["replicated"]])


def _scaled(attempt: Any) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        factor, given = attempt.case.expected[rank]["factor"], attempt.inputs()[rank]
        for name in ("shards", "replicated"):
            for before, after in zip(given[name], output[name], strict=True):
                if not torch.allclose(after, before * factor, rtol=CLOSE, atol=1e-12):
                    return _wrong_scale(attempt, rank, name, before, after, factor)
    return None


def _wrong_scale(attempt: Any, rank: int, name: str, before: Any, after: Any, factor: float) -> str:
    given = attempt.inputs()[rank]
    head = f"The norm is right, but rank {rank}'s {name} gradients"
    if after.shape == before.shape and torch.equal(before, after):
        return f"{head} are as they were: scale them in place, by max_norm / norm, such as g.mul_(...)."
    ratio = float((after / before).flatten()[0])
    texts = apart(ratio, factor)
    ours = f"are scaled by {texts[0]}, where {texts[1]} is right"
    if not math.isfinite(ratio):
        return f"{head} are no numbers any more: where the norm is 0 (or smaller than max_norm), nothing is to be done."
    if factor == 1:
        return f"{head} {ours}: the norm is below max_norm, and clipping never makes a gradient larger."
    if math.isclose(ratio, factor**2, rel_tol=1e-4):
        return f"{head} {ours}: scaled twice."
    shards, same = _squares(attempt, rank)
    local = given["max_norm"] / math.sqrt(shards[rank] + same)
    if math.isclose(ratio, min(1.0, local), rel_tol=1e-4):
        return f"{head} {ours}: by the local norm. Every rank scales by the same factor, or the direction turns."
    return f"{head} {ours}: max_norm / norm, the same on every rank."


def _one_number(attempt: Any) -> str | None:
    """One all-reduce, of one number."""
    if attempt.world_size == 1:
        return None
    for rank, record in enumerate(attempt.ranks):
        sizes = [size for name, size, _ in record.collectives if name != "barrier"]
        if sizes != [1]:
            numbers = f"{number_of(len(sizes), 'all-reduce')} of {number_of(sum(sizes), 'number')} in all"
            return (
                f"The gradients are right, but rank {rank} needs {numbers}: one all-reduce of one number is enough, "
                "the squares of its own shards."
            )
    return None
