"""Exercise 5.5: which mistake makes just these numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from picolib.course.exercises.lesson05a_common import same
from picolib.course.exercises.lesson05b_numbers import WEIGHTS, Whole, normalized, whole_of
from picolib.course.words import apart, times

SLICES = (
    "That is this rank's tokens of its own gradient: the all-gather's backward slices. But each rank's columns know "
    "a share of every token's gradient, so the shares have to be added up: reduce-scatter."
)
OWN_TOKENS_ONLY = (
    "norm: each rank saw its own tokens only. Its weight is whole on every rank, and this rank's gradient is a "
    "summand: add up those of the group."
)


def output_fault(attempt: Any, rank: int, step: int, whole: Whole) -> str | None:
    """The output, and where it is wrong, of what it was made."""
    got, right = attempt.outputs[rank]["steps"][step], whole.y()
    if got["y"] is None or got["y"].shape != right.shape:
        return f"your function must return this rank's tokens, like x: {list(right.shape)}, not {got['kind']}."
    if same(got["y"], right):
        graph = "the output is right, but has no graph: collectives alone tell autograd nothing. Give them both passes."
        return None if got["fits"] else graph
    at = int((got["y"] - right).abs().argmax())
    shown = apart(float(got["y"].flatten()[at]), float(right.flatten()[at]))
    why = next((text for wrong, text in _outputs(whole) if same(got["y"], wrong)), "")
    if not why and torch.allclose(got["y"].double(), right, rtol=1e-4, atol=1e-4):
        why = "It is nearly right: has it lost digits on the way? Keep the dtype of x."
    return f"the output is {shown[0]} at place {at}, where {shown[1]} is right. {why}".rstrip()


def _outputs(whole: Whole) -> Iterator[tuple[torch.Tensor, str]]:
    n, x, mlp = whole.ranks, whole.own(whole.x), whole.own(sum(whole.summands))
    yield mlp, "It lacks x: the block adds its MLP to the stream."
    yield x + mlp / n, f"The MLP's part is exactly {times(n)} too small: summands are added up, not averaged."
    yield n * x + mlp, f"x is in it {n} times: it was added before the sum. Add this rank's tokens after it."
    yield (
        x + whole.own(whole.summands[whole.place]),
        ("That is x and this rank's summand alone: those of all ranks have to be added up, by a reduce-scatter."),
    )
    for place in range(n):
        other = whole.own(sum(whole.summands), place)
        if place != whole.place:
            yield x + other, f"The MLP's part is that of other tokens: of number {place} of the group."
            yield whole.own(whole.x, place) + other, f"Those are the tokens of number {place} of the group."
    yield whole.own(whole.normed) + mlp, "The residual connection adds x itself, and not the norm's output."
    each = [whole.own(one, place) for place, one in enumerate(whole.summands)]
    yield x + sum(each), "Summands of different tokens are added up: all tokens have to be gathered in front of `up`."
    yield x + _hidden_gathered(whole), "The hidden numbers of each token are of one rank's columns: gather before `up`."
    for normed, text in _norms(whole):
        yield x + _mlp(whole, normed), text
    for act, name in ((F.relu, "ReLU"), (F.silu, "SiLU"), (lambda z: z, "no GeLU at all")):
        yield x + _mlp(whole, whole.normed, act), f"That is {name}, and GeLU is asked for."
    tanh = lambda z: F.gelu(z, approximate="tanh")  # noqa: E731
    yield x + _mlp(whole, whole.normed, tanh), "That is GeLU's approximation by tanh: F.gelu(hidden) is asked for."


def _norms(whole: Whole) -> Iterator[tuple[torch.Tensor, str]]:
    x, one = whole.x, torch.ones_like(whole.norm)
    yield x, "It lacks the norm."
    yield normalized(x, one), "The norm lacks its weight."
    yield F.layer_norm(x, x.shape[-1:], whole.norm), "That is LayerNorm, and RMSNorm is asked for."
    summed = f"The norm's weight is {times(whole.ranks)} too big: its gradient is summed, in the backward pass only."
    yield normalized(x, whole.ranks * whole.norm), summed
    for eps in (1e-5, None, 1e-8, 1e-12):
        yield F.rms_norm(x, x.shape[-1:], whole.norm, eps), "The norm's eps is 1e-6."


def _hidden_gathered(whole: Whole) -> torch.Tensor:
    hidden = F.gelu(F.linear(whole.own(whole.normed), whole.weights[whole.place]["up"]))
    return sum(F.linear(hidden, w["down"]) for w in whole.weights)


def _mlp(whole: Whole, normed: torch.Tensor, act: Any = F.gelu) -> torch.Tensor:
    summands = (F.linear(act(F.linear(normed, w["up"])), w["down"]) for w in whole.weights)
    return whole.own(sum(summands))


def everywhere(attempt: Any, step: int) -> torch.Tensor:
    """The norm's gradients of all groups, added up."""
    groups = attempt.case.inputs[0][0]["groups"]
    return sum(whole_of(attempt, ranks[0], step).rights()["norm"] for ranks in groups)


