"""Exercise 5.3: which rows of a fused q, k, v matrix a rank needs for its heads, with grouped-query attention.

No ranks run: rows are random, so each row of the answer tells where it comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from picolib.course import values
from picolib.course.exercise import Case, Exercise
from picolib.course.exercises.borrowed import borrowed, calls_into
from picolib.course.exercises.data import generator
from picolib.course.exercises.lesson05a_common import LESSON, READY_MADE, numbers_text
from picolib.course.words import number_of

LAYOUTS = (  # query heads, key-value heads, numbers of a head, ranks
    (8, 4, 4, 4),
    (8, 2, 4, 2),
    (6, 6, 2, 3),
    (12, 4, 2, 2),
    (8, 2, 4, 4),
    (12, 3, 2, 6),
    (6, 3, 4, 1),
    (4, 1, 3, 4),
    (12, 12, 5, 12),
    (22, 22, 2, 22),  # in floats 15 / 22 * 22 is less than 15
)
WIDTH = 6
KINDS = ("query", "key", "value")


class Layout(NamedTuple):
    """Sizes of an attention block, and for which rank its part is asked."""

    heads: int
    kv_heads: int
    dim: int
    rank: int
    ranks: int

    def __str__(self) -> str:
        kv = f"{self.kv_heads} key-value heads" if self.kv_heads != 1 else "1 key-value head"
        return f"{self.heads} query heads, {kv}, {self.dim} numbers each, rank {self.rank} of {self.ranks}: "

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.kv_heads

    @property
    def own(self) -> list[int]:
        """This rank's query heads."""
        each = self.heads // self.ranks
        return list(range(self.rank * each, (self.rank + 1) * each))

    @property
    def own_kv(self) -> list[int]:
        """The key-value heads that they ask."""
        return sorted({head // self.group for head in self.own})

    def where(self, row: int) -> tuple[str, int]:
        """(kind, head) of a row of the fused matrix."""
        head = row // self.dim
        for kind, count in zip(KINDS, (self.heads, self.kv_heads, self.kv_heads), strict=True):
            if head < count:
                return kind, head
            head -= count
        raise IndexError(row)

    def rows(self) -> list[int]:
        """The right rows, in order."""
        k, v = self.heads, self.heads + self.kv_heads
        heads = self.own + [k + head for head in self.own_kv] + [v + head for head in self.own_kv]
        return [head * self.dim + number for head in heads for number in range(self.dim)]


def heads_cases(world_size: int, seed: int) -> list[Case]:
    """All layouts, each for all of its ranks; in the first ones there are at most as many ranks as key-value heads.

    Two more are drawn.
    """
    random = generator(seed, world_size)
    made = []
    for heads, kv_heads, dim, ranks in (*LAYOUTS, _drawn(random), _drawn(random)):
        for rank in dict.fromkeys((0, ranks - 1, *range(ranks))):  # the outer ones first: they tell most
            qkv = torch.randn((heads + 2 * kv_heads) * dim, WIDTH, generator=random)
            o = torch.randn(WIDTH, heads * dim, generator=random)
            made.append(Case("layout", ((qkv, o, heads, kv_heads, rank, ranks),), None))
    return made


def _drawn(random: torch.Generator) -> tuple[int, int, int, int]:
    """A layout in which of the key-value heads and the ranks one divides the other."""
    draw = lambda most: int(torch.randint(1, most + 1, (1,), generator=random))  # noqa: E731
    few, more, group, dim = draw(3), draw(3), draw(4), 1 + draw(5)
    kv_heads, ranks = (few, few * more) if draw(2) == 1 else (few * more, few)
    return few * more * group, kv_heads, dim, ranks


def ask(fn: Any, arguments: tuple) -> dict[str, Any]:
    """In a rank: the two parts, and of which rows and columns they are made."""
    qkv, o, *sizes = arguments
    given = [tensor.clone().requires_grad_() * 1 for tensor in (qkv, o)]  # changing it in place is possible, and seen
    with calls_into(*READY_MADE) as called:
        said = fn(*given, *sizes)
    result: dict[str, Any] = {
        "said": None,
        "shapes": [],
        "borrowed": called[:1],
        "instead": "slices of the two tensors",
    }
    if isinstance(said, (tuple, list)) and len(said) == 2 and all(isinstance(part, torch.Tensor) for part in said):
        result["shapes"] = [list(part.shape) for part in said]
        result["said"] = [_places(said[0], qkv), _places(said[1].T, o.T) if said[1].dim() == 2 else None]
        result["o_rows"] = _places(said[1], o) is not None
        result["swapped"] = _places(said[1], qkv) is not None
        result["odd"] = _odd(said, given, (qkv, o))
    else:
        many = isinstance(said, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in said)
        result["kind"] = f"{len(said)} of them" if many else type(said).__name__
    return result


def _odd(said: Sequence[torch.Tensor], given: Sequence[torch.Tensor], was: Sequence[torch.Tensor]) -> str:
    """What is wrong with parts though the numbers are right; empty where nothing is."""
    for name, part, tensor, before in zip(("qkv", "o"), said, given, was, strict=True):
        if not torch.equal(tensor.detach(), before):
            return f"`{name}` has changed: others use it, too. Take parts, and leave the rest."
        if part.dtype != before.dtype:
            kinds = [str(dtype).removeprefix("torch.") for dtype in (part.dtype, before.dtype)]
            return f"the part of {name} is of {kinds[0]}, and {name} of {kinds[1]}: keep the dtype."
        if not part.requires_grad:
            return (
                f"the part of {name} has no graph, so {name} would get no gradient in training: slices and torch.cat "
                "keep it; detach, numpy, .data and a new torch.tensor don't."
            )
    return ""


def _places(part: torch.Tensor, whole: torch.Tensor) -> list[int] | None:
    """Which rows of `whole` the rows of `part` are; None where they are something else."""
    if part.dim() != 2 or part.shape[1] != whole.shape[1]:
        return None
    known = {tuple(row): number for number, row in enumerate(whole.tolist())}
    found = [known.get(tuple(row)) for row in part.detach().tolist()]  # floats survive the way to lists and back
    return None if None in found else found  # type: ignore[return-value]


def judge_heads(attempt: Any) -> str | None:
    """The rows of q, k, v; then the columns of o."""
    qkv, _, heads, kv_heads, rank, ranks = attempt.case.inputs[0]
    layout = Layout(heads, kv_heads, len(qkv) // (heads + 2 * kv_heads), rank, ranks)
    output = attempt.outputs[0]
    if output["said"] is None:
        return f"your function must return two tensors, parts of qkv and of o, not {output['kind']}."
    text = _rows_fault(layout, output) or _columns_fault(layout, output) or output["odd"]
    return f"{layout}{text}" if text else None


def _rows_fault(layout: Layout, output: dict) -> str | None:
    rows, right = output["said"][0], layout.rows()
    if rows == right:
        return None
    if rows is None:
        shown = output["shapes"][0]
        if output["swapped"]:
            return "the two parts are swapped: that of qkv comes first, then that of o."
        if len(shown) == 3:
            return f"the first part has shape {shown}: heads as a dimension of their own. Put them back: flatten(0, 1)."
        return (
            f"the first part, of shape {shown}, is not made of whole rows of qkv. Heads stand in its rows (output "
            f"features); each row has all {WIDTH} input features."
        )
    for look in (_blind, _broken_heads, _missing_kind, _wrong_heads, _order):
        text = look(layout, rows)
        if text:
            return text
    return "the rows of qkv are not those of this rank's heads: query heads first, then key heads, then value heads."


def _blind(layout: Layout, rows: Sequence[int]) -> str | None:
    total = (layout.heads + 2 * layout.kv_heads) * layout.dim
    if layout.ranks == 1 or total % layout.ranks:
        return None
    each = total // layout.ranks
    if list(rows) != list(range(layout.rank * each, (layout.rank + 1) * each)):
        return None
    counts = Counter(layout.where(row)[0] for row in rows)
    has = ", ".join(f"{counts[kind]} {kind} rows" for kind in KINDS)
    return (
        f"qkv is cut in {layout.ranks} as it stands, without looking at what stands in it: this rank has {has}. q, k "
        "and v lie one below the other, and each of the three has to be cut by itself."
    )


def _broken_heads(layout: Layout, rows: Sequence[int]) -> str | None:
    counts = Counter(layout.where(row) for row in rows)
    broken = next(((place, count) for place, count in counts.items() if count % layout.dim), None)
    if broken is None:
        return None
    (kind, head), count = broken
    return (
        f"of {kind} head {head} the part has {count} of {layout.dim} rows. A head must not be cut: its scores are sums "
        f"over all of its {layout.dim} numbers, and softmax stands between them and the next sum."
    )


def _missing_kind(layout: Layout, rows: Sequence[int]) -> str | None:
    kinds = {layout.where(row)[0] for row in rows}
    missing = [kind for kind in KINDS if kind not in kinds]
    if not missing:
        return None
    few = layout.ranks > layout.kv_heads and "query" not in missing
    more = (
        f" There are more ranks than key-value heads: {layout.ranks // layout.kv_heads} ranks share one." if few else ""
    )
    return f"the part has no {' and no '.join(missing)} head.{more}"


def _heads_of(layout: Layout, rows: Sequence[int], kind: str) -> list[int]:
    return list(dict.fromkeys(head for k, head in map(layout.where, rows) if k == kind))


def _wrong_heads(layout: Layout, rows: Sequence[int]) -> str | None:
    own = _heads_of(layout, rows, "query")
    if sorted(own) != layout.own:
        return f"the part has query heads {numbers_text(own)}; {numbers_text(layout.own)} are this rank's."
    for kind in KINDS[1:]:
        found = _heads_of(layout, rows, kind)
        missing = [head for head in layout.own_kv if head not in found]
        if missing:
            asking = [head for head in layout.own if head // layout.group == missing[0]]
            return (
                f"{'query heads' if len(asking) > 1 else 'query head'} {numbers_text(asking)} "
                f"{'ask' if len(asking) > 1 else 'asks'} key-value head {missing[0]} "
                f"({layout.group} query {'heads share' if layout.group > 1 else 'head has'} one), and the part has "
                f"{kind} heads {numbers_text(found)}."
            )
        if len(found) > len(layout.own_kv):
            return (
                f"the part has {number_of(len(found), f'{kind} head')}, and its query heads ask "
                f"{len(layout.own_kv)}: {numbers_text(layout.own_kv)}. The others are for other ranks."
            )
    return None


def _order(layout: Layout, rows: Sequence[int]) -> str | None:
    if sorted(rows) != sorted(layout.rows()):
        if len(set(rows)) == len(rows):
            return None
        return "some rows are there more than once. A key-value head that several of its query heads ask is there once."
    return (
        "the part has the right rows in another order: query heads first, then key heads, then value heads, as in qkv."
    )


def _columns_fault(layout: Layout, output: dict) -> str | None:
    columns = output["said"][1]
    right = [head * layout.dim + number for head in layout.own for number in range(layout.dim)]
    if columns == right:
        return None
    if columns is None:
        how = " It is cut by rows." if output["o_rows"] else ""
        if output["shapes"][1] == [WIDTH, len(right)]:
            return "the part of o has the right shape, but other numbers than o's columns: take them as they are."
        return (
            f"the part of o has shape {output['shapes'][1]}, and [{WIDTH}, {len(right)}] is right.{how} o takes in "
            "what the heads put out: it is the second matrix, cut by its input features (dim 1)."
        )
    found = sorted({column // layout.dim for column in columns})
    if found == layout.own:
        return "the part of o has its heads' columns, but not each once and in their order."
    return (
        f"the part of o takes in query heads {numbers_text(found)}, and this rank computes "
        f"{numbers_text(layout.own)}. It has {values.shown(len(columns))} columns; {len(right)} are right."
    )


EXERCISE = Exercise(
    id="5.3",
    function="my_heads",
    title="heads with grouped queries",
    lesson=LESSON,
    sitting="05A",
    difficulty=3,
    minutes=8,
    task="This rank's part of an attention block whose q, k and v weights are fused, with fewer key-value heads.",
    cases=heads_cases,
    call=ask,
    judge=judge_heads,
    sizes=(1,),
    allows=frozenset({"barrier"}),
    raised=(
        (
            r"split_with_sizes|split_sizes|sum exactly",
            "How many numbers has a head? h need not be heads * d: d is len(qkv) // (heads + 2 * kv_heads), or "
            "o.shape[1] // heads.",
        ),
    ),
    rules=(borrowed,),
    verified="whole heads, each query with its key and value, also on more ranks than key-value heads",
    hints=(
        "Take it apart first: q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d]), with d from qkv.shape[0].",
        "Heads first, then numbers: q.unflatten(0, (heads, d)) is [heads, d, h], and query head i asks key-value head "
        "i // (heads // kv_heads).",
        "From the first and the last of its query heads a rank knows its first and last key-value head. Slice k and v "
        "by them: with more ranks than key-value heads that is one head.",
    ),
)
