"""Exercise 4.3: layers whose weights are whole only while they compute.

What a layer computes does not matter here. The layers that the learner's function calls note which weight they were
given, and how many bytes of gathered weights are alive then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from picolib.course import digits, observe
from picolib.course.exercise import COLLECTIVES, Case, Exercise
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson04b_watch import GATHERS, Alive, no_ready_made_fsdp, only
from picolib.course.words import number_of

LESSON = "04B_fsdp"
WIDTH = 4  # numbers of an activation; a rank's part of a layer has a multiple of it
PARTS = (8000, 12000, 16000, 10000, 14000)  # numbers of a part, of layers that differ
PATIENCE_LEFT = 0.05  # seconds, for each layer
OBJECTS = 20_000  # bytes of Python's own objects that every answer makes
WRONG_ROOM = (
    (r"invalid tensor size", "There must be room for everybody's part: world size times len(shard) numbers, flat."),
    (r"invalid tensor type", "Make room in the dtype of the shard: shard.new_empty(...)."),
)
ENOUGH = "dist.all_gather_into_tensor is enough"


def shards_of(world_size: int, seed: int, same: bool) -> list[list[torch.Tensor]]:
    """[rank][layer]: digits in 4 equal layers, or random numbers in 5 to 12 layers of different sizes."""
    random, count = generator(seed, world_size), 4 if same else 5 + seed % 8
    sizes = [24] * count if same else [PARTS[(seed + i) % len(PARTS)] for i in range(count)]
    if not same:
        return [[torch.randn(size, generator=random) / size**0.5 for size in sizes] for _ in range(world_size)]
    part = lambda rank, i: torch.full((sizes[i],), 10.0**rank + i * digits.PLACE, dtype=torch.float64)  # noqa: E731
    return [[part(rank, i) for i in range(count)] for rank in range(world_size)]


def wholes_of(own: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Each layer's whole weight."""
    return [torch.cat([rank[i] for rank in own]) for i in range(len(own[0]))]


