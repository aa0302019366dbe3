"""Exercise 5.2: column then row. An MLP whose first matrix is cut by output features and its second by input features.

Every rank is given whole weights, and takes its part. What it has really computed with is read from the gradients:
they are zero for all that it left out. In all cases but the first the other ranks' parts are noise, different on each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from picolib.course.exercise import Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.lesson05a_common import (
    ALLOWED,
    LESSON,
    READY_MADE,
    both_passes,
    count_fault,
    f,
    first_fault,
    g,
    in_the_graph,
    numbers_text,
    only_all_reduce,
    reduced,
    same,
)
from picolib.course.exercises.lesson05a_weights import NAMES, SIZES, assembled, mlp_cases, rights
from picolib.course.words import apart, number_of, times

NO_SUM = (
    "Cut by its input features first, each rank has a summand of every hidden number, and GeLU(a + b) is not "
    "GeLU(a) + GeLU(b): the sum would have to be made before GeLU, and again at the end. Cut `up` by output features."
)
STAY_CUT = "1 is right. GeLU works on each number by itself, so what is cut by columns can stay cut until the end."
ONE_F = "1 is right. x enters once, through one f."


def run_mlp(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: both passes, for each set of numbers."""
    (batches,) = arguments
    with calls_into(*READY_MADE) as called:
        calls = [_passes(fn, *batch) for batch in batches]
    how = "the two functions that it is given"
    return {"calls": calls, "borrowed": called[:1], "instead": how}


def _passes(fn: Callable, *batch: torch.Tensor) -> dict[str, Any]:
    """x has another use, as beside a residual connection; the gradient of that is taken out again."""
    *given, grad = batch
    variables = [tensor.clone().requires_grad_() for tensor in given]
    x, other = variables[0] * 1, given[0]
    seen = both_passes(lambda: fn(x, *variables[1:], f, g), lambda y: y.shape == grad.shape, grad, [(x, other)])
    gradients = {name: v.grad for name, v in zip(NAMES, variables, strict=True)}
    if seen.both:
        gradients["x"] = gradients["x"] - other
    now = [x, *variables[1:]]
    changed = [name for name, v, was in zip(NAMES, now, given, strict=True) if not torch.equal(v.detach(), was)]
    y = seen.output if isinstance(seen.output, torch.Tensor) else type(seen.output).__name__
    return {"fits": seen.both, "y": y, "products": seen.forward.products, "changed": changed, **gradients}


def judge_mlp(attempt: Any) -> str | None:
    """How it was cut, the output, the gradients, and the all-reduces."""
    looks = (_cut_fault, _parts_fault, _output_fault, _share_fault, _gradient_fault, _size_fault)
    for number in range(len(attempt.case.inputs[0][0])):
        batch = assembled(attempt, number)
        right = rights(batch) | {"number": number}
        text = first_fault(looks, attempt, number, right, batch)
        if text:
            return text
    counts = {"forward": (1, STAY_CUT), "backward": (1, ONE_F)}
    return count_fault(attempt, "Output and gradients", counts) or in_the_graph(attempt)


def _cut_fault(attempt: Any, rank: int, got: dict, right: dict, batch: list) -> str | None:
    """By which features the first matrix was cut."""
    if isinstance(got["y"], str) or got["y"].shape != right["y"].shape:
        shown = got["y"] if isinstance(got["y"], str) else list(got["y"].shape)
        return f"rank {rank}: your function must return a tensor like x, {list(right['y'].shape)}, not {shown}."
    if not got["fits"]:
        return (
            f"rank {rank}: what you return has no graph: use the weights and x themselves, without detach or no_grad."
        )
    if got["up"] is None:
        return None
    columns = got["up"].abs().sum(0).nonzero().flatten().tolist()
    if 0 < len(columns) < len(right["up"][0]):
        return f"rank {rank} multiplies with input features {numbers_text(columns)} of `up` alone. {NO_SUM}"
    return None


