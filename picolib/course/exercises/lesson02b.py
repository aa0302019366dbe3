"""Exercises of sitting 02B: recursive doubling, the bill from alpha and beta, a silent swap."""

from __future__ import annotations

import ast
import re
from typing import Any

import torch

from picolib.course import digits, values
from picolib.course.ended import ITSELF
from picolib.course.exercise import Case, Exercise, Sent, Traffic
from picolib.course.exercises.bills import bill_cases, both_bills, judge_bill, log2, partners
from picolib.course.exercises.data import all_reduced, generator, nbytes, vectors
from picolib.course.exercises.gradients import some_right
from picolib.course.words import number_of, ranks_text, times
from picolib.launch.wording import listed

LESSON = "02B_cost_and_choice"


# 2.6 ----------------------------------------------------------------------------------------------------------

MUTUAL = "Partners are mutual: whom you send to, from that rank you receive."
ISEND = "In each step start the send with isend, then receive, then wait."
WAITS = re.compile(r"rank (\d+) waits in (send|recv) (?:to|from) rank (\d+)")


def doubling_ended(attempt: Any, text: str) -> str | None:
    """Whom a rank meets, and in which order the two of them call."""
    if ITSELF in text or "there is no rank" in text:
        return (
            "The partner is always another rank below N: print whom each rank meets in each step, before it sends. "
            "Its number differs in one bit, another bit in each step."
        )
    waits = {int(rank): (call, int(other)) for rank, call, other in WAITS.findall(text)}
    if not waits:
        return None
    if all(waits.get(other) == (call, rank) for rank, (call, other) in waits.items()):
        return f"Two and two call each other, both the same way round. {ISEND}"
    return f"{MUTUAL} {ISEND}" if len(waits) > 1 else None


def doubling_traffic(case: Case, rank: int) -> Traffic:
    """The whole vector to each partner."""
    met = partners(case.world_size, rank)
    return Traffic(len(met), len(met) * nbytes(case.inputs[rank][0]), frozenset(met))


def not_mutual(attempt: Any) -> str | None:
    """Somebody sends to a rank that, in the same step, sends to a third one."""
    n = attempt.world_size
    for step in range(log2(n)):
        met = [record.sends[step][1] if len(record.sends) == log2(n) else None for record in attempt.ranks]
        for rank, other in enumerate(met):
            if other is not None and met[other] is not None and met[other] != rank:
                return (
                    f"in step {step + 1} rank {rank} sends to rank {other}, and rank {other} to rank {met[other]}. "
                    f"{MUTUAL}{_also_adds_up(attempt)}"
                )
    return None


def _also_adds_up(attempt: Any) -> str:
    """To one rank, from another: every sum is complete, and yet not the same on all ranks."""
    if values.diagnose(attempt):
        return ""
    return (
        " The sums are right up to rounding, but each rank adds in another order, so the last bits differ from rank "
        "to rank, and replicas would drift apart. Partners who swap and add do the same sum."
    )


def same_partner(attempt: Any) -> str | None:
    """The partner does not change from step to step."""
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        peers = [s[1] for s in record.sends]
        if n > 2 and len(peers) == log2(n) and len(set(peers)) == 1:
            return f"rank {rank} meets rank {peers[0]} in every step. Each step needs a new partner."
    return None


def one_way(attempt: Any) -> str | None:
    """Only one of two partners sends."""
    pairs = {(rank, s[1]) for rank, record in enumerate(attempt.ranks) for s in record.sends}
    for rank, other in sorted(pairs):
        if (other, rank) not in pairs:
            return (
                f"rank {rank} sends to rank {other}, which never sends to rank {rank}. {MUTUAL} Both send what they "
                "have, and both add."
            )
    return None


def not_one_bit(attempt: Any) -> str | None:
    """Partners are mutual, but one differs in several bits, or in one that was flipped before: its sum is known."""
    n = attempt.world_size
    for rank, record in enumerate(attempt.ranks):
        left = [1 << k for k in range(log2(n))]
        for step, sent in enumerate(record.sends if len(record.sends) == log2(n) else ()):
            if rank ^ sent[1] not in left:
                return (
                    f"in step {step + 1} rank {rank} meets rank {sent[1]}, part of whose sum it has already. Flip one "
                    f"bit of the rank, another one in each step: here for example rank {rank ^ left[0]}."
                )
            left.remove(rank ^ sent[1])
    return None


def too_many_steps(attempt: Any) -> str | None:
    """Right, but by a ring or by sending to everybody."""
    n, taken = attempt.world_size, max(len(record.sends) for record in attempt.ranks)
    if n < 4 or taken <= log2(n):
        return None
    return f"on {n} ranks a rank sends {number_of(taken, 'message')}: {taken} steps; {log2(n)} suffice."


# 2.8 ----------------------------------------------------------------------------------------------------------

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
    n = attempt.world_size
    own = float(attempt.inputs()[rank][name])
    if value == own:
        return f"`{name}` on rank {rank} is still its own: it was never reduced."
    if not any(call[0] == "all_reduce" for call in attempt.ranks[rank].collectives):
        return (
            f"`{name}` on rank {rank} is {value:.6g}, but 0 all-reduces were called: only they bring what others have."
        )
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


EXERCISES = (
    Exercise(
        id="2.6",
        function="recursive_doubling",
        title="recursive doubling",
        lesson=LESSON,
        sitting="02B",
        difficulty=3,
        minutes=12,
        task="Sum x over N ranks (a power of two), in place, in log2 N steps: swap all of x with a partner, and add.",
        cases=vectors(all_reduced, 0, pieces=False),
        sizes=(8, 1, 2, 4),
        output="argument",
        traffic=doubling_traffic,
        formula="log2(N)·S",
        script=lambda n, rank: [Sent(other) for other in partners(n, rank)],
        rules=(same_partner, not_mutual, too_many_steps, one_way, not_one_bit),
        same_bits=True,
        ended=doubling_ended,
        verified="{messages} steps on 8 ranks = log2 N; {bytes} bytes per rank = log2(N)·S; the same bits everywhere",
        hints=(
            "After one step pairs know their sum. Whom must a pair meet next, so that four ranks know theirs?",
            "In step k the partner is the rank whose number differs in bit k: rank ^ (1 << k).",
            "Send x with isend, receive into another tensor, wait, and only then add: x must not change while sent.",
        ),
    ),
    Exercise(
        id="2.7",
        function="bill",
        title="the bill from alpha and beta",
        lesson=LESSON,
        sitting="02B",
        difficulty=2,
        minutes=10,
        task="Seconds of an all-reduce by ring and by recursive doubling, from N, S, alpha (s) and beta (s/byte).",
        cases=bill_cases,
        call=both_bills,
        judge=judge_bill,
        sizes=(1,),
        verified="within 15% of slow motion for 5 machines, the right winner on each side",
        hints=(
            "A message of m bytes takes alpha + beta·m. Count the messages that have to come one after the other.",
            "The ring takes 2(N-1) steps with one chunk each; doubling takes log2 N steps with the whole vector each.",
            "2(N-1)·(alpha + beta·S/N) and log2 N·(alpha + beta·S).",
        ),
    ),
    Exercise(
        id="2.8",
        function="sum_metrics",
        title="find the bug: the silent swap",
        lesson=LESSON,
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
    ),
)
