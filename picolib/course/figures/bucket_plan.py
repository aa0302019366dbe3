"""How large should a bucket be? A backward pass and its all-reduces by formula, as bars over time.

The backward pass comes to one layer after the other. A bucket's all-reduce starts when its last gradient is there and
the one before it is through (they share a wire), and costs what `costs` says: messages · α + bytes · β. What is left
of it when the backward pass has ended is exposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from picolib.course.figures import costs
from picolib.course.figures.axes import Scale
from picolib.course.figures.canvas import Figure
from picolib.course.figures.timeline import WORK
from picolib.course.style import ACCENT, EMPTY, GOOD, INK, LARGE, MUTED, PAPER, SMALL, WIDTH, seconds_text, tint
from picolib.course.words import number_of

MIB = 1 << 20
HIDDEN = tint(GOOD, 0.55)
LEFT, RIGHT, STRIP = 78, 136, 54


@dataclass(frozen=True)
class Model:
    """A backward pass: `layers` times `seconds`, each leaving `tensors` gradients of `nbytes` bytes."""

    layers: int = 16
    seconds: float = 5e-3
    tensors: int = 8
    nbytes: int = MIB // 2


@dataclass(frozen=True)
class Bucket:
    """One all-reduce: its bytes, when its last gradient is there, when it starts and ends (seconds)."""

    nbytes: int
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Plan:
    """Buckets in order, and when the backward pass ends."""

    buckets: tuple[Bucket, ...]
    backward: float

    @property
    def exposed(self) -> float:
        """Seconds that the step waits after the backward pass."""
        return max(0.0, self.buckets[-1].end - self.backward)


def plan(
    gradients: Sequence[tuple[float, int]],
    cap_bytes: float,
    alpha: float,
    beta: float,
    ranks: int,
    algorithm: str = "direct",
) -> Plan:
    """When each bucket's all-reduce runs.

    gradients: (seconds of the backward pass until it is there, bytes), in the order of model.parameters().
    alpha, beta: seconds of a message, and seconds per byte.
    """
    import torch  # pictures load without it

    from picolib.parallel.ddp.bucketed import assign_buckets

    stand_ins = [torch.empty(nbytes, dtype=torch.uint8, device="meta") for _, nbytes in gradients]
    clock = free = 0.0
    buckets = []
    for positions in assign_buckets(stand_ins, cap_bytes):
        clock += sum(gradients[position][0] for position in positions)
        nbytes = sum(gradients[position][1] for position in positions)
        start = max(clock, free)
        free = start + costs.ALL_REDUCE[algorithm].seconds(ranks, nbytes, alpha, beta)
        buckets.append(Bucket(nbytes, clock, start, free))
    return Plan(tuple(buckets), sum(seconds for seconds, _ in gradients))


def gradients_of(model: Model) -> list[tuple[float, int]]:
    """The gradients of all layers in the order of model.parameters()."""
    return [(model.seconds / model.tensors, model.nbytes)] * (model.layers * model.tensors)


def bucket_plan(
    caps_mb: Sequence[float], alpha: float = 5e-5, beta: float = 0.5e-9, ranks: int = 8, model: Model | None = None
) -> Figure:
    """One strip for each bucket size (MiB): the backward pass, and the all-reduces behind it; exposed is red."""
    model = model or Model()
    plans = {cap: plan(gradients_of(model), cap * MIB, alpha, beta, ranks) for cap in caps_mb}
    told = "; ".join(
        f"{cap:g} MB: {number_of(len(p.buckets), 'bucket')}, {seconds_text(p.exposed)} exposed"
        for cap, p in plans.items()
    )
    figure = Figure(88 + STRIP * len(plans), f"Backward pass and all-reduces by bucket size. {told}.")
    size = f"{model.layers * model.tensors * model.nbytes / MIB:g} MB of gradients"
    link = f"{ranks} ranks, α = {seconds_text(alpha)}, 1/β = {1 / beta / 1e9:.3g} GB/s"
    figure.text(20, 26, f"{size}, backward {seconds_text(model.seconds)} a layer; {link}", size=LARGE, bold=True)
    _legend(figure)
    scale = Scale(0, max(max(p.buckets[-1].end, p.backward) for p in plans.values()), LEFT, WIDTH - RIGHT)
    for place, (cap, one) in enumerate(plans.items()):
        _strip(figure, scale, cap, one, model, 84 + STRIP * place)
    return figure


def _strip(figure: Figure, scale: Scale, cap: float, one: Plan, model: Model, top: float) -> None:
    figure.text(20, top + 10, f"{cap:g} MB", size=SMALL, bold=True)
    figure.text(20, top + 28, f"{len(one.buckets)}x", size=SMALL, color=MUTED)
    figure.box(LEFT, top, scale.end - LEFT, 16, fill=EMPTY)
    for layer in range(model.layers):
        x0, x1 = scale(layer * model.seconds), scale((layer + 1) * model.seconds)
        figure.box(x0, top, x1 - x0, 16, fill=WORK, stroke=PAPER)
    for bucket in one.buckets:
        for start, end, color in (
            (bucket.start, min(bucket.end, one.backward), HIDDEN),
            (max(bucket.start, one.backward), bucket.end, ACCENT),
        ):
            if end > start:
                width = scale(end) - scale(start)
                figure.box(scale(start), top + 20, width, 16, fill=color, stroke=PAPER if width > 3 else "none")
    figure.text(scale.end + 8, top + 8, f"{seconds_text(one.exposed)} exposed", size=SMALL, bold=True, color=ACCENT)
    total = one.backward + one.exposed
    figure.text(scale.end + 8, top + 28, f"{seconds_text(total)} in all", size=SMALL, color=INK)


def _legend(figure: Figure) -> None:
    for x, color, text in (
        (20, WORK, "backward pass, layer by layer"),
        (246, HIDDEN, "all-reduce behind it"),
        (414, ACCENT, "all-reduce after it: exposed"),
    ):
        figure.box(x, 50, 14, 12, fill=color)
        figure.text(x + 20, 56, text, size=SMALL, color=MUTED)