def _output_fault(attempt: Any, rank: int, got: dict, right: dict, batch: list) -> str | None:
    y, n = got["y"].detach(), attempt.world_size
    if same(y, right["y"]):
        return None
    x, up, up_bias, down, down_bias = batch[:5]
    each = len(up_bias) // n
    part = slice(rank * each, (rank + 1) * each)
    hidden = F.gelu(F.linear(x, up, up_bias))
    own = hidden[:, part] @ down[:, part].T
    told = {
        f"The bias of `down` is in it {n} times: every rank adds it to its summand, and the sum has it once a rank. "
        f"That is {n - 1} too many: add it after the sum.": right["y"] + (n - 1) * down_bias,
        "It lacks the bias of `down`.": right["y"] - down_bias,
        "The bias of `down` is subtracted.": right["y"] - 2 * down_bias,
        "The sum is divided by the number of ranks: summands are added up, not averaged.": (
            (right["y"] - down_bias) / n + down_bias
        ),
        "That is x itself.": x,
        "x is added to it: a residual connection is for whoever calls this.": right["y"] + x,
        "That is this rank's summand alone: g adds up those of all ranks.": own,
        "That is this rank's summand and the bias: g adds up the summands of all ranks.": own + down_bias,
        f"It is exactly {times(n)} too big: every rank has computed all of it, and g added that up.": n * right["y"],
        f"It is exactly {times(n)} too small: summands are added up, not averaged.": right["y"] / n,
        "All of it is this rank's part, computed n times over.": n * own,
        "g stands in front of the second matrix: it adds up hidden numbers of different ranks, no summands.": (
            F.linear(hidden.unflatten(1, (n, each)).sum(1), down[:, part], down_bias)
        ),
        "Are f and g swapped? x enters through f, and summands leave through g.": (
            F.gelu(F.linear(n * x, up[part], up_bias[part])) @ down[:, part].T + down_bias
        ),
        "Hidden numbers lack the bias of `up`.": F.gelu(x @ up.T) @ down.T + down_bias,
        "The bias of `up` is divided by the number of ranks: a hidden number is computed by one rank alone.": (
            F.gelu(F.linear(x, up, up_bias / n)) @ down.T + down_bias
        ),
        "GeLU stands behind the second matrix: it belongs between the two.": (
            F.gelu(F.linear(F.linear(x, up, up_bias), down, down_bias))
        ),
        "It lacks GeLU.": F.linear(F.linear(x, up, up_bias), down, down_bias),
        "That is ReLU, and GeLU is asked for.": F.linear(F.linear(x, up, up_bias).relu(), down, down_bias),
        "That is SiLU, and GeLU is asked for.": F.linear(F.silu(F.linear(x, up, up_bias)), down, down_bias),
        "That is GeLU's approximation by tanh: F.gelu(hidden) as it stands is asked for.": (
            F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh"), down, down_bias)
        ),
    }
    why = next((text for text, wrong in told.items() if same(y, wrong)), "")
    if torch.allclose(y.double(), right["y"], rtol=1e-5, atol=1e-5):
        why = "Rounding is all that differs: is something computed in float32? Keep the dtype of x."
    at = int((y - right["y"]).abs().argmax())
    shown = apart(float(y.flatten()[at]), float(right["y"].flatten()[at]))
    return f"rank {rank}: the output is {shown[0]} at place {at}, where {shown[1]} is right. {why}".rstrip()


def _parts_fault(attempt: Any, rank: int, got: dict, right: dict, batch: list) -> str | None:
    """Of the three, other hidden numbers are used: read from where their gradients are not zero."""
    sums = {"up": lambda w: w.abs().sum(1), "up_bias": torch.abs, "down": lambda w: w.abs().sum(0)}
    used = {name: sums[name](got[name]).nonzero().flatten().tolist() for name in sums if got[name] is not None}
    most = set(max(used.values(), key=len, default=()))
    if len(used) < 3 or all(most.issuperset(numbers) for numbers in used.values()):
        return None
    parts = ", ".join(f"{numbers_text(numbers)} of `{name}`" for name, numbers in used.items())
    return f"rank {rank} computes with hidden numbers {parts}: they have to be the same ones."


def _share_fault(attempt: Any, rank: int, got: dict, right: dict, batch: list) -> str | None:
    """Which hidden numbers a rank has computed: those of which `up` has a gradient; how many, by its products."""
    tokens, width, each = SIZES[attempt.world_size]
    own = list(range(rank * each, (rank + 1) * each))
    if got["up"] is None:
        return f"The output is right, but rank {rank} does not use `up`: it has no gradient. Who has computed it?"
    rows = got["up"].abs().sum(1).nonzero().flatten().tolist()
    computed = got["products"] // (2 * tokens * width)  # each takes h products a token, and h more in `down`
    if len(rows) > each or computed > 1.5 * each:
        return (
            f"The output is right, but rank {rank} computes {max(len(rows), min(computed, len(right['up'])))} of "
            f"{len(right['up'])} hidden numbers, and its share is {each}: {numbers_text(own)}. What every rank "
            "computes is not split."
        )
    if rows == own:
        return None
    return f"The output is right, but rank {rank} computes hidden numbers {numbers_text(rows)}; its own are " + (
        f"{numbers_text(own)}."
    )


def _gradient_fault(attempt: Any, rank: int, got: dict, right: dict, batch: list) -> str | None:
    n, each = attempt.world_size, SIZES[attempt.world_size][2]
    part = slice(rank * each, (rank + 1) * each)
    if got["changed"]:
        return f"rank {rank}: `{got['changed'][0]}` has changed: others use it, too. Work on a tensor of your own."
    if same(got["x"], right["x"] + (n - 1) * batch[0]):
        return f"rank {rank}: the gradient of `x` is wrong. {_OTHER_USES}"
    for name in NAMES:
        exact = right[name]
        if name in ("up", "up_bias", "down"):
            where = (slice(None), part) if name == "down" else part
            exact = torch.zeros_like(exact)
            exact[where] = right[name][where]
        if not same(got[name], exact):
            more = max(map(len, reduced(attempt.ranks[rank], "backward"))) > 1 and not same(got[name], n * exact)
            why = _MORE if more and name == "x" else _why(name, got[name], exact, n)
            if all(output["calls"][right["number"]][name] is None for output in attempt.outputs):
                why = f"No rank has any: is `{name}` detached?"
            if name == "x" and why == _F and not same(got["x"], _share(batch, part)):
                why = _CUT if not bool(got["x"].abs().max() > 1e-9) else _ELSEWHERE
            return f"rank {rank}: the gradient of `{name}` is wrong. {why}"
    return None


