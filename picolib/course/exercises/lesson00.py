"""Exercises of lesson 00: a share of the work, two ranks that block each other, gradients averaged by hand."""

from __future__ import annotations

from typing import Any

import torch

from picolib.course import digits, values
from picolib.course.exercise import COLLECTIVES, Case, Exercise, Traffic
from picolib.course.exercises import averages
from picolib.course.exercises.data import generator, nbytes
from picolib.course.exercises.gradients import some_right
from picolib.course.words import number_of, ranks_text
from picolib.launch.wording import spans

LESSON = "00_welcome"
ITEMS = 10


# 0.1 ----------------------------------------------------------------------------------------------------------


def share_cases(world_size: int, seed: int) -> list[Case]:
    """The same list on every rank: 10 items for the table, then a random number of them."""
    more = int(torch.randint(11, 40, (1,), generator=generator(seed, world_size)))
    return [Case(kind, ((list(range(count)),),) * world_size, None) for kind, count in (("ten", ITEMS), ("more", more))]


def judge_shares(attempt: Any) -> str | None:
    """Every item on exactly one rank, no rank with more than one item above another, nothing sent."""
    items, n = list(attempt.inputs()[0]), attempt.world_size
    shares = attempt.outputs
    empty = [rank for rank, share in enumerate(shares) if share is None]
    if empty:
        return f"{ranks_text(empty)} returned None. Every rank must return its own share, if need be an empty list."
    if not all(isinstance(share, list) for share in shares):
        rank = next(r for r, share in enumerate(shares) if not isinstance(share, list))
        return f"rank {rank} returned {values.shown(shares[rank])}; a list of items is asked for."
    return _owners(items, shares, n) or _even(shares) or _quiet(attempt)


def _owners(items: list, shares: list, n: int) -> str | None:
    held = [(rank, other) for rank, share in enumerate(shares) for other in share]
    strange = [other for _, other in held if type(other) is not int or other not in items]
    owners = {item: [rank for rank, other in held if type(other) is int and other == item] for item in items}
    nobody = [item for item in items if not owners[item]]
    twice = [item for item in items if len(owners[item]) > 1]
    if twice:
        who = f"{ranks_text(set(owners[twice[0]]))}" + ("" if len(set(owners[twice[0]])) > 1 else " twice")
        return f"item {twice[0]} belongs to {who} (of {n} ranks): each item must have exactly one owner."
    if nobody:
        which = f"item {nobody[0]} belongs" if len(nobody) == 1 else f"items {spans(nobody)} belong"
        return f"{which} to nobody{_why_nobody(items, nobody, n)}."
    return f"{values.shown(strange[0])} is none of the items." if strange else None


def _why_nobody(items: list, nobody: list, n: int) -> str:
    rest = len(items) % n
    if rest and nobody == items[-rest:]:
        return f": {len(items)} items on {n} ranks leave a remainder of {rest}"
    return f": the list has {len(items)} items this time, not {ITEMS}" if nobody == items[ITEMS:] else ""


def _even(shares: list) -> str | None:
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) <= 1:
        return None
    return f"the shares have {', '.join(map(str, sizes))} items: share the remainder out, one item a rank."


def _quiet(attempt: Any) -> str | None:
    sent = sum(len(record.sends) for record in attempt.ranks)
    if not sent:
        return None
    return (
        f"{number_of(sent, 'message')} sent: a rank knows its share from its number and the world size, without asking."
    )


# 0.2 ----------------------------------------------------------------------------------------------------------


def swap_cases(world_size: int, seed: int) -> list[Case]:
    """Two ranks, a tensor each; each must end with the other's."""
    random = torch.randn(2, 64, generator=generator(seed, 2))
    made = []
    for kind, pair in (("digits", [digits.contribution(r, 2) for r in range(2)]), ("float32", list(random))):
        made.append(Case(kind, tuple((t,) for t in pair), tuple(reversed(pair)), exact=True))
    return made


def swap_traffic(case: Case, rank: int) -> Traffic:
    """The tensor once each way, in one message."""
    return Traffic(messages=1, nbytes=nbytes(case.inputs[rank][0]), to=frozenset({1 - rank}))


# 0.3 ----------------------------------------------------------------------------------------------------------


def small_llama() -> torch.nn.Module:
    """A Llama small enough that its gradients are compared in a moment."""
    from picolib.model import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16,
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


def parameter_shapes() -> dict[str, torch.Size]:
    """Full name -> shape of the small Llama's parameters."""
    return {name: p.shape for name, p in small_llama().named_parameters()}


def gradient_cases(world_size: int, seed: int) -> list[Case]:
    """The loss is the sum of w·x over all parameters w, so the gradient of w is x: digits first, then random."""
    random = generator(seed, world_size)
    shapes = parameter_shapes()
    made = []
    for kind in ("digits", "float64"):
        given = [_gradients(shapes, rank, kind, random) for rank in range(world_size)]
        mean = {name: torch.stack([g[name] for g in given]).mean(0) for name in shapes}
        made.append(Case(kind, tuple((g,) for g in given), (mean,) * world_size))
    return made


