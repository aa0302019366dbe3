"""Exercise 3.7: an epoch in which one rank has a batch less than the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson03a_loss import FLOAT32
from picolib.course.exercises.lesson03a_refuse import no_ready_made_ddp
from picolib.course.exercises.rebuilt import note_calls_into
from picolib.course.words import apart, number_of, ranks_text

FEATURES = 3
RATE, OTHER_RATES = 0.1, (0.03, 0.05, 0.07)  # of the first case, and of the second
LONGER = 5, 12  # batches of the longest list where any rank has any number: as many as nobody can know
BATCH = "batch"  # the note of a forward pass with tokens


class Quadratic(nn.Module):
    """Squared errors of a linear model: tokens [n, 4], the last number being the target -> n losses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One loss a token."""
        return (tokens[:, :-1] @ self.weight + self.bias - tokens[:, -1]).square()


class Wavy(Quadratic):
    """The same with one parameter more: its rows of numbers go in as sines, too."""

    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.ones(FEATURES, dtype=torch.float64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One loss a token."""
        given, target = tokens[:, :-1], tokens[:, -1]
        return (given @ self.weight + given.sin() @ self.wave + self.bias - target).square()


def epoch_cases(world_size: int, seed: int) -> list[Case]:
    """The last rank has a batch less, all of 3 tokens; then any number of batches of any size, on one rank none.

    In the second case rank 0 has more batches than all lists of the first; the model and the learning rate are others.
    """
    random = generator(seed, world_size)
    one_less = [[3] * (3 if rank < world_size - 1 or world_size == 1 else 2) for rank in range(world_size)]
    numbers = torch.randint(1, 4, (world_size,), generator=random).tolist()
    numbers[0] = int(torch.randint(*LONGER, (), generator=random))
    if world_size > 2:
        numbers[1] = 0
    uneven = [torch.randint(1, 5, (count,), generator=random).tolist() for count in numbers]
    rate = OTHER_RATES[int(torch.randint(len(OTHER_RATES), (), generator=random))]
    return [_case("one less", one_less, Quadratic, RATE, random), _case("uneven", uneven, Wavy, rate, random)]


def _case(kind: str, sizes: list[list[int]], model: type, rate: float, random: torch.Generator) -> Case:
    made = [[torch.randn(size, FEATURES + 1, dtype=torch.float64, generator=random) for size in rank] for rank in sizes]
    right = _one_process(made, model(), rate)
    return Case(kind, tuple((batches, model, rate) for batches in made), (right,) * len(made))


def _one_process(
    batches: list[list[torch.Tensor]], model: nn.Module, rate: float, direction: int = 1, idle: int = 0
) -> dict[str, torch.Tensor]:
    """The same epoch on one process: step i takes everybody's batch i.

    Mistakes: direction -1 takes the last first; `idle` counts for the tokens of a rank that has no batch.
    """
    for step in range(max(map(len, batches)))[::direction]:
        given = [mine[step] for mine in batches if step < len(mine)]
        losses = model(torch.cat(given))
        model.zero_grad()
        (losses.sum() / (len(losses) + idle * (len(batches) - len(given)))).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
    return {name: p.detach() for name, p in model.named_parameters()}