def _size_fault(attempt: Any, rank: int, got: dict, right: dict, batch: list) -> str | None:
    """The numbers of an all-reduce: those of the output, those of x."""
    for way, name in (("forward", "y"), ("backward", "x")):
        calls = reduced(attempt.ranks[rank], way)[right["number"]]
        size = calls[0] if len(calls) == 1 else right[name].numel()
        if size != right[name].numel():
            return (
                f"Output and gradients are right, but rank {rank} all-reduces {number_of(size, 'number')} in the {way} "
                f"pass, and {name} has {right[name].numel()}: the sum itself is what an all-reduce leaves."
            )
    return None


_OTHER_USES = (
    "x has another use as well, as beside a residual connection, and the gradient of that was added up over the ranks, "
    "too. A hook belongs on a tensor of the layer's own, such as x.view_as(x), which is what f makes."
)
_F = (
    "That is what comes through this rank's columns alone; each rank has another share of it, and they have to be "
    "added up: x enters through f."
)
_CUT = "There is none: is x detached?"
_ELSEWHERE = (
    "It is neither the whole nor this rank's share: f belongs where x enters, before the first matrix, and nothing on "
    "the way from there may be detached."
)
_MORE = (
    "More than one all-reduce runs in the backward pass. f belongs where x enters, once: further in each rank has "
    "gradients of its own numbers, which are no shares of one."
)


def _share(batch: list, part: slice) -> torch.Tensor:
    """The gradient of x through these hidden numbers alone."""
    x, up, up_bias, down, _, grad = batch
    x = x.clone().requires_grad_()
    (F.gelu(F.linear(x, up[part], up_bias[part])) @ down[:, part].T).backward(grad)
    return x.grad  # type: ignore[return-value]


def _why(name: str, got: torch.Tensor | None, exact: torch.Tensor, n: int) -> str:
    nothing = got is None or not bool(got.abs().sum())
    if name == "x" and (nothing or not any(same(got, exact * k) for k in (n, n * n, 1 / n))):
        return _F
    if name == "down_bias" and nothing:
        return "Another rank adds it. Every rank keeps this bias, so every rank needs its gradient: add it after g."
    for factor in (n, n * n, 1 / n):
        if got is not None and same(got, exact * factor):
            size = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
            more = " Is it added in parts? It is whole on every rank, and added once, after g."
            return f"It is exactly {size}." + (more if name == "down_bias" else "")
    return "Nothing of it is there." if nothing else "Which numbers is it computed from?"


def ignoring(attempt: Any) -> list[int]:
    """Ranks with the right output though every all-reduce left something else."""
    right = rights(attempt.case.inputs[0][0][0])["y"]
    return [rank for rank, output in enumerate(attempt.outputs) if same(output["calls"][0]["y"], right)]


EXERCISE = Exercise(
    id="5.2",
    function="mlp",
    title="column then row",
    lesson=LESSON,
    sitting="05A",
    difficulty=2,
    minutes=8,
    task="An MLP split over the ranks: the first matrix by columns, the second by rows, one all-reduce each way.",
    cases=mlp_cases,
    call=run_mlp,
    judge=judge_mlp,
    ignores=ignoring,
    sizes=(4, 3, 2),
    allows=ALLOWED,
    raised=(
        (
            "shapes cannot be multiplied|index out of range|must match",
            "Which dimension is cut? Weights are [out, in]: `up` and its bias by dim 0 (output features), `down` by 1.",
        ),
    ),
    rules=(
        borrowed,
        only_all_reduce(
            "Nothing has to be put together between the two matrices: GeLU works on each number by itself, so each "
            "rank goes on with its own. One sum at the end is enough, and g makes it."
        ),
    ),
    tags=("gradients",),
    verified="each rank computes its hidden numbers only; one all-reduce forward, one backward",
    hints=(
        "torch stores up as [hidden, h], and x @ up.T is computed: Megatron's columns are its rows, up.chunk(t)[r].",
        "F.gelu(F.linear(f(x), my_up, my_up_bias)) has this rank's hidden numbers. down is [h, hidden]: which are its "
        "part, and along which dimension?",
        "down.chunk(t, dim=1)[r] takes in just what this rank has. g(F.linear(hidden, my_down)) + down_bias.",
    ),
)
