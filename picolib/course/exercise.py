"""What an exercise is: the function to write, the cases it is tried on, and what is judged besides its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

COLLECTIVES = frozenset(
    [
        "all_reduce",
        "all_reduce_coalesced",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "gather",
        "scatter",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "all_gather_coalesced",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "all_to_all",
        "all_to_all_single",
    ]
)


@dataclass(frozen=True)
class Case:
    """One call of the learner's function: the arguments of each rank, and what each must end with.

    kind: "digits" (rank r contributes 10^r, see `digits.py`), or a word for the data such as "float32".
    inputs: for each rank, the tuple of arguments.
    expected: for each rank, the right output (None: the exercise judges by itself).
    pieces: how many chunks the input is thought of as having (0: none), to name what was sent.
    exact: nothing is added up, so the output must have the very bits of `expected`.
    tampered: "messages" or "all-reduces" where every message, or the result of every all-reduce, is changed, so that
        whoever uses what arrives must end with other numbers.
    """

    kind: str
    inputs: tuple[tuple, ...]
    expected: tuple[Any, ...] | None
    pieces: int = 0
    exact: bool = False
    tampered: str = ""

    @property
    def world_size(self) -> int:
        """On how many ranks this case runs."""
        return len(self.inputs)


class Traffic(NamedTuple):
    """What one rank may send: messages, bytes, and to whom (None: not judged)."""

    messages: int | None = None
    nbytes: int | None = None
    to: frozenset[int] | None = None


class Sent(NamedTuple):
    """One message of the reference: to whom, and which chunk (None: not one chunk)."""

    peer: int
    chunk: int | None = None


@dataclass(frozen=True)
class Exercise:
    """One exercise of the course; the notebooks hold its text, this its judgement.

    Attributes:
        id: stable for ever ("2.3"); function: the name of the function to write, unique in the course.
        lesson: file name of its notebook; sitting: "02A".
        cases: (world size, seed) -> the cases of a run on that many ranks; the first is the one shown as a table.
        sizes: world sizes in the order they are tried; the first is the one that pictures show.
        output: "returned", or "argument" where the first argument is changed in place.
        allows: collectives that may be called; all others are refused, picolib's own too.
        traffic: (case, rank) -> what the rank may send. formula: the same in symbols.
        script: (world size, rank) -> the reference's messages in order, to find the first difference.
        steps: (world size) -> steps on the critical path, each message taking one.
        rules: (attempt) -> text, for faults that this exercise knows best; tried before the general ones.
        blocked: what to say after the explanation of a deadlock; circle: the same, where ranks wait for each other.
        beyond: what to say after the explanation of a rank that there is not.
        unwaited: what to say after that something was started and never waited for.
        raised: (pattern, text): what to say after an error whose text the pattern is found in.
        ended: (attempt, explanation) -> text or None, for a run that an error has ended; tried before blocked, beyond.
        judge: (attempt) -> text or None; replaces the comparison with `expected`.
        call: (fn, arguments) -> output, run inside each rank in place of `fn(*arguments)`.
        imports: modules that torch imports in the middle of such functions; done before the time is taken.
        keeps: the name of the first argument, where it must stay as it is; a returned tensor must not live in it.
        ignores: (attempt) -> the ranks that are right in a case in which the result of every all-reduce (and of torch's
            reduces, reduce-scatters and all-to-alls; not of picolib's) was changed;
            such a case is tried where this is given.
        same_bits: every rank must end with the same bits.
        operations: what right answers reduce with besides ReduceOp.SUM ("MAX"); others are remarked upon.
        verified: the end of the text printed when passed; may use {messages}, {bytes}, {steps} of the first size.
        hints: three, each a little closer. stretch: not needed by anything later.
    """

    id: str
    function: str
    title: str
    lesson: str
    sitting: str
    difficulty: int
    minutes: int
    task: str
    cases: Callable[[int, int], Sequence[Case]]
    verified: str
    hints: tuple[str, str, str]
    sizes: tuple[int, ...] = (4, 3, 1, 2, 5)
    output: str = "returned"
    allows: frozenset[str] = frozenset({"barrier"})
    traffic: Callable[[Case, int], Traffic] | None = None
    formula: str = ""
    script: Callable[[int, int], Sequence[Sent]] | None = None
    steps: Callable[[int], int] | None = None
    rules: tuple[Callable[[Any], str | None], ...] = ()
    blocked: str = ""
    circle: str = ""
    beyond: str = ""
    unwaited: str = ""
    ended: Callable[[Any, str], str | None] | None = None
    raised: tuple[tuple[str, str], ...] = ()
    judge: Callable[[Any], str | None] | None = None
    call: Callable[[Any, tuple], Any] | None = None
    imports: tuple[str, ...] = ()
    keeps: str = ""
    ignores: Callable[[Any], Sequence[int]] | None = None
    same_bits: bool = False
    operations: frozenset[str] = frozenset()
    stretch: bool = False
    piece: str = "chunk"
    tags: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if len(self.hints) != 3:
            raise ValueError(f"exercise {self.id}: give three hints, got {len(self.hints)}")
        if not 1 <= self.difficulty <= 5:
            raise ValueError(f"exercise {self.id}: difficulty must be 1 to 5, got {self.difficulty}")

    def __repr__(self) -> str:
        return f"Exercise {self.id}, {self.title} ({self.function})"
