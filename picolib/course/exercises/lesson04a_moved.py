"""Exercise 4.6: an optimizer that was built before the parameters were sharded, and so moves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from picolib.course.exercise import Case
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04a_common import (
    FLOAT64,
    by_torch_alone,
    elements_in,
    nothing_ready_made,
    too_many_bytes,
)
from picolib.course.words import apart, ranks_text

FEATURES, HIDDEN = 5, 12  # 5·12 + 12 + 12 parameters: 84, which 2, 3 and 4 divide
TOKENS = 6
BETAS = (0.9, 0.95)
CLOSE = {"rtol": 1e-8, "atol": 1e-10}

Parameters = list[torch.Tensor]


class Small(nn.Module):
    """Tokens [n, 6], the last number being the target -> n losses. It remembers its parameters at each forward pass."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN, dtype=torch.float64)
        self.last = nn.Linear(HIDDEN, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            for p, part in zip(self.parameters(), start.split([p.numel() for p in self.parameters()]), strict=True):
                p.copy_(part.view(p.shape))
        self.seen: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One loss a token."""
        self.seen.append(flat(self))
        return (self.last(torch.tanh(self.first(tokens[:, :-1])))[:, 0] - tokens[:, -1]).square()


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in one vector, a copy."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


TOTAL = FEATURES * HIDDEN + 2 * HIDDEN


def moved_cases(world_size: int, seed: int) -> list[Case]:
    """Some batches for each rank, nobody knows how many, of six tokens each (which is no number of ranks)."""
    random = generator(seed, world_size)
    steps = int(torch.randint(4, 13, (), generator=random))
    start = torch.randn(TOTAL, dtype=torch.float64, generator=random) / 2
    lr = 0.01 + 0.04 * torch.rand((), generator=random).item()
    batches = [
        [torch.randn(TOKENS, FEATURES + 1, dtype=torch.float64, generator=random) for _ in range(steps)]
        for _ in range(world_size)
    ]
    given = [{"start": start, "batches": mine, "lr": lr} for mine in batches]
    model = Small(start)
    first = [torch.autograd.grad(model(mine[0]).mean(), list(model.parameters())) for mine in batches]
    expected = {
        "gradient": mean([torch.cat([g.flatten() for g in gradients]) for gradients in first]),
        "right": trained(given),
        "own": trained(given, average=lambda ranks: own_parts(ranks, world_size)),
        "forgets": trained(given, forgets=True),
        "adds": trained(given, adds=True),
        "last first": trained([{**one, "batches": one["batches"][::-1]} for one in given]),
        "sgd": trained(given, kind=torch.optim.SGD),
        "adam": trained(given, kind=torch.optim.Adam),
        "betas": trained(given, betas=(0.9, 0.999)),
    }
    return [Case("float64", tuple((one,) for one in given), (expected,) * world_size)]


def mean(ranks: Parameters) -> torch.Tensor:
    """Of the ranks' gradients."""
    return torch.stack(ranks).mean(0)


def own_parts(ranks: Parameters, n: int) -> torch.Tensor:
    """A mistake: of each part its owner's own gradient."""
    return torch.cat([gradient.chunk(n)[rank] for rank, gradient in enumerate(ranks)])


def trained(
    given: list[dict],
    average: Callable | None = None,
    forgets: bool = False,
    adds: bool = False,
    kind: Any = torch.optim.AdamW,
    betas: tuple[float, float] = BETAS,
) -> torch.Tensor:
    """The parameters that one process ends with; the arguments are usual mistakes."""
    model = Small(given[0]["start"])
    options = {} if kind is torch.optim.SGD else {"betas": betas}
    made = [kind(model.parameters(), lr=given[0]["lr"], **options)]
    average, before = average or mean, 0
    for batches in zip(*(rank["batches"] for rank in given), strict=True):
        if forgets:
            made.append(kind(model.parameters(), lr=given[0]["lr"], **options))
        ranks = [torch.autograd.grad(model(batch).mean(), list(model.parameters())) for batch in batches]
        vector = average([torch.cat([g.flatten() for g in gradients]) for gradients in ranks]) + before
        before = vector if adds else 0
        for p, part in zip(model.parameters(), vector.split([p.numel() for p in model.parameters()]), strict=True):
            p.grad = part.view(p.shape)
        made[-1].step()
    return flat(model)


def train_with(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: the learner's training, what it leaves, and what its optimizers remember."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    (given,) = arguments
    model, used, first = Small(given["start"]), {}, []

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        used[id(optimizer)] = optimizer
        if not first:
            tensors = [p for group in optimizer.param_groups for p in group["params"]]
            first.append(torch.cat([p.grad.flatten() for p in tensors if p.grad is not None] or [torch.zeros(0)]))

    hook = register_optimizer_step_post_hook(stepped)
    try:
        with nothing_ready_made():
            fn(model, list(given["batches"]), given["lr"])
    finally:
        hook.remove()
    kept = sum(_moments(optimizer) for optimizer in used.values())
    return {"parameters": flat(model), "kept": kept, "first": first, "forwards": len(model.seen)}


def _moments(optimizer: torch.optim.Optimizer) -> int:
    """Numbers in its state, without the count of steps."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return elements_in([v for v in values if isinstance(v, torch.Tensor) and v.dim()])


# The verdict ---------------------------------------------------------------------------------------------------


def judge_moved(attempt: Any) -> str | None:
    """The parameters of one process on every rank, and moments for a share of them."""
    looks = (_nothing, _lost, _apart, _factor, _values, _kept, _bytes)
    return next((text for look in looks if (text := look(attempt))), None)


def moved_ignored(attempt: Any) -> list[int]:
    """Ranks whose optimizer gets the right mean in a case in which the sums that they were given were changed."""
    return [r for r, record in enumerate(attempt.ranks) if _seen(attempt, r) == 1 and by_torch_alone(record)]


def _seen(attempt: Any, rank: int) -> float | None:
    """How large the first gradient that the optimizer saw is, in units of the right one; None: not to be compared.

    Adam hides a factor, so it is the gradient that is looked at.
    """
    grads, n = attempt.outputs[rank]["first"], attempt.world_size
    right = attempt.case.expected[0]["gradient"].chunk(n)[rank]
    if not grads or grads[0].shape != right.shape:
        return None
    factor = float((grads[0] @ right) / (right @ right))
    return round(factor, 6) if torch.allclose(grads[0], factor * right, **CLOSE) else None


def _nothing(attempt: Any) -> str | None:
    start, steps = attempt.inputs()[0]["start"], len(attempt.inputs()[0]["batches"])
    for rank, output in enumerate(attempt.outputs):
        if output["parameters"].shape != start.shape:
            return f"rank {rank}: the model has {output['parameters'].numel()} parameters now; it had {TOTAL}."
        if torch.equal(output["parameters"], start):
            if not output["forwards"]:
                return f"rank {rank} never called model(batch)."
            if output["first"] and output["first"][0].numel():
                return (
                    f"rank {rank}: after {steps} steps every parameter is what it was. The optimizer has moved what it "
                    "holds, and the model knows nothing of it: gather all shards into flat, which the parameters are "
                    "views of."
                )
            return (
                f"rank {rank}: after {steps} steps every parameter is what it was. optimizer.step() moves the tensors "
                "that the optimizer was built with, if they have a .grad. Which tensor gets the averaged gradient, "
                "and which ones does the optimizer hold?"
            )
    return None


def _lost(attempt: Any) -> str | None:
    """Batches that the model never saw."""
    for rank, (output, given) in enumerate(zip(attempt.outputs, attempt.inputs(), strict=True)):
        if output["forwards"] != len(given["batches"]):
            made = f"{output['forwards']} times for {len(given['batches'])} batches"
            return f"rank {rank} called model(batch) {made}: once for each, one step a batch."
    return None


def _apart(attempt: Any) -> str | None:
    odd = [r for r, output in enumerate(attempt.outputs) if not output["parameters"].isfinite().all()]
    if odd:
        return f"{ranks_text(odd)}: parameters are nan or infinite. Is something divided by 0, such as by `rank`?"
    first = attempt.outputs[0]["parameters"]
    others = [r for r, o in enumerate(attempt.outputs) if not torch.allclose(o["parameters"], first, **CLOSE)]
    if not others:
        return None
    return (
        f"{ranks_text(others)} {'ends' if len(others) == 1 else 'end'} with other parameters than rank 0: what a rank "
        "has stepped on, the others have to be told, in every step."
    )


def _values(attempt: Any) -> str | None:
    got, known = attempt.outputs[0]["parameters"], attempt.case.expected[0]
    if torch.allclose(got, known["right"], **CLOSE):
        return None
    words = {
        "own": "each part was moved by its owner's own gradient, not by the mean. The optimizer has to see the "
        "averaged gradient, which is in shard.grad.",
        "forgets": "a new optimizer in each step has no moments: it forgets what Adam is made of. Build it once, "
        "after the sharding and before the loop.",
        "last first": "the last batch was taken first. One step a batch, in the order of the list.",
        "sgd": "that is plain SGD. It is AdamW's step that is asked for, with its moments.",
        "adam": "that is Adam. AdamW also decays the weights, by 0.01 · lr in each step.",
        "betas": "that is AdamW with other betas: (0.9, 0.95) are asked for.",
        "adds": "backward() adds to the gradients of the step before. Forget them: model.zero_grad().",
    }
    for name, text in words.items():
        if torch.allclose(got, known[name], rtol=1e-3, atol=1e-5):
            return f"The parameters move, but not as one process's: {text}"
    index = int((got - known["right"]).abs().nan_to_num(nan=float("inf")).argmax())
    texts = apart(float(got[index]), float(known["right"][index]))
    return (
        f"The parameters move, but not as one process's, which has all batches: parameter {index} (counted from 0) is "
        f"{texts[0]}, where {texts[1]} is right."
    )


def _factor(attempt: Any) -> str | None:
    n = attempt.world_size
    for rank in range(n):
        factor = _seen(attempt, rank)
        if factor in (None, 1):
            continue
        what = f"exactly {n}x too big: the sum over the ranks" if factor == n else f"{factor:g} times their mean"
        if factor == TOKENS:
            what = f"exactly {TOKENS}x too big: the sum over the {TOKENS} tokens of a batch, whose mean is asked for"
        return (
            f"rank {rank}: the gradient that the optimizer gets is {what}. (AdamW hides it: its steps come out almost "
            "as if nothing were wrong.)"
        )
    return None


def _kept(attempt: Any) -> str | None:
    n = attempt.world_size
    for rank, output in enumerate(attempt.outputs):
        if not output["first"]:
            return f"The values are right, but rank {rank} has used no torch.optim optimizer."
        share = 2 * TOTAL // n
        if output["kept"] > share:
            ratio = output["kept"] / share
            return (
                f"The parameters are right, but rank {rank}'s optimizer state holds {ratio:.1f}x of its share: "
                f"{output['kept'] * FLOAT64:,} bytes of moments, where {share * FLOAT64:,} are right. Step on the "
                "shard alone; the other parts come by the all-gather."
            )
    return None


def _bytes(attempt: Any) -> str | None:
    return too_many_bytes(attempt, TOTAL, TOTAL, len(attempt.inputs()[0]["batches"]))
