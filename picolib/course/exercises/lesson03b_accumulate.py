"""Exercise 3.5: m micro-batches, one synchronisation.

In the first case micro-batch k alone has a number at place k of its gradient, so that a wrong gradient says which
micro-batches are in it, and how much they count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from picolib.course import observe
from picolib.course.exercise import COLLECTIVES, Case, Exercise
from picolib.course.exercises import gradients
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson01b_accumulate import RUNNING_TOTAL, SECOND_TIME, is_running_total
from picolib.course.words import number_of, times
from picolib.launch.wording import listed

WEIGHTS = {"weight": (5,), "bias": (3,)}
SIZES = [5, 3]
MANY = 4, 9  # micro-batches of the last case


class Linear(torch.nn.Module):
    """The output is the loss: w·x over all parameters."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in WEIGHTS.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [8]."""
        return torch.cat([self.weight, self.bias]) @ x


def accumulation_cases(world_size: int, seed: int) -> list[Case]:
    """Three micro-batches of powers of ten; then, of random numbers, one, and as many as nobody can know."""
    random, made = generator(seed, world_size), []
    for kind, m in (("powers", 3), ("one", 1), ("random", int(torch.randint(*MANY, (), generator=random)))):
        ranks = [[_micro_batch(kind, rank, k, m, random) for k in range(m)] for rank in range(world_size)]
        mean = torch.stack([x for batches in ranks for x in batches]).mean(0)
        right = dict(zip(WEIGHTS, mean.split(SIZES), strict=True))
        made.append(Case(kind, tuple((batches,) for batches in ranks), (right,) * world_size))
    return made


def _micro_batch(kind: str, rank: int, number: int, of: int, random: torch.Generator) -> torch.Tensor:
    if kind != "powers":
        return torch.randn(8, dtype=torch.float64, generator=random)
    x = torch.full((8,), 10.0**rank, dtype=torch.float64)
    x[:of] = 0
    x[number] = 10.0**rank
    return x


