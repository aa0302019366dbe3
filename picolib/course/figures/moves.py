"""What a collective moves, step by step, and what each rank holds after each step.

A holding is a tally: how many times each rank's contribution is in a chunk. That is what the digits of the
exercises show, since rank r contributes 10^r: the tally (1, 0, 1, 1) is the number 1101, rank 1 is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Tally = tuple[int, ...]
State = list[list[Tally]]  # state[rank][chunk]


@dataclass(frozen=True)
class Move:
    """In `step`, rank `src` sends `chunks` to rank `dst`, which adds them to its own or puts them in their place."""

    step: int
    src: int
    dst: int
    chunks: tuple[int, ...]
    adds: bool | None = None  # None: not recorded; then it adds exactly where nothing would be counted twice


def one(rank: int, ranks: int) -> Tally:
    """The tally of rank's own contribution alone."""
    return tuple(int(r == rank) for r in range(ranks))


def start(collective: str, ranks: int, chunks: int, root: int = 0) -> State:
    """What each rank holds before the collective: its own part, or nothing (a tally of zeros)."""
    nothing = (0,) * ranks
    collective = collective.partition("[")[0]

    def held(rank: int, chunk: int) -> Tally:
        if collective in ("broadcast", "scatter"):
            return one(root, ranks) if rank == root else nothing
        if collective.startswith(("all_gather", "gather")):
            return one(rank, ranks) if chunk * ranks // chunks == rank else nothing
        return one(rank, ranks)

    return [[held(rank, chunk) for chunk in range(chunks)] for rank in range(ranks)]


def apply(state: State, moves: Iterable[Move]) -> State:
    """The state after moves that happen at once: everything is sent before anything arrives."""
    after = [list(row) for row in state]
    for move in moves:
        for chunk in move.chunks:
            sent, held = state[move.src][chunk], after[move.dst][chunk]
            after[move.dst][chunk] = _merge(held, sent, move.adds)
    return after


def _merge(held: Tally, sent: Tally, adds: bool | None) -> Tally:
    disjoint = not any(h and s for h, s in zip(held, sent, strict=True))
    if adds if adds is not None else disjoint:
        return tuple(h + s for h, s in zip(held, sent, strict=True))
    return sent


def states(first: State, steps: Sequence[Sequence[Move]]) -> list[State]:
    """The state before the first step, and after each."""
    seen = [first]
    for moves in steps:
        seen.append(apply(seen[-1], moves))
    return seen


def by_step(moves: Iterable[Move]) -> list[list[Move]]:
    """Moves grouped by their step, in order; within a step by sender and receiver."""
    ordered = sorted(moves, key=lambda m: (m.step, m.src, m.dst, m.chunks))
    return [[m for m in ordered if m.step == step] for step in sorted({m.step for m in ordered})]