def _gradients(shapes: dict, rank: int, kind: str, random: torch.Generator) -> dict[str, torch.Tensor]:
    if kind == "digits":
        return {name: torch.full(shape, 10.0**rank, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: torch.randn(shape, dtype=torch.float64, generator=random) for name, shape in shapes.items()}


def backward_with(fn: Any, arguments: tuple) -> dict[str, torch.Tensor]:
    """In a rank: a model and a loss whose gradients are known; what they are after the learner's function."""
    (given,) = arguments
    model = small_llama()
    loss = sum((p * given[name]).sum() for name, p in model.named_parameters())
    fn(model, loss)
    return {name: p.grad for name, p in model.named_parameters()}


_FIRST = "Call loss.backward() first."


def judge_gradients(attempt: Any) -> str | None:
    """Equal to the mean over ranks, parameter by parameter, on every rank, with one all-reduce a parameter."""
    faults = []
    for rank, grads in enumerate(attempt.outputs):
        missing = [name for name, grad in grads.items() if grad is None]
        if missing:
            called = any(c[0] == "all_reduce" for c in attempt.ranks[rank].collectives)
            why = "It had one that was all-reduced: was zero_grad() called at the end?" if called else _FIRST
            return f"rank {rank}: `{missing[0]}` has no gradient. {why}"
        for name, right in attempt.case.expected[rank].items():
            if not torch.allclose(grads[name], right, rtol=1e-10, atol=1e-12):
                faults.append((rank, name))
    reduced = [[c[1] for c in record.collectives if c[0] == "all_reduce"] for record in attempt.ranks]
    if faults:
        return averages.fault(attempt, faults, reduced[0])
    return _one_each(attempt, reduced) or _nothing_else(attempt)


def some_mean_is_there(attempt: Any) -> list[int]:
    """The ranks that hold the mean of a gradient, though the result of every all-reduce was changed."""
    return [rank for rank, got in enumerate(attempt.outputs) if some_right(attempt.case, rank, got)]


def _one_each(attempt: Any, reduced: list[list[int]]) -> str | None:
    """As many all-reduces as parameters, of the parameters' sizes."""
    wanted = sorted(right.numel() for right in attempt.case.expected[0].values())
    for rank, counts in enumerate(reduced):
        if len(counts) != len(wanted):
            return (
                f"The gradients are right, with {number_of(len(counts), 'all-reduce')} for {len(wanted)} parameters "
                f"on rank {rank}. Here it is one a parameter, by hand; lesson 03 makes it fewer."
            )
        if sorted(counts) != wanted:
            odd = next(count for count, right in zip(sorted(counts), wanted, strict=True) if count != right)
            return (
                f"The gradients are right, but rank {rank} all-reduced {number_of(odd, 'number')} at once, and the "
                "sizes are not those of the parameters: all-reduce each p.grad as it is."
            )
    return None


def _nothing_else(attempt: Any) -> str | None:
    """The gradients travel by the all-reduces alone."""
    for rank, record in enumerate(attempt.ranks):
        if record.sends:
            also = f"sent {number_of(len(record.sends), 'message')}"
        else:
            names = [name for name, *_ in record.collectives if name not in ("all_reduce", "barrier")]
            also = f"called {names[0]}" if names else ""
        if also:
            return f"The gradients are right, but rank {rank} also {also}: one all-reduce a parameter is enough."
    return None


EXERCISES = (
    Exercise(
        id="0.1",
        function="my_share",
        title="your share of 10 items",
        lesson=LESSON,
        sitting="00",
        difficulty=1,
        minutes=5,
        task="Return this rank's share of a list: every item on exactly one rank, even shares, nothing sent.",
        cases=share_cases,
        judge=judge_shares,
        keeps="items",
        sizes=(4, 3, 1, 2, 5, 8),
        allows=frozenset(),
        verified="every item has exactly one owner; {messages} messages sent",
        hints=(
            "A rank knows two numbers: dist.get_rank() and dist.get_world_size(). They are enough.",
            "Take every N-th item, starting at your own rank; or cut the list at whole-number multiples of len/N.",
            "Python's slices have a step: items[start::step]. What are start and step?",
        ),
    ),
    Exercise(
        id="0.2",
        function="swap",
        title="unblock two ranks",
        lesson=LESSON,
        sitting="00",
        difficulty=1,
        minutes=5,
        task="Two ranks swap their tensors with send and recv, without blocking each other.",
        cases=swap_cases,
        sizes=(2,),
        keeps="mine",
        traffic=swap_traffic,
        circle="The circle is still there: one of the two ranks has to do its two calls in the other order.",
        beyond="The other rank is `other`, 1 - dist.get_rank(), on both ranks: send to it, and receive from it.",
        verified="2 messages, one each way",
        hints=(
            "As given, both ranks wait in the same line. Who could move if one of them did the two calls in the other "
            "order? (Or start the send with isend, then receive; and wait for its handle before you return.)",
            "Let rank 0 send first and rank 1 receive first.",
            "if dist.get_rank() == 0: send, then receive; else: receive, then send.",
        ),
    ),
    Exercise(
        id="0.3",
        function="average_gradients",
        title="average gradients by hand",
        lesson=LESSON,
        sitting="00",
        difficulty=2,
        minutes=10,
        task="Run loss.backward(), then average every parameter's gradient over all ranks, one all-reduce a parameter.",
        cases=gradient_cases,
        call=backward_with,
        judge=judge_gradients,
        ignores=some_mean_is_there,
        sizes=(4, 3, 1, 2),
        allows=COLLECTIVES | {"barrier"},
        tags=("gradients",),
        verified="gradients of a small Llama equal the mean over ranks in float64; one all-reduce a parameter",
        hints=(
            "After loss.backward() each parameter's gradient stands in p.grad. Which of them differ between ranks?",
            "dist.all_reduce(p.grad) leaves the sum over ranks in p.grad, on every rank.",
            "A mean is a sum divided by the number of ranks: dist.get_world_size().",
        ),
    ),
)
