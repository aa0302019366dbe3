"""DDP or FSDP: bytes, memory and time of a step by formula. Both hide what they send behind compute, as far as it goes.

A transformer layer of P parameters computes 2P floating-point operations a token forward and twice that backward.
Parameters and gradients travel in bf16, 2 bytes; the state has 16 bytes a parameter (01A). Sources: Rajbhandari et al.
2020 (ZeRO); Kaplan et al. 2020, section 2.1, for the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from picolib.course.figures.canvas import Figure
from picolib.course.figures.exposed import Bar, Note, exposed_bars
from picolib.course.style import GOOD, INK, MUTED

BYTES, STATE, CARD = 2, 16, 80e9  # of a number that travels; of state, a parameter; of a GPU
FLOPS = 4e14  # operations a second that a GPU reaches in bf16: 40% of what an H100 is sold for
LEFT, RIGHT, HELD = 118, 266, 104


class Model(NamedTuple):
    """What matters of a model here."""

    name: str
    parameters: float
    layers: int


MODELS = (Model("Llama 3.2 1B", 1.24e9, 16), Model("Llama 3 8B", 8.03e9, 32), Model("Llama 3 70B", 70.6e9, 80))


class Plan(NamedTuple):
    """A step of one rank: bytes that it sends, bytes of state, seconds of compute, seconds in which it only waits."""

    name: str
    sent: float
    state: float
    compute: float
    exposed: float


def fsdp_seconds(forward: float, backward: float, gather: float, reduce: float, layers: int, keeps: bool) -> float:
    """A step of equal layers, the next all-gather under way while one computes; messages queue on one network.

    keeps: whole weights stay from forward to backward (reshard_after_forward=False).
    """
    network = clock = 0.0

    def fetched(at: float) -> float:
        nonlocal network
        network = max(network, at) + gather
        return network

    there = fetched(0.0)
    for layer in range(layers):
        clock = max(clock, there)
        there = fetched(clock) if layer + 1 < layers else clock
        clock += forward
    there = clock if keeps else fetched(clock)
    for layer in reversed(range(layers)):
        clock = max(clock, there)
        there = fetched(clock) if layer and not keeps else clock
        clock += backward
        network = max(network, clock) + reduce
    return max(clock, network)


def ddp_seconds(forward: float, backward: float, reduce: float, layers: int) -> float:
    """A step of equal layers, each layer's all-reduce started when its backward pass is through."""
    clock, network = layers * forward, 0.0
    for _ in range(layers):
        clock += backward
        network = max(network, clock) + reduce
    return max(clock, network)


def plans(model: Model, ranks: int, tokens: float, bandwidth: float, flops: float = FLOPS) -> list[Plan]:
    """DDP, FSDP, and FSDP that keeps whole weights until backward. tokens: of one rank; bandwidth: bytes a second."""
    layer, share = model.parameters / model.layers, (ranks - 1) / ranks
    forward, backward = (times * layer * tokens / flops for times in (2, 4))
    once = share * layer * BYTES / bandwidth  # an all-gather or a reduce-scatter of a layer
    compute, whole = model.layers * (forward + backward), model.parameters * BYTES
    state = STATE * model.parameters
    seconds = {
        "DDP": ddp_seconds(forward, backward, 2 * once, model.layers),
        "FSDP": fsdp_seconds(forward, backward, once, once, model.layers, keeps=False),
        "FSDP, kept": fsdp_seconds(forward, backward, once, once, model.layers, keeps=True),
    }
    sent = {"DDP": 2, "FSDP": 3, "FSDP, kept": 2}
    held = {"DDP": state, "FSDP": state / ranks + 2 * layer * BYTES, "FSDP, kept": state / ranks + whole}
    return [Plan(name, sent[name] * share * whole, held[name], compute, seconds[name] - compute) for name in seconds]


def break_even_tokens(ranks: int, bandwidth: float, flops: float = FLOPS) -> float:
    """Tokens a rank from which on a layer's compute hides its all-gather: 2PT/flops = 2P(N-1)/N/bandwidth.

    >>> break_even_tokens(8, 50e9)
    7000.0
    """
    return flops * BYTES * (ranks - 1) / ranks / (2 * bandwidth)


def sharding_trade(model: Model, ranks: int, tokens: Sequence[float], bandwidth: float) -> Figure:
    """For each number of tokens a rank: compute and exposed communication of a step, bytes sent, state on a rank."""
    groups = [
        (f"{count:,.0f} tokens a rank", [_bar(plan) for plan in plans(model, ranks, count, bandwidth)])
        for count in tokens
    ]
    title = f"{model.name} on {ranks} ranks, {bandwidth / 1e9:g} GB/s, {FLOPS / 1e12:g} TFLOP/s: a step"
    told = "; ".join(
        f"{count:,.0f} tokens: " + ", ".join(f"{bar.name} {100 * bar.share:.0f}% exposed" for bar in bars)
        for count, (_, bars) in zip(tokens, groups, strict=True)
    )
    heading = Note(f"a GPU has {CARD / 1e9:.0f} GB", HELD, color=MUTED)
    names = {"exposed_name": "exposed communication", "heading": heading}
    return exposed_bars(title, groups, f"{told}.", **names, left=LEFT, right=RIGHT)


def _bar(plan: Plan) -> Bar:
    fits = plan.state <= CARD
    held = f"{plan.state / 1e9:,.{0 if plan.state >= 1e11 else 1}f} GB {'held' if fits else 'do not fit'}"
    notes = Note(f"{plan.sent / 1e9:,.3g} GB sent"), Note(held, HELD, bold=not fits, color=GOOD if fits else INK)
    return Bar(plan.name, plan.compute, plan.exposed, notes)
