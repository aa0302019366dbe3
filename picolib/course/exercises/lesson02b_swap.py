"""Exercise 2.8: metrics that are summed in another order on each rank, so that one is added to the other."""

from __future__ import annotations

import ast
from typing import Any

import torch

from picolib.course import digits, values
from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.data import generator
from picolib.course.exercises.gradients import some_right
from picolib.course.words import number_of, ranks_text, times
from picolib.launch.wording import listed

METRICS = ("loss", "tokens")
OTHERS = ("accuracy", "grad_norm", "seconds", "skipped", "z_loss")


def metric_cases(world_size: int, seed: int) -> list[Case]:
    """Loss and tokens, then three others, the same on all ranks; odd ranks have found them in the other order."""
    random = generator(seed, world_size)
    chosen = torch.randperm(len(OTHERS), generator=random)[:3].tolist()
    made = []
    for kind, names in (("digits", METRICS), ("float64", tuple(OTHERS[i] for i in chosen))):
        values = [
            {name: _metric(kind, rank, position, random) for position, name in enumerate(names)}
            for rank in range(world_size)
        ]
        total = {name: torch.stack([v[name] for v in values]).sum(0) for name in names}
        ordered = [dict(reversed(list(v.items()))) if rank % 2 else v for rank, v in enumerate(values)]
        made.append(Case(kind, tuple((v,) for v in ordered), (total,) * world_size))
    return made


def _metric(kind: str, rank: int, position: int, random: torch.Generator) -> torch.Tensor:
    if kind == "digits":
        return torch.tensor([10.0**rank + position * digits.PLACE], dtype=torch.float64)
    return torch.randn(1, dtype=torch.float64, generator=random)


def names_written_out(attempt: Any, text: str) -> str | None:
    """A name was looked up that is not always there."""
    if "KeyError" not in text:
        return None
    return "The metrics are not always loss and tokens: go through the names that are in `metrics`."


def judge_metrics(attempt: Any) -> str | None:
    """All sums right, by one collective each, in an order that is the same in every process."""
    names, n = list(attempt.case.expected[0]), attempt.world_size
    for rank, output in enumerate(attempt.outputs):
        if not isinstance(output, dict) or not set(names) <= set(output):
            return f"rank {rank} must return a dictionary with {listed(names)}: the names that are in `metrics`."
        for name, right in attempt.case.expected[rank].items():
            if not torch.is_tensor(output[name]):
                return f"rank {rank}: `{name}` must be a tensor, not {values.shown(output[name])}."
            if not torch.allclose(output[name], right, rtol=1e-10, atol=1e-12):
                return _mixed(attempt, rank, name, float(output[name]))
    counts = [len([c for c in record.collectives if c[0] == "all_reduce"]) for record in attempt.ranks]
    if set(counts) != {len(names)}:
        called, count = number_of(counts[0], "all-reduce"), {2: "two", 3: "three"}[len(names)]
        return f"rank 0 called {called}: keep {count}, one a metric, in the same order on all {n} ranks."
    return _in_the_order_of_a_set(attempt)


def some_sum_is_there(attempt: Any) -> list[int]:
    """The ranks that hold the sum of a metric, though the result of every all-reduce was changed."""
    return [rank for rank, got in enumerate(attempt.outputs) if some_right(attempt.case, rank, got)]


def _in_the_order_of_a_set(attempt: Any) -> str | None:
    """Right here, where all ranks are copies of one process, and mixed where they are not."""
    if not loops_over_a_set(attempt.code):
        return None
    return (
        "The sums are right, and only by luck: a set of texts has an order of its own in each process, unless all are "
        "copies of one, as here. On a cluster the metrics would mix. Go through sorted(metrics)."
    )