def allowed(sizes: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
    """Bytes that may be alive: the largest group of layers, and half of the smallest layer for small change."""
    return max(sum(sizes[i] for i in group) for group in groups) + min(sizes) / 2


def whole_sizes(shards: Sequence[torch.Tensor], ranks: int) -> list[int]:
    """Bytes of each whole layer."""
    return [shard.nbytes * ranks for shard in shards]


class Layers:
    """The layers of a case on this rank: they compute, and note what they were given, and when."""

    def __init__(self, count: int, alive: Alive) -> None:
        self.count, self.alive, self.calls = count, alive, []

    def compute(self, number: int, weight: Any, x: torch.Tensor) -> torch.Tensor:
        """x plus the sum of the weight's rows, squashed: it depends on every number, and on the order of layers."""
        with self.alive.paused():
            self.alive.patience = max(self.alive.patience, PATIENCE_LEFT)
            bytes_alive, objects = self.alive.now(self.alive.limit), self.alive.objects(self.alive.limit)
            observe.note(f"begin {number}")
            kept = weight.detach().clone() if isinstance(weight, torch.Tensor) else weight
            self.calls.append({"layer": number, "weight": kept, "x": x.detach().clone(), "alive": bytes_alive,
                               "objects": objects})  # fmt: skip
            fits = isinstance(weight, torch.Tensor) and weight.numel() % WIDTH == 0 and x.numel() == WIDTH
            result = torch.tanh(x + weight.detach().reshape(-1, WIDTH).sum(0)) if fits else x.clone()
            observe.note(f"end {number}")
            return result


def forward_cases(world_size: int, seed: int) -> list[Case]:
    """Four equal layers, then layers that differ."""
    random, made = generator(seed, world_size), []
    for kind, same in (("equal", True), ("different", False)):
        own = shards_of(world_size, seed, same)
        inputs = [torch.randn(WIDTH, generator=random).to(own[0][0].dtype) for _ in own]
        made.append(Case(kind, tuple(zip(own, inputs, strict=True)), None))
    return made


def run_forward(fn: Callable, arguments: tuple) -> dict[str, Any]:
    """In a rank: the learner's forward pass over layers that take notes."""
    shards, x = arguments
    sizes = whole_sizes(shards, dist.get_world_size())
    alive = Alive(allowed(sizes, [[i] for i in range(len(sizes))]))
    layers = Layers(len(shards), alive)
    functions = [lambda weight, x, i=i: layers.compute(i, weight, x) for i in range(len(shards))]
    before = [shard.clone() for shard in shards]
    with no_ready_made_fsdp(), alive:
        output = fn(shards, functions, x)
    kept = all(torch.equal(a, b) for a, b in zip(before, shards, strict=True))
    return {"output": output, "calls": layers.calls, "most": alive.most, "kept": kept, "given": alive.given,
            "ranks": dist.get_world_size()}  # fmt: skip


def judge_forward(attempt: Any) -> str | None:
    """Right weights in the order of the layers, one gather each, and one whole layer at a time."""
    wholes = wholes_of(attempt.inputs())
    for rank, record in enumerate(attempt.ranks):
        order = list(range(len(wholes)))
        text = calls_fault(attempt, rank, order, wholes) or _chain_fault(rank, record.output, attempt.inputs(1)[rank])
        text = text or gathers_fault(rank, record, order, wholes) or _peak_fault(rank, record.output, wholes)
        text = text or _ahead_fault(rank, record) or objects_fault(attempt, rank, wholes, 1)
        if text:
            return text
    return None


def calls_fault(attempt: Any, rank: int, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """Each layer once, in this order, with its whole weight."""
    calls = attempt.ranks[rank].output["calls"]
    numbers = [call["layer"] for call in calls]
    if not attempt.ranks[rank].output["kept"]:
        return f"rank {rank}: a shard has changed. It is what the optimizer keeps: gather into a tensor of your own."
    if numbers != list(order):
        said = ", ".join(map(str, numbers)) or "none"
        return f"rank {rank} computed layers {said}; {', '.join(map(str, order))} is right, each once."
    for call in calls:
        text = _weight_fault(attempt, rank, call, wholes[call["layer"]])
        if text:
            return text
    return None


def _weight_fault(attempt: Any, rank: int, call: dict, right: torch.Tensor) -> str | None:
    got, n = call["weight"], attempt.world_size
    head = f"rank {rank}: the weight that layer {call['layer']} computed with "
    if not isinstance(got, torch.Tensor):
        return f"{head}is no tensor, but {type(got).__name__}."
    others = [i for i, one in enumerate(wholes_of(attempt.inputs())) if i != call["layer"] and _same(got, one)]
    if others:
        return f"{head}is that of layer {others[0]}. Layers come in the order given, which need not be that of numbers."
    if got.numel() != right.numel():
        own = " That is this rank's part alone." if got.numel() * n == right.numel() and n > 1 else ""
        return f"{head}has {got.numel()} numbers, and the whole one has {right.numel()}.{own}"
    if torch.equal(got.flatten(), right):
        return None
    parts = list(zip(got.flatten().chunk(n), right.chunk(n), strict=True))
    wrong = next(q for q, (mine, theirs) in enumerate(parts) if not torch.equal(mine, theirs))
    return f"{head}is wrong in part {wrong}. {_told(attempt, wrong, parts[wrong][0], call['layer'])}"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.flatten(), other)


def _told(attempt: Any, part: int, got: torch.Tensor, layer: int) -> str:
    """Whose part stands there, read from the shards themselves."""
    for rank, shards in enumerate(attempt.inputs()):
        for i, shard in enumerate(shards):
            if torch.equal(shard.flatten(), got):
                where = f"the part of rank {rank}" + (f" of layer {i}" if i != layer else "")
                return f"There stands {where}. Parts stand in the order of the ranks: {part} is rank {part}'s."
    return "Nobody's part stands there: was it used before it had arrived?"


def _chain_fault(rank: int, output: dict, x: torch.Tensor) -> str | None:
    """Each layer's input is the output of the one before, and the last output is returned."""
    came = x
    for call in output["calls"]:
        if not torch.equal(call["x"], came):
            before = f"what layer {call['layer'] - 1} returned" if call["layer"] else "x"
            return f"rank {rank}: layer {call['layer']} was given something else than {before}."
        came = torch.tanh(came + call["weight"].reshape(-1, WIDTH).sum(0))
    returned = output["output"]
    if not isinstance(returned, torch.Tensor) or not torch.equal(returned, came):
        return f"rank {rank}: the layers computed right, but what you return is not the output of the last one."
    return None


def gathers_fault(rank: int, record: Any, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """One all-gather a layer, of its size."""
    gathered = [elements for _, elements in gathers_of(record)]
    if len(gathered) > len(wholes):
        each = len(gathered) / len(wholes)
        much = f": {each:g} times each layer" if each == int(each) else ""
        return (
            f"The values are right, but rank {rank} made {number_of(len(gathered), 'all-gather')} for "
            f"{len(wholes)} layers{much}. Once is enough: {len(wholes)} are right."
        )
    if len(gathered) < len(wholes):
        return (
            f"The values are right, but rank {rank} made {number_of(len(gathered), 'all-gather')} for {len(wholes)} "
            "layers: each layer has its own, since it is to be whole alone."
        )
    return _sizes_fault(rank, gathered, [wholes[i].numel() for i in order]) or _given_fault(rank, record, order, wholes)


def _given_fault(rank: int, record: Any, order: Sequence[int], wholes: Sequence[torch.Tensor]) -> str | None:
    """What torch's all-gathers were given must be this rank's parts. (Of picolib's it is not known.)"""
    given = record.output["given"]
    if len(given) != len(order):
        return None
    for i, tensor in zip(order, given, strict=True):
        if not torch.equal(tensor.flatten(), wholes[i].chunk(record.output["ranks"])[rank]):
            return (
                f"The values are right, but rank {rank} gave the all-gather other numbers than its part of layer {i}: "
                "the weight came by another way."
            )
    return None


def gathers_of(record: Any) -> list[tuple[int, int]]:
    """(position among the entries, numbers that come together) of a rank's all-gathers.

    picolib's note one part; torch's into a list of tensors notes 0, which means that it is not known.
    """
    n = record.output["ranks"]
    entries = [(at, e) for at, e in enumerate(record.entries) if e[0] == "collective" and e[1] in GATHERS]
    return [(at, e[2] * (n if e[3] else 1)) for at, e in entries]


def _sizes_fault(rank: int, gathered: Sequence[int], right: Sequence[int]) -> str | None:
    """Gathers of other sizes than the layers, in the order in which they compute."""
    if all(got in (0, asked) for got, asked in zip(gathered, right, strict=True)):
        return None
    return (
        f"The values are right, but rank {rank} gathered {_listed(gathered)} numbers, where {_listed(right)} are "
        "right: each all-gather has one layer's weight, and nothing else."
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _peak_fault(rank: int, output: dict, wholes: Sequence[torch.Tensor]) -> str | None:
    """At no time more than the largest layer, and half a smallest for small change."""
    sizes = [whole.nbytes for whole in wholes]
    limit = allowed(sizes, [[i] for i in range(len(sizes))])
    if output["most"] <= limit:
        return None
    at_once = whole_at_once(output["most"], sizes)
    head = f"The values are right, but rank {rank} holds {at_once} layers whole at once, 1 is right. "
    first, last = output["calls"][0]["alive"], output["calls"][-1]["alive"]
    if first > limit and first >= last:
        if first <= 2 * max(sizes) + min(sizes) / 2:
            return head + (
                "When the first layer computes, its weight is there twice, or the next layer's is there: gather "
                "into one tensor, without cat, and when its turn comes."
            )
        return head + "All of them are gathered before the first one computes: gather a layer when its turn comes."
    if last > limit:
        return head + "What the layers before have used is never freed: keep no reference to it (a list, a dict)."
    return (
        head + "While a layer is gathered, the weight of the one before is still there: a name holds it, or the handle "
        "of an asynchronous gather does, until the name gets something else. del it first, and the handle too (or let "
        "a function's end do it)."
    )


def _ahead_fault(rank: int, record: Any) -> str | None:
    """A layer that was gathered before the one in front had computed, wherever its numbers were kept meanwhile."""
    ends = [at for at, e in enumerate(record.entries) if e[0] == "note" and e[1].startswith("end")]
    early = [k for k, (at, _) in enumerate(gathers_of(record)) if k and at < ends[k - 1]]
    if not early:
        return None
    return (
        f"The values are right, but rank {rank} gathers layer {early[0]} before layer {early[0] - 1} has computed: "
        "then both are there, in whatever form. Gather a layer when its turn comes."
    )


def objects_fault(attempt: Any, rank: int, wholes: Sequence[torch.Tensor], enough: int) -> str | None:
    """Weights kept in another form than tensors: what Python's own objects have grown by since the first layer.

    Not judged in the first case, in which modules are imported.
    """
    calls, sizes = attempt.ranks[rank].output["calls"], [whole.nbytes for whole in wholes]
    grown = calls[-1]["objects"] - calls[0]["objects"] - OBJECTS
    if grown < 2 * max(sizes) or attempt.case.kind in ("equal", "forward"):
        return None
    at_once = min(len(sizes), whole_at_once(grown, sizes) + 1)
    return (
        f"The values are right, but rank {rank} holds {at_once} layers whole at once, {enough} "
        f"{'is' if enough == 1 else 'are'} right. What the layers before have used is "
        "kept as numbers, bytes or arrays: these need memory as tensors do."
    )


def whole_at_once(most: int, sizes: Sequence[int], least: int = 2) -> int:
    """How many layers of middle size these bytes are."""
    return max(least, round(most / (sum(sizes) / len(sizes))))


EXERCISE = Exercise(
    id="4.3",
    function="forward",
    title="gather one layer",
    lesson=LESSON,
    sitting="04B",
    difficulty=2,
    minutes=8,
    task="A forward pass over sharded layers: each is whole while it computes, and only then.",
    cases=forward_cases,
    call=run_forward,
    judge=judge_forward,
    sizes=(4, 3, 2),
    allows=COLLECTIVES | {"barrier", "poll", "parallel.fsdp"},
    rules=(only(GATHERS, enough=ENOUGH),),
    raised=WRONG_ROOM,
    verified="each layer gathered once, at no time more than one whole layer in memory",
    hints=(
        "For each shard, layer: room for the whole weight, shard.new_empty(ranks * len(shard)); then gather into it.",
        "dist.all_gather_into_tensor(whole, shard), x = layer(whole, x). Which name still holds the weight afterwards?",
        "The next new_empty runs while `whole` is still the old weight: `del whole` at the end of the loop's body.",
    ),
)
