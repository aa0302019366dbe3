"""Exercise 4.7: does pure FSDP handle it? Bytes on a rank, whether they fit, and on how many ranks they would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from picolib.course import values
from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson01a_count import LIBRARY, is_number, pick
from picolib.course.words import times

NO_ROOM = "Where the whole layers take all that the card has, no number of ranks is enough: the last answer is None."
WORDS = ("the bytes on a rank", "whether they fit (True or False)", "the smallest number of ranks (or None)")


class Model(NamedTuple):
    """The arguments: parameters of the model and of its largest layer, ranks, bytes a parameter, bytes of a GPU."""

    parameters: int
    largest: int
    ranks: int
    each: tuple[int, int, int]
    card: float

    @property
    def whole(self) -> int:
        """Bytes that no number of ranks makes less: two whole layers, and one whole gradient."""
        return (2 * self.each[0] + self.each[1]) * self.largest

    @property
    def state(self) -> float:
        """Bytes of this rank's parameters, gradients and optimizer state."""
        return sum(self.each) * self.parameters / self.ranks

    @property
    def smallest(self) -> int | None:
        """Ranks on which it fits."""
        room = self.card - self.whole
        return math.ceil(sum(self.each) * self.parameters / room) if room > 0 else None


CLAIM = Model(70_000_000_000, 855_654_400, 8, (2, 2, 12), 80e9)


def claim_cases(world_size: int, seed: int) -> list[Case]:
    """The claim; other models, precisions and cards; one that fits to the byte; one whose layer alone is too large."""
    random = generator(seed, world_size)
    layer = 1000 * pick(random, 31, 47, 83)
    some = Model(layer * pick(random, 40, 60), layer, pick(random, 2, 4), (4, 4, 8), 20.0 * layer)
    other = Model(layer * pick(random, 90, 120), layer, pick(random, 64, 128), (2, 2, 2), 40.0 * layer)
    exact = Model(layer * 32, layer, 16, (2, 4, 12), 36.0 * layer + 8.0 * layer)
    little = Model(layer * 51, layer, pick(random, 4, 8), (2, 2, 12), 86.0 * layer)  # 10.2 ranks
    large = Model(layer * 3, layer, pick(random, 8, 16), (2, 2, 12), 5.5 * layer)
    full = Model(layer * 3, layer, pick(random, 8, 16), (2, 2, 12), 6.0 * layer)  # the whole layers, and no room beside
    many = Model(layer * 101, layer, pick(random, 256, 512), (2, 2, 12), 7.0 * layer)  # 1616 ranks
    models = (CLAIM, some, other, exact, little, large, full, many)
    return [Case("claim", (tuple(model),), None) for model in models]