def train_with(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: one epoch by the learner's function; the parameters, and how many tokens the model has seen."""
    from picolib.course import observe

    batches, of_kind, rate = arguments
    model, seen = of_kind(), []

    def saw(_: Any, given: tuple, __: Any) -> None:
        seen.append(len(given[0]))
        if len(given[0]):
            observe.note(BATCH)

    model.register_forward_hook(saw)
    with no_ready_made_ddp(), note_calls_into("picolib.parallel", "picolib.train"):
        fn(model, batches, rate)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {"parameters": parameters, "batches": len([s for s in seen if s]), "tokens": sum(seen)}


NO_SUCH_BATCH = (
    "This rank has no such batch: the ranks have different numbers of them, and perhaps none, so that there is no "
    "batches[0] to begin with. In a step without a batch its count is 0 and its gradients are zeros; it runs no model."
)
OWN_BATCH = (
    "What a row looks like is between model and batch: don't build a batch of your own. In a step without one the "
    "count is 0 and the gradients are torch.zeros_like(p); no model is run."
)
# What a model raises for a tensor that is none of its batches
NOT_A_BATCH = r"too many indices for tensor|size mismatch|mat1 and mat2|must match the size|shapes cannot be multiplied"

# The verdict ---------------------------------------------------------------------------------------------------

RANK_ENDS = "Whoever has no batch left still has to take part in every step of the others: it has 0 tokens to add."


def judge_epoch(attempt: Any) -> str | None:
    """The parameters of one process that has taken every token, on all ranks."""
    wrong = [rank for rank, output in enumerate(attempt.outputs) if not _right(attempt, rank, output)]
    if not wrong:
        return _idle(attempt)
    return _lost(attempt) or _twice(attempt) or _apart(attempt, wrong)


def ignores_sums(attempt: Any) -> list[int]:
    """The ranks that end with the right parameters, though the result of every all-reduce was changed."""
    return [rank for rank, output in enumerate(attempt.outputs) if _right(attempt, rank, output)]


def _right(attempt: Any, rank: int, output: dict) -> bool:
    return _is(output["parameters"], attempt.case.expected[rank])


def _is(got: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(got[name], right[name], **FLOAT32) for name in right)


def _owned(attempt: Any) -> list[tuple[int, int]]:
    """(batches, tokens) of each rank."""
    return [(len(batches), sum(map(len, batches))) for batches in attempt.inputs()]


def _lost(attempt: Any) -> str | None:
    pairs = list(zip(_owned(attempt), attempt.outputs, strict=True))
    batches = sum(max(0, own[0] - output["batches"]) for own, output in pairs)
    tokens = sum(max(0, own[1] - output["tokens"]) for own, output in pairs)
    if not tokens:
        return None
    have = ", ".join(str(own[0]) for own, _ in pairs)
    return (
        f"{batches} batch{'' if batches == 1 else 'es'}, {number_of(tokens, 'token')} "
        f"{'is' if tokens == 1 else 'are'} lost: the ranks have {have} batches, and the model never saw some of them. "
        "Nobody hangs, but this trains on less than there is."
    )


def _twice(attempt: Any) -> str | None:
    for rank, ((_, own), output) in enumerate(zip(_owned(attempt), attempt.outputs, strict=True)):
        if output["tokens"] > own:
            return (
                f"rank {rank} has {number_of(own, 'token')} and trained on {output['tokens']}: some counted more than "
                "once. That is what padding does: the model differs from one process with the whole batch."
            )
    return None


def _idle(attempt: Any) -> str | None:
    """After its last batch the rank with the longest list has one step's all-reduces to make, or one more to see."""
    if attempt.case.kind != "one less":
        return None
    elements = [0]  # all-reduced before the first batch, after the first, …
    for entry in attempt.ranks[0].entries:
        if entry[:2] == ["note", BATCH]:
            elements.append(0)
        elif entry[0] == "collective":
            elements[-1] += entry[2]
    step, rest = max(elements[1:-1], default=0), elements[-1]
    if not step or rest < 2.75 * step:
        return None
    have = max(batches for batches, _ in _owned(attempt))
    return (
        f"The parameters are right, but rank 0 makes about {number_of(round(rest / step) - 1, 'more step')} after its "
        f"last batch, when nobody has a token left. The longest list has {have} batches: the epoch has as many steps. "
        "ReduceOp.MAX, not the sum of the lengths."
    )


def _kept_gradients(
    batches: list[list[torch.Tensor]], model: nn.Module, rate: float, anew: bool
) -> dict[str, torch.Tensor]:
    """A mistake: backward() adds to the sum of the last step. anew: not on a rank without a batch, which gives 0."""
    parameters = list(model.parameters())
    kept = [[torch.zeros_like(p) for p in parameters] for _ in batches]
    for step in range(max(map(len, batches))):
        count = sum(len(mine[step]) for mine in batches if step < len(mine))
        for rank, mine in enumerate(batches):
            if step < len(mine):
                new = torch.autograd.grad(model(mine[step]).sum() / count, parameters)
                kept[rank] = [one + other for one, other in zip(kept[rank], new, strict=True)]
            elif anew:
                kept[rank] = [torch.zeros_like(p) for p in parameters]
        total = [sum(ranks) for ranks in zip(*kept, strict=True)]
        kept = [total] * len(batches)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, total, strict=True):
                parameter -= rate * gradient
    return {name: p.detach() for name, p in model.named_parameters()}


