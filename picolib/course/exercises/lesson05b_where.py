"""Exercise 5.7: where does TP live? Seconds that a layer's step communicates, for both ways to lay out a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from picolib.course import values
from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.borrowed import borrowed
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson01a_count import by_arithmetic, is_number, pick
from picolib.course.exercises.lesson05b_common import LESSON
from picolib.course.exercises.lesson05b_slow import REDUCED, Layer, measured, slow_motion
from picolib.course.words import times

LAYOUTS = ("tp", "dp")
NVLINK, PCIE = (2e-6, 450e9), (3e-6, 63e9)
ETHERNET, INFINIBAND = (10e-6, 100e9), (5e-6, 400e9)
SLOW = (5e-5, 2e7), (1e-4, 2e7)  # of a run: slow enough to be seen, quick enough to wait for
ON_LINKS, ON_PAPER = 0.2, 0.01
CUT_IN_TWO = (4, 3, 4), (4, 3, 8), (4, 6, 8)  # tp, dp, per_node: groups of dp neighbours on two nodes


def where_cases(world_size: int, seed: int) -> list[Case]:
    """Data sheets, on both sides of the break-even; then two runs on links, with few tokens and with many."""
    random = generator(seed, world_size)
    h, s = 1024 * pick(random, 2, 4, 5), 256 * pick(random, 8, 12, 16)
    few = h // 8 * pick(random, 2, 3, 4)  # data parallelism takes longer, and yet tensor parallelism belongs inside
    width = 8 * pick(random, 7, 8, 9)
    runs = [Layer(2, 2, 2, *SLOW, tokens, 1, width, 4) for tokens in (pick(random, 30, 36), pick(random, 320, 400))]
    layers = [
        Layer(8, 2, 8, NVLINK, INFINIBAND, few, 3, h, 4),
        Layer(8, 2, 8, NVLINK, INFINIBAND, pick(random, 96, 128), 1, h, 2),
        Layer(4, 2, 4, PCIE, ETHERNET, 16, pick(random, 1, 2), 64, 4),
        Layer(2, 4, 4, PCIE, ETHERNET, s, 1, h, pick(random, 2, 4)),
        Layer(16, 2, 8, NVLINK, INFINIBAND, s, 1, h, 2),
        Layer(4, 8, 8, NVLINK, ETHERNET, s, pick(random, 2, 3), h, 2),
        Layer(4, 2, 8, NVLINK, ETHERNET, s, 1, h, 2),
        Layer(3, 4, 4, PCIE, ETHERNET, s, 1, h, 2),  # ranks 3 4 5 are neighbours, on two nodes
        Layer(*CUT_IN_TWO[pick(random, 0, 1, 2)], PCIE, INFINIBAND, few // 8, 1, h, 2),
        Layer(*[(3, 2, 4), (6, 4, 8), (5, 3, 8)][pick(random, 0, 1, 2)], NVLINK, ETHERNET, s, 1, h, 2),
        Layer(3, 2, 8, NVLINK, ETHERNET, s, 1, h, 2),
        Layer(8, 1, 8, PCIE, ETHERNET, s, 1, h, 2),
        Layer(1, 8, 4, NVLINK, INFINIBAND, s, 1, h, 4),
    ]
    return [Case(kind, (tuple(one),), None) for kind, made in (("paper", layers), ("links", runs)) for one in made]


def judge_where(attempt: Any) -> str | None:
    """Both times, and the faster."""
    layer, said = Layer(*attempt.case.inputs[0]), attempt.outputs[0]["said"]
    if not isinstance(said, list) or len(said) != 3:
        return f'return three things, (seconds, seconds, "tp" or "dp"), not {values.shown(said)}.'
    on_links = attempt.case.kind == "links"
    right = {which: slow_motion(layer, which) for which in LAYOUTS}
    right = measured(layer, right) if on_links else right
    for number, which in enumerate(LAYOUTS):
        seconds = said[number]
        if not is_number(seconds):
            return f"seconds with {which} neighbours must be a number, not {values.shown(seconds)}."
        if abs(seconds - right[which]) > (ON_LINKS if on_links else ON_PAPER) * right[which] + 1e-12:
            how = "a run in slow motion takes" if on_links else "message by message it takes"
            head = f"{_sizes(layer)}: with {which} neighbours you say {seconds:.3g} s, and {how} {right[which]:.3g} s. "
            return head + _why(layer, said, which)
    return _choice_fault(layer, said[2], right)


def _sizes(layer: Layer) -> str:
    return (
        f"tp = {layer.tp}, dp = {layer.dp}, nodes of {layer.per_node} ranks, s = {layer.s}, b = {layer.b}, "
        f"h = {layer.h}, each = {layer.each}"
    )


def _choice_fault(layer: Layer, said: Any, right: dict[str, float]) -> str | None:
    if said not in LAYOUTS:
        return f'the third answer must be "tp" or "dp", whose ranks are neighbours, not {values.shown(said)}.'
    other = LAYOUTS[said == "tp"]
    if right[said] <= right[other] * (1 + 1e-6):
        return None
    shown = f"{right['tp']:.3g} s with tp neighbours, {right['dp']:.3g} s with dp neighbours"
    return f'{_sizes(layer)}: {shown}, and you choose "{said}": the faster one is "{other}".'


def bill(layer: Layer, which: str, *, count: int = REDUCED, latency: str = "each", hops: int = 2, more: int = 0,
         whole: str = "", bits: int = 8, inside_bits: int = 1, mean: bool = False, near: bool | None = None,
         far: bool | None = None, parts: str = "tp dp", gradient_sums: int = 1, **sizes: float) -> float:  # fmt: skip
    """Seconds by the formula, and with keywords by a mistaken one.

    count: all-reduces of tensor parallelism; latency: of "each" message, "once" a ring, of a "tree", "none", or the
    "larger" of it and the bytes' time; hops: 2 for 2(n-1), more: n instead of n - 1; whole: messages of the whole
    ("message"), or all bytes twice ("bytes").
    bits, inside_bits: what the rates are divided by; mean: of both links on several nodes; near, far: whether
    neighbours, and the other groups, are taken to be within one node; parts: whose rings; gradient_sums: all-reduces
    of gradients; sizes: bytes of activations and gradients.
    """
    inner, together = (layer.tp if which == "tp" else layer.dp), layer.tp * layer.dp <= layer.per_node
    fits = together or layer.per_node % inner == 0  # else the end of a node cuts a group in two
    within = fits if near is None else near, together if far is None else far
    links = {
        True: (layer.inside[0], layer.inside[1] / inside_bits),
        False: (layer.network[0], layer.network[1] / bits),
    }
    if mean:
        links[False] = tuple(sum(pair) / 2 for pair in zip(*links.values(), strict=True))

    def ring(ranks: int, nbytes: float, link: tuple) -> float:
        chunk = {"": nbytes / ranks, "message": nbytes, "bytes": nbytes / max(ranks - 1, 1)}[whole] / link[1]
        messages = hops * (ranks - 1 + more) if ranks > 1 else 0
        if latency == "larger":
            return messages * max(link[0], chunk)
        return {"each": messages, "once": min(messages, 1), "none": 0, "tree": 2 * (ranks - 1).bit_length()}[
            latency
        ] * link[0] + messages * chunk

    tp, dp = within if which == "tp" else within[::-1]
    tensor = count * ring(layer.tp, sizes.get("activations", layer.activations), links[tp])
    data = gradient_sums * ring(layer.dp, sizes.get("gradients", layer.gradients), links[dp])
    return ("tp" in parts) * tensor + ("dp" in parts) * data


SLOWEST = "a ring is as slow as its slowest link."


def _mistakes(layer: Layer) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what to say, keywords of `bill`)."""
    stream, gradients, each, tp, dp = layer.activations, layer.gradients, layer.each, layer.tp, layer.dp
    yield "The gradients' all-reduce is missing, that of data parallelism.", {"parts": "tp"}
    yield "Tensor parallelism's all-reduces are missing.", {"parts": "dp"}
    for count in (1, 2, 3, 5, 6, 8):
        yield (
            f"That is {count} all-reduce{'s' if count > 1 else ''} of tensor parallelism; a layer has {REDUCED}: two "
            "forward (one behind attention, one behind the MLP) and two backward.",
            {"count": count},
        )
    yield "Latency is missing: each of a ring's 2(n-1) messages pays it, beside its bytes.", {"latency": "none"}
    yield "You charge one latency a ring: each of its 2(n-1) messages pays it.", {"latency": "once"}
    yield "A message pays latency and bytes: they are added, not the larger taken.", {"latency": "larger"}
    yield "You send all bytes twice: a ring sends (n-1)/n of them twice.", {"whole": "bytes"}
    yield "Each message is one chunk, 1/n of the bytes, and not all of them.", {"whole": "message"}
    yield "That is n - 1 messages: an all-reduce is a reduce-scatter and an all-gather, 2(n-1) of them.", {"hops": 1}
    yield "That is 2n messages: a ring of n ranks sends 2(n-1).", {"more": 1}
    yield "Latency is counted as in a tree, 2·log2(n) times: a ring has 2(n-1) messages.", {"latency": "tree"}
    yield f"You take the link inside for groups that are not within one node: {SLOWEST}", {"near": True, "far": True}
    yield f"You take the mean of both links for a group on several nodes: {SLOWEST}", {"mean": True}
    yield _cut_in_two(layer), {"near": True}
    yield f"Ranks that are not neighbours reach over all nodes: {SLOWEST}", {"far": True}
    yield (
        "A group of at most per_node neighbours is within one node, unless the end of a node cuts it in two: then it "
        "uses the link inside.",
        {"near": False},
    )
    yield "With tp * dp <= per_node there is one node, and no network.", {"far": False}
    yield "The network's rate is in bits a second: divide by 8 for bytes.", {"bits": 1}
    yield "The rate of the link inside a node is in bytes already: nothing to divide by 8.", {"inside_bits": 8}
    yield "Each link's rate has its own unit: inside a node bytes, on the network bits.", {"inside_bits": 8, "bits": 1}
    yield "The gradients are all-reduced once a step, not twice.", {"gradient_sums": 2}
    yield (
        "The network's rate, in bits a second, is divided by 8 and by nothing else: each rank has a card.",
        {"bits": 64},
    )
    yield "A rank has 1/tp of the gradients: its weights are cut.", {"gradients": gradients * tp}
    yield "Gradients are numbers of `each` bytes, not always of 4.", {"gradients": gradients / each * 4}
    for factor in (1, 4, 8, 13, 24):
        yield f"Gradients are of 12·h² parameters, not {factor}·h².", {"gradients": gradients * factor / 12}
    yield "Gradients are of 12·h² parameters, h squared.", {"gradients": gradients / layer.h}
    yield "The stream is whole on every rank: s·b·h numbers, not 1/tp.", {"activations": stream / tp}
    yield "b is the batch of one replica already: it is not divided by dp.", {"activations": stream / dp}
    yield "b is the batch of one replica, and its all-reduces are its own: not times dp.", {"activations": stream * dp}
    yield "All of a rank's gradients are all-reduced, not 1/dp.", {"gradients": gradients / dp}
    yield "Weights are cut by tp, not by dp.", {"gradients": gradients * tp / dp}
    yield "The batch b is missing.", {"activations": stream / layer.b}
    yield "Numbers are no bytes: multiply by `each`.", {"activations": stream / each, "gradients": gradients / each}
    yield "Gradients are numbers of `each` bytes, too.", {"gradients": gradients / each}
    yield "Activations are numbers of `each` bytes, too.", {"activations": stream / each}
    yield "Activations are numbers of `each` bytes, not always of 4.", {"activations": stream / each * 4}