def ask(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: what the function says."""
    with calls_into(*LIBRARY) as called:
        said = fn(*arguments)
    if isinstance(said, (tuple, list)):
        said = [_number(one) for one in said]
    return {"said": said, "borrowed": called[:1]}


def _number(said: Any) -> Any:
    """One number of torch or numpy (also their True and False) as Python's."""
    return said.item() if getattr(said, "ndim", None) == 0 and hasattr(said, "item") else said


def judge_claim(attempt: Any) -> str | None:
    """Three answers, each right."""
    model, said = Model(*attempt.case.inputs[0]), attempt.outputs[0]["said"]
    if not isinstance(said, list) or len(said) != 3:
        return f"the answer must be three things: {', '.join(WORDS)}; not {values.shown(said)}."
    head = (
        f"{model.parameters:,} parameters, {model.largest:,} in the largest layer, {sum(model.each)} bytes each "
        f"{model.each}, {model.ranks} ranks, GPUs of {model.card:,.0f} bytes: "
    )
    text = (
        _order_fault(model, said)
        or _bytes_fault(model, said[0])
        or _fits_fault(model, said[1])
        or _smallest_fault(model, said[2])
    )
    return head + text if text else None


def _order_fault(model: Model, said: list) -> str | None:
    """The bytes stand in another place than the first."""
    right = model.state + model.whole
    if not is_number(said[0]) or _close(said[0], right) or not any(is_number(s) and _close(s, right) for s in said):
        return None
    return f"the answers have changed places. Their order is: {', '.join(WORDS)}."


def _bytes_fault(model: Model, said: Any) -> str | None:
    right = model.state + model.whole
    if not is_number(said):
        return f"the first answer must be a number of bytes, not {values.shown(said)}."
    if _close(said, right) or abs(said - right) <= sum(model.each):  # of whole bytes, or parameters
        return None
    told = f"you say {said:,.0f} bytes on a rank; {right:,.0f} are right. "
    return told + next((why for wrong, why in _guesses(model) if _close(said, wrong)), _TERMS)


_THREE = "Three tensors are whole: the weight that computes, the one that arrives, and a gradient until it is reduced."
_TERMS = "They are the rank's share of the state, two whole layers, and one whole gradient of a layer."


def _guesses(model: Model) -> Sequence[tuple[float, str]]:
    parameter, gradient, _ = model.each
    layer, shared = model.largest, model.parameters / model.ranks
    return (
        (
            model.state,
            "Besides its shards, a rank has two whole layers (one computes, the next arrives) and a gradient.",
        ),
        (
            model.state + parameter * layer,
            "While a layer computes, the next one arrives: two are whole. And so is one gradient, until it is reduced.",
        ),
        (model.state + 2 * parameter * layer, _THREE),
        (model.state + (parameter + gradient) * layer, _THREE),
        (
            model.state + model.whole / model.ranks,
            "Whole layers are whole on every rank: no number of ranks makes them less.",
        ),
        (
            model.state + model.whole * (1 - 1 / model.ranks),
            "A gathered layer is a tensor of its own: the rank's shard of it stays beside the whole.",
        ),
        (
            model.state + sum(model.each) * 2 * layer,
            "The optimizer's state is never gathered: whole are parameters, and one gradient.",
        ),
        (shared * parameter + model.whole, "The shard of a parameter has a gradient and optimizer state, too."),
        (shared * parameter, "That is the parameters alone: each has a gradient and optimizer state as well."),
        (sum(model.each) * model.parameters + model.whole, "Parameters, gradients and optimizer state are shared out."),
        (
            sum(model.each) * model.parameters,
            "Parameters, gradients and optimizer state are shared out over the ranks.",
        ),
    )


def _fits_fault(model: Model, said: Any) -> str | None:
    right = model.state + model.whole <= model.card
    if said is right:
        return None
    if not isinstance(said, bool):
        return f"the second answer must be True or False, not {values.shown(said)}."
    edge = " Exactly as much as there is does fit." if _close(model.state + model.whole, model.card) else ""
    return f"the bytes are right, but you say that they {'do not ' if right else ''}fit.{edge}"


def _smallest_fault(model: Model, said: Any) -> str | None:
    right = model.smallest
    if said == right and not isinstance(said, bool):
        return None
    if right is None:
        return (
            f"bytes and verdict are right, but you say that it fits on {values.shown(said)} ranks. Its whole "
            f"layers alone take {model.whole:,}: it fits on no number of them (None)."
        )
    told = f"bytes and verdict are right, but the smallest number of ranks on which it fits is {right}, "
    told += f"not {values.shown(said)}."
    if not is_number(said):
        return told
    if said == right - 1:
        return (
            f"{told} With {said:g} it is more than there is: round up, and remember that whole layers take room, too."
        )
    if said == 2 ** math.ceil(math.log2(right)):
        return f"{told} It need not be a power of two."
    if said == math.ceil(sum(model.each) * model.parameters / model.card):
        return f"{told} The whole layers take room from the card as well."
    return f"{told} That is {times(said / right)} as many." if said > 0 else told


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * abs(other)


EXERCISE = Exercise(
    id="4.7",
    function="pure_fsdp",
    title="claim: pure FSDP handles 70B on 8 GPUs",
    lesson="04B_fsdp",
    sitting="04B",
    difficulty=2,
    minutes=7,
    task="Bytes on a rank under FSDP, whether they fit, and on how many ranks they do.",
    cases=claim_cases,
    call=ask,
    judge=judge_claim,
    sizes=(1,),
    rules=(borrowed,),
    raised=((r"ZeroDivisionError|division by zero", NO_ROOM),),
    verified="state and whole layers right; 70B fits on 15 GPUs of 80 GB, and not on 8",
    hints=(
        "Shared out: sum(each) bytes for each parameter, over the ranks. Not shared out: what is whole, as in 4.5.",
        "Whole at once: two layers of parameters, and one layer's gradient: (2 * each[0] + each[1]) * largest.",
        "Smallest: state of all ranks together / (card - whole), rounded up with math.ceil; None if card <= whole.",
    ),
    stretch=True,
)