def accumulated(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: gradients, bytes and forward passes of the learner's step, and the bytes of one synchronisation."""
    import picolib

    ddp, calls = picolib.DistributedDataParallel(Linear()), []
    for _ in range(2):  # the first one also agrees on the order of the buckets
        before = _bytes_sent()
        ddp(torch.ones(8, dtype=torch.float64)).backward()
        once = _bytes_sent() - before
    ddp.zero_grad()
    observe.forget()
    blocks = _watched_no_sync(ddp)

    def loss_of(model: Any, micro_batch: torch.Tensor) -> torch.Tensor:
        calls.append({"through_ddp": model is ddp, "still_open": sum(not call["backward"] for call in calls)})
        this, loss = calls[-1], model(micro_batch)
        this["backward"] = False
        loss.register_hook(lambda _: this.update(backward=True))
        return loss

    before = _bytes_sent()
    fn(ddp, arguments[0], loss_of)
    sent = _bytes_sent() - before
    grads = {name: p.grad for name, p in ddp.module.named_parameters()}
    return {"gradients": grads, "calls": calls, "sent": sent, "once": once, **blocks}


def _watched_no_sync(ddp: Any) -> dict[str, int]:
    """How often no_sync() was called, and how often a `with` has entered it."""
    counts, original = {"asked": 0, "entered": 0}, ddp.no_sync

    @contextmanager
    def block() -> Iterator[None]:
        counts["entered"] += 1
        with original():
            yield

    def no_sync() -> Any:
        counts["asked"] += 1
        return block()

    ddp.no_sync = no_sync
    return counts


def _bytes_sent() -> int:
    from picolib.launch import monitor

    observer = monitor.observer()
    return sum(observer.recorder.bytes_to) if observer is not None else 0


def judge_accumulation(attempt: Any) -> str | None:
    """m forward passes, the gradients of one, by one synchronisation, which DDP makes."""
    m = len(attempt.inputs()[0])
    for look in (_passes_fault, _silence_fault, _share_fault, _gradients_fault, _bytes_fault):
        text = look(attempt, m)
        if text:
            return text
    return None


def _passes_fault(attempt: Any, m: int) -> str | None:
    for rank, (record, output) in enumerate(zip(attempt.ranks, attempt.outputs, strict=True)):
        if not all(call["through_ddp"] for call in output["calls"]):
            return f"rank {rank} called loss_of with something else than ddp: ddp must see every forward pass."
        if len(output["calls"]) != m:
            made = number_of(len(output["calls"]), "time")
            return f"rank {rank} called loss_of {made} for {m} micro-batch{'es' if m > 1 else ''}."
        if any(call["still_open"] for call in output["calls"]):
            return (
                f"rank {rank} runs a forward pass while an earlier micro-batch waits for its backward pass: so the "
                "activations of both are in memory. Forward and backward of one, then of the next."
            )
        if _by_hand(record):
            return f"rank {rank} averaged by hand. ddp does it, in the one backward pass that is not under no_sync()."
    return None


def _by_hand(record: Any) -> bool:
    """Whether something was sent by others than DDP."""
    others = {e[5] for e in record.messages} - {"parallel.ddp"}
    return bool(others) or any(name in COLLECTIVES and not owned for name, _, owned in record.collectives)


def _silence_fault(attempt: Any, m: int) -> str | None:
    if attempt.world_size == 1 or any(output["sent"] for output in attempt.outputs):
        return None
    if m == 1:
        return "0 bytes were sent. With one micro-batch, the first is the last: it has to synchronise."
    return "0 bytes were sent: the last forward and backward pass must run outside ddp.no_sync()."


def _share_fault(attempt: Any, m: int) -> str | None:
    """How much each micro-batch counts, read from its own place in the gradient; 1 is right."""
    if attempt.case.kind != "powers":
        return None
    for rank, output in enumerate(attempt.outputs):
        got = output["gradients"]["weight"]
        if not isinstance(got, torch.Tensor) or got.shape != (5,):
            return None
        shares = (got / attempt.case.expected[0]["weight"])[:m].tolist()
        text = _alone(rank, got, attempt, m) or _uneven(rank, shares)
        if text:
            return text
    return None


def _alone(rank: int, got: torch.Tensor, attempt: Any, m: int) -> str | None:
    """A micro-batch of which a rank has only its own gradient."""
    own = 10.0**rank
    lonely = [k for k in range(m) if attempt.world_size > 1 and any(_close(float(got[k]), own * f) for f in (1, 1 / m))]
    if not lonely:
        return None
    return (
        f"rank {rank} has only its own gradient of {_named(lonely)}, not averaged: ddp synchronised before it was "
        "there. The last backward pass is the one to synchronise."
    )


def _uneven(rank: int, shares: Sequence[float]) -> str | None:
    if all(_close(share, shares[0]) for share in shares):
        return None
    missing = [k for k, share in enumerate(shares) if share == 0]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        return (
            f"rank {rank}: {_named(missing)} {are} not in the gradient. Is .grad emptied on the way, or is one "
            "micro-batch taken several times?"
        )
    each = ", ".join(times(share) for share in shares)
    why = RUNNING_TOTAL if is_running_total(shares) else "Divide every loss by m, not some of them."
    return f"rank {rank}: the micro-batches count {each}, where each should count 1x. {why}"


def _named(numbers: Sequence[int]) -> str:
    """ "micro-batches 0 and 1 (counted from 0)"."""
    return f"micro-batch{'es' if len(numbers) > 1 else ''} {listed(list(map(str, numbers)))} (counted from 0)"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * abs(other)


def _gradients_fault(attempt: Any, m: int) -> str | None:
    grads = [output["gradients"] for output in attempt.outputs]
    own = [dict.fromkeys(WEIGHTS, torch.full((1,), float("nan")))] * len(grads)
    wrong = gradients.fault(attempt.case, grads, attempt.case.expected[0], own)
    if wrong is None:
        return None
    told = wrong.split(" Was it")[0]
    if "exactly" not in wrong:
        return told
    factor = float(grads[0]["weight"].sum() / attempt.case.expected[0]["weight"].sum())
    if m != attempt.world_size and any(_close(factor, f) for f in (attempt.world_size, 1 / attempt.world_size)):
        return f"{told} {attempt.world_size} is the number of ranks: over them ddp takes the mean already."
    return f"{told} A mean over {m} micro-batches: where, and how often, do you divide by m?"


def _bytes_fault(attempt: Any, m: int) -> str | None:
    for rank, output in enumerate(attempt.outputs):
        if output["sent"] != output["once"]:
            ratio = output["sent"] / output["once"]
            head = f"The gradients are right, but for {m} micro-batches rank {rank} sent {ratio:.1f}x the bytes. "
            if output["asked"] > output["entered"]:
                return f"{head}You call ddp.no_sync(), but enter no block: `with ddp.no_sync():`, and the passes in it."
            return (
                f"{head}Only the last one has to synchronise; and no_sync() must hold the forward pass too, not "
                "backward alone."
            )
    return None


EXERCISE = Exercise(
    id="3.5",
    function="accumulated_step",
    title="accumulate, then synchronise once",
    lesson="03B_ddp_fast",
    sitting="03B",
    difficulty=2,
    minutes=6,
    task="Gradients of m micro-batches on each rank, in memory for one, with the bytes of one.",
    cases=accumulation_cases,
    call=accumulated,
    judge=judge_accumulation,
    raised=((SECOND_TIME, RUNNING_TOTAL),),
    sizes=(4, 3, 1, 2),
    allows=COLLECTIVES | {"barrier", "parallel.ddp"},
    tags=("gradients",),
    verified="gradients equal the mean over ranks and micro-batches; 3 micro-batches send the bytes of one",
    hints=(
        "backward() adds to .grad. Which of the m backward passes is the first that knows the sum of all?",
        "All micro-batches but the last go under `with ddp.no_sync():`, forward and backward.",
        "The mean over m micro-batches: (loss_of(ddp, micro_batch) / m).backward() for each.",
    ),
)