def _cut_in_two(layer: Layer) -> str:
    """What is wrong with taking all neighbours to be within one node."""
    for groups in (layer.groups("tp")[0], layer.groups("dp")[1]):
        crossing = next((one for one in groups if one[0] // layer.per_node != one[-1] // layer.per_node), [])
        if 0 < len(crossing) <= layer.per_node:
            first, last = crossing[0], crossing[-1]
            return (
                f"Look at every group, not at the first alone: the group of ranks {first} to {last} crosses from one "
                f"node of {layer.per_node} to the next, and the layer waits for the slowest group."
            )
    return f"Neighbours are within one node only where they are at most per_node: {SLOWEST}"


def _why(layer: Layer, said: list, which: str) -> str:
    seconds, right = said[LAYOUTS.index(which)], {one: bill(layer, one) for one in LAYOUTS}
    parts = {one: [bill(layer, one, parts=part) for part in LAYOUTS] for one in LAYOUTS}
    known = [("The two have changed places: first tp neighbours, then dp neighbours.", [right["dp"], right["tp"]])]
    known.append(
        ("Nothing overlaps: the two are added up, not the longer one taken.", [max(parts[x]) for x in LAYOUTS])
    )
    known += [(text, [bill(layer, one, **wrong) for one in LAYOUTS]) for text, wrong in _mistakes(layer)]
    both = (text for text, wrong in known if all(map(_close, said, wrong)))
    one = (text for text, wrong in known if _close(seconds, wrong[LAYOUTS.index(which)]))
    found = next(both, "") or next(one, "")
    return (
        found
        or _factor(layer, seconds / right[which] if right[which] else 0.0)
        or (
            f"By the formula, tensor parallelism takes {parts[which][0]:.3g} s, in {REDUCED} all-reduces, and data "
            f"parallelism {parts[which][1]:.3g} s."
        )
    )


def _factor(layer: Layer, factor: float) -> str:
    if factor > 1e9:
        return "Bytes are divided by a rate, which is in bytes a second."
    for unit in (1e3, 1e6, 1e9, 8.0, float(layer.tp), float(layer.dp), float(layer.tp * layer.dp)):
        if factor > 0 and unit > 1 and (abs(factor / unit - 1) < 0.02 or abs(factor * unit - 1) < 0.02):
            return f"It is {times(unit)} too {'much' if factor > 1 else 'little'}. Seconds of one step are asked for."
    return ""


def _close(one: Any, other: float) -> bool:
    return is_number(one) and abs(one - other) <= 1e-6 * abs(other)


EXERCISE = Exercise(
    id="5.7",
    function="where_tp_lives",
    title="where does TP live?",
    lesson=LESSON,
    sitting="05B",
    difficulty=2,
    minutes=8,
    task="Seconds that a layer's step communicates where ranks of tensor or of data parallelism are neighbours, and "
    "which of the two is faster.",
    cases=where_cases,
    call=by_arithmetic,
    judge=judge_where,
    sizes=(1,),
    rules=(borrowed,),
    raised=(("ZeroDivisionError|division by zero", "A group of one rank has a ring without messages: 2(n-1) = 0."),),
    verified="within 20% of runs on slow links, with few tokens and with many, and the right choice each time",
    hints=(
        "A ring of n ranks: 2 * (n - 1) * (latency + nbytes / n / rate), with the slowest link that it crosses. Write "
        "that as a function of its own. The network's rate is in bits.",
        "Is every group of neighbours within one node? With tp = 3 on nodes of 4 ranks, 0 1 2 is, and 3 4 5 is not: "
        "list the groups and compare rank // per_node, or ask whether per_node % tp == 0. The other groups reach over "
        "all ranks. Where tp * dp <= per_node there is one node.",
        "Tensor parallelism: 4 rings of s * b * h * each bytes. Data parallelism: 1 of 12 * h * h / tp * each. Add "
        "them up, for both layouts, and compare.",
    ),
)