def loops_over_a_set(code: str) -> bool:
    """Whether a loop goes through a set, or through a list or tuple made of one."""
    for node in ast.walk(ast.parse(code)):
        while isinstance(node, (ast.For, ast.comprehension)) or _is_call(
            node, "list", "tuple", "enumerate", "reversed"
        ):
            node = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.args[0]
            if isinstance(node, (ast.Set, ast.SetComp)) or _is_call(node, "set", "frozenset"):
                return True
    return False


def _is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and bool(node.args)


def _mixed(attempt: Any, rank: int, name: str, value: float) -> str:
    """Why a number on this rank is not the sum of the ranks' numbers for that name."""
    text = _never_summed(attempt, rank, name, value)
    if text:
        return text
    n = attempt.world_size
    number = digits.read(value, n) if attempt.case.kind == "digits" else None
    if number and set(number.counts) == {1} and number.place is not None:  # all from one metric
        return f"`{name}` on rank {rank} is the sum of `{METRICS[number.place]}`: look at which sum gets which name."
    if attempt.case.kind != "digits" or (number and set(number.counts) == {1}):
        odd = ranks_text(r for r in range(n) if r % 2)
        return (
            f"`{name}` on rank {rank} is mixed with the other metric: in the same call {odd} reduced something else. "
            "Nothing hangs, as the shapes agree. All ranks must go through the names in one order."
        )
    right = float(attempt.case.expected[rank][name])
    for factor, why in ((1 / n, "divided, where a sum is asked for"), (float(n), "summed twice")):
        if abs(value - right * factor) < 1e-9 * abs(right):
            return f"`{name}` on rank {rank} is exactly {times(max(factor, 1 / factor))} too " + (
                f"{'big' if factor > 1 else 'small'}: it was {why}."
            )
    shown, every = number.text if number else f"{value:.6g}", f"`{'1' * n}` is right: every rank's number once"
    lacking = [r for r, count in enumerate(number.counts) if not count] if number else []
    verb = "is" if len(lacking) == 1 else "are"
    who = f": {ranks_text(lacking)} {verb} missing. Is the operation a sum?" if lacking else "."
    return f"`{name}` on rank {rank} is `{shown}`, where {every}{who}"


def _never_summed(attempt: Any, rank: int, name: str, value: float) -> str | None:
    """It is a number of one rank's, or was made without an all-reduce."""
    given = [float(metrics[name]) for metrics in attempt.inputs()]
    outputs = [output.get(name) for output in attempt.outputs if isinstance(output, dict)]
    if len(given) > 1 and {float(one) for one in outputs if torch.is_tensor(one)} == {min(given)}:
        return f"`{name}` on rank {rank} is the smallest of the ranks' numbers. Is the operation a sum?"
    if value == given[rank] and len(attempt.ranks[rank].reductions) >= len(attempt.case.expected[rank]):
        return f"`{name}` on rank {rank} is still its own: what was all-reduced is another tensor, which has the sum."
    if value == given[rank]:
        return f"`{name}` on rank {rank} is still its own: it was never reduced."
    if not any(call[0] == "all_reduce" for call in attempt.ranks[rank].collectives):
        return (
            f"`{name}` on rank {rank} is {value:.6g}, but 0 all-reduces were called: only they bring what others have."
        )
    return None


EXERCISE = Exercise(
    id="2.8",
    function="sum_metrics",
    title="find the bug: the silent swap",
    lesson="02B_cost_and_choice",
    sitting="02B",
    difficulty=2,
    minutes=8,
    task="Metrics are summed by an all-reduce each, and come out mixed. Nothing hangs. Find out why, mend it.",
    cases=metric_cases,
    judge=judge_metrics,
    ignores=some_sum_is_there,
    ended=names_written_out,
    keeps="metrics",
    sizes=(4, 3, 1, 2),
    allows=frozenset({"all_reduce", "barrier"}),
    verified="every sum right, by one collective a metric",
    hints=(
        "Print the names in the order in which each rank goes through them.",
        "A collective has no name on the wire: the first call of one rank meets the first call of the others.",
        "Go through the names in an order that does not depend on the rank: sorted(metrics).",
    ),
)