def gradient_fault(attempt: Any, rank: int, step: int, whole: Whole) -> str | None:
    """Gradients in the order in which the backward pass makes them."""
    got, rights = attempt.outputs[rank]["steps"][step], whole.rights()
    for name in ("down", "up", "x", "norm"):
        if same(got[name], rights[name]):
            continue
        head = f"the output is right, but the gradient of `{name}` is wrong."
        if name == "norm" and same(got[name], everywhere(attempt, step)):
            return f"{head} It is the sum over all groups: their norms are others. Hand group=group on to all_reduce."
        if step:
            head = f"step {step + 1}, with the same weights, changed by an optimizer: {head}"
        return f"{head} {_why(name, got[name], rights[name], whole, step)}".rstrip()
    return None


def _why(name: str, got: torch.Tensor | None, right: torch.Tensor, whole: Whole, step: int) -> str:
    if got is None or not bool(got.abs().sum()):
        return "Nothing of it is there: does the graph end on the way?"
    guesses = _weights_guesses(name, whole) if name in WEIGHTS[1:] else _guesses(name, whole, step)
    text = next((text for wrong, text in guesses if same(got, wrong)), "")
    again = " Between the two passes the function was called once more: does it use a tensor again?" if step else ""
    return text or _factor(got, right, whole.ranks) or _LAST[name] + again


def _factor(got: torch.Tensor, right: torch.Tensor, n: int) -> str:
    for factor in (n, n * n, 1 / n):
        if same(got, right * factor):
            size = f"{times(factor)} too big" if factor > 1 else f"{times(1 / factor)} too small"
            return f"It is exactly {size}: " + (
                "is it summed twice?" if factor > 1 else "sums are asked for, no means."
            )
    return ""


def _weights_guesses(name: str, whole: Whole) -> Iterator[tuple[torch.Tensor, str]]:
    place = WEIGHTS.index(name) - 1
    alone = torch.zeros_like(whole.grad)
    whole.own(alone)[:] = whole.own(whole.grad)
    mine = [whole.own(whole.grad)] * whole.ranks
    yield (
        whole.weight_gradients(torch.cat(mine))[place],
        "This rank's gradients stand in for those of the others: the reduce-scatter's backward is an all-gather.",
    )
    yield (
        whole.weight_gradients(alone)[place],
        (
            "It knows of this rank's tokens only: each rank has the gradients of its own tokens, and its columns have "
            "worked on all of them. The reduce-scatter's backward is an all-gather."
        ),
    )


def _guesses(name: str, whole: Whole, step: int) -> Iterator[tuple[torch.Tensor, str]]:
    n, total, mine = whole.ranks, whole.own(sum(whole.shares)), whole.own(whole.shares[whole.place])
    means = f"The MLP's part is exactly {times(n)} too small: shares are added up, not averaged."
    if name == "x":
        yield whole.x_gradient(mine), SLICES
        yield whole.x_gradient(mine * n), SLICES
        mixed = sum(whole.own(sum(whole.shares), place) for place in range(n))
        yield whole.x_gradient(mixed), "Gradients of different tokens are added up: only the norm's weight needs a sum."
        yield whole.x_gradient(total / n), means
        yield whole.x_gradient(total * n), f"The MLP's part is exactly {times(n)} too big: is it summed twice?"
        yield whole.x_gradient(total) - whole.own(whole.grad), "It lacks the residual connection's part."
        yield whole.own(whole.grad), "It is the residual connection's alone: does the graph end in a collective?"
        yield 2 * whole.own(whole.grad) + whole.x_gradient(total) - whole.own(whole.grad), "x is added twice."
        return
    right = sum(whole.norm_gradient(place) for place in range(n))
    yield whole.norm_gradient(whole.place), OWN_TOKENS_ONLY
    yield right / n, f"It is exactly {times(n)} too small: tokens' gradients are added up over the group, not averaged."
    for hooks in range(1, 2 * step + 1):  # each step has called the function twice
        yield (
            right * n**hooks,
            (
                f"It is exactly {times(n**hooks)} too big, and in the first step it was right: a hook on the weight "
                "itself stays there, and the next call adds another one. Let the weight pass through a function of "
                "your own."
            ),
        )


_LAST = {
    "down": "What reaches it is the output's gradient of all tokens: the reduce-scatter's backward gathers them.",
    "up": "What reaches it is the output's gradient of all tokens, and the norm's output of all tokens.",
    "x": "It is the residual connection's, and what the all-gather's backward leaves: the shares of all ranks, added "
    "up, at this rank's tokens.",
    "norm": "It is the sum over all tokens of the group: each rank's summand, all-reduced once.",
}