def _not_summed(batches: list[list[torch.Tensor]], model: nn.Module, rate: float, kept: str) -> dict[str, torch.Tensor]:
    """A mistake: of the ranks' gradients the largest or the smallest numbers ("amax", "amin")."""
    parameters = list(model.parameters())
    for step in range(max(map(len, batches))):
        count = sum(len(mine[step]) for mine in batches if step < len(mine))
        ranks = [
            torch.autograd.grad(model(mine[step]).sum() / count, parameters)
            if step < len(mine) else [torch.zeros_like(p) for p in parameters]
            for mine in batches
        ]  # fmt: skip
        with torch.no_grad():
            for parameter, gradients in zip(parameters, zip(*ranks, strict=True), strict=True):
                parameter -= rate * getattr(torch.stack(gradients), kept)(0)
    return {name: p.detach() for name, p in model.named_parameters()}


def _apart(attempt: Any, wrong: list[int]) -> str:
    first = attempt.outputs[0]["parameters"]
    others = [
        rank for rank, output in enumerate(attempt.outputs)
        if any(not torch.allclose(output["parameters"][name], first[name], **FLOAT32) for name in first)
    ]  # fmt: skip
    if others:
        return (
            f"{ranks_text(others)} {'ends' if len(others) == 1 else 'end'} with other parameters than rank 0: in some "
            "step not all of them took the same gradient. Every rank takes every step, also one without a batch."
        )
    _, model, rate = attempt.case.inputs[0]
    if rate != RATE and _is(first, _one_process(attempt.inputs(), model(), RATE)):
        return f"all ranks agree, and step with a learning rate of {RATE}; here lr is {rate}."
    if _is(first, _one_process(attempt.inputs(), model(), rate, idle=1)):
        return "all ranks agree, but a rank without a batch counts as one token: its count is 0."
    for kept, kind in (("amax", "largest"), ("amin", "smallest")):
        if _is(first, _not_summed(attempt.inputs(), model(), rate, kept)):
            return f"all ranks agree on the {kind} of their gradients, and it is their sum that is asked for: op=SUM."
    if _is(first, _one_process(attempt.inputs(), model(), rate, direction=-1)):
        return "all ranks agree, but took the last batch first: step i takes everybody's batch i."
    for anew in (False, True):
        kept = _kept_gradients(attempt.inputs(), model(), rate, anew)
        if _is(first, kept):
            return (
                "all ranks agree, but not with one process: backward() adds to what p.grad holds, and that is still "
                "the sum of the step before, on every rank. Begin each step without it: p.grad = None."
            )
    name = next(iter(first))
    shown = apart(float(first[name].flatten()[0]), float(attempt.case.expected[0][name].flatten()[0]))
    sizes = "; ".join(f"rank {r}: {[len(b) for b in batches]}" for r, batches in enumerate(attempt.inputs()))
    return (
        f"all ranks agree, but not with one process that has every token: `{name}` is {shown[0]}, where {shown[1]} is "
        f"right. A step's loss is the sum over all tokens divided by the tokens of all ranks. Tokens a batch: {sizes}."
    )


def only_here(attempt: Any) -> str | None:
    """Gradients and counts are sent, never data: no large all-reduce holds numbers of tokens, or is very large."""
    _, model, _ = attempt.case.inputs[0]
    most = sum(p.numel() for p in model().parameters()) + 1
    numbers = torch.cat([batch.flatten() for batches in attempt.inputs() for batch in batches])
    for rank, record in enumerate(attempt.ranks):
        for _, _, elements, _, _, contents, _ in record.reductions:
            if elements > most and (contents is None or _of_tokens(contents, numbers) >= 3):
                return (
                    f"rank {rank} all-reduced {elements} numbers at once, more than the model's gradients and a count "
                    f"({most}), and tokens are among them: tokens stay where they are, gradients travel."
                )
    return None


def _of_tokens(contents: list[float], numbers: torch.Tensor) -> int:
    """How many of these are numbers of tokens, to the precision of float32."""
    far = (torch.tensor(contents, dtype=torch.float64)[:, None] - numbers).abs().amin(dim=1)
    return int((far < 1e-6).sum())
