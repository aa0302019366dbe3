"""Exercises 2.3 to 2.5: what the two halves of a ring all-reduce send, and the mistakes that people make in them."""

from __future__ import annotations

from typing import Any

import torch

from picolib.course import digits
from picolib.course.exercise import Case, Sent, Traffic
from picolib.course.exercises.data import nbytes


def right_of(rank: int, n: int) -> frozenset[int]:
    """The right neighbour as a set, for `Traffic.to`."""
    return frozenset({(rank + 1) % n})


def half_ring_traffic(case_: Case, rank: int) -> Traffic:
    """(N-1)/N of the vector, in N-1 messages to the right."""
    n, size = case_.world_size, nbytes(case_.inputs[rank][0])
    return Traffic(n - 1, size * (n - 1) // n, right_of(rank, n) if n > 1 else frozenset())


def ring_traffic(case_: Case, rank: int) -> Traffic:
    """2(N-1)/N of the vector, in 2(N-1) messages to neighbours."""
    n, size = case_.world_size, nbytes(case_.inputs[rank][0])
    return Traffic(2 * (n - 1), 2 * size * (n - 1) // n, frozenset({(rank + 1) % n, (rank - 1) % n}) - {rank})


def reduce_scatter_script(n: int, rank: int) -> list[Sent]:
    """Chunk r must end on rank r, so rank r starts with chunk r-1, and goes down."""
    return [Sent((rank + 1) % n, (rank - 1 - step) % n) for step in range(n - 1)]


def leftward_script(n: int, rank: int) -> list[Sent]:
    """The reduce-scatter to the right, then chunk r starts from rank r and travels to the left."""
    return reduce_scatter_script(n, rank) + [Sent((rank - 1) % n, (rank + step) % n) for step in range(n - 1)]


def rightward_script(n: int, rank: int) -> list[Sent]:
    """Both halves to the right."""
    return reduce_scatter_script(n, rank) + [Sent((rank + 1) % n, (rank - step) % n) for step in range(n - 1)]


def sent_own_again(attempt: Any) -> str | None:
    """After the first step the sum must travel, and every rank sends its own share of the chunk alone."""
    if attempt.world_size < 3 or attempt.case.kind != "digits":
        return None
    chunks = [own_chunk_in_step_2(attempt, rank) for rank in range(attempt.world_size)]
    if None in chunks:
        return None
    return (
        f"in step 2 rank 0 sent its own share of chunk {chunks[0]}, without what had arrived in step 1. "
        "Add your share to what arrives, and pass on the sum."
    )


def own_chunk_in_step_2(attempt: Any, rank: int) -> int | None:
    """Which chunk of its own input alone a rank sends to the right in its second message; None where it does not."""
    n, sends = attempt.world_size, attempt.ranks[rank].sends
    if len(sends) != n - 1 or {s[1] for s in sends} != {(rank + 1) % n}:
        return None
    numbers = digits.read_all(torch.tensor(sends[1][4] or [], dtype=torch.float64), n)
    alone = tuple(int(other == rank) for other in range(n))
    if not numbers or any(number.counts != alone for number in numbers):
        return None
    return digits.piece_of(numbers, attempt.case.inputs[0][0].numel(), n)


def gathers_leftward(attempt: Any) -> str | None:
    """The second half of 2.4 goes against the first."""
    n = attempt.world_size
    if n < 3 or attempt.case.kind != "digits":
        return None
    for rank, record in enumerate(attempt.ranks):
        second = record.sends[n - 1 :]
        if len(second) == n - 1 and {s[1] for s in second} == {(rank + 1) % n}:
            return (
                f"rank {rank} sent the chunks of the second half to rank {(rank + 1) % n}, its right neighbour. "
                "The lesson's all-gather does that; yours goes to the left."
            )
    return None


def added_while_gathering(attempt: Any) -> str | None:
    """In the second half complete sums travel: they are copied. Added, they are counted again."""
    n = attempt.world_size
    if attempt.case.kind != "digits" or n < 3:
        return None
    for rank, output in enumerate(attempt.outputs):
        numbers = digits.read_all(output, n) if isinstance(output, torch.Tensor) else None
        worst = max(numbers or [], key=lambda number: max(number.counts), default=None)
        full = any(number.counts == (1,) * n for number in numbers or [])
        if worst and max(worst.counts) > 1 and full and len(attempt.ranks[rank].sends) == 2 * (n - 1):
            most = worst.counts.index(max(worst.counts))
            return (
                f"`{worst.text}` on rank {rank}: rank {most}'s number is counted {max(worst.counts)} times. It was "
                "added in the gather half: a chunk that arrives there is complete already, so copy it."
            )
    return None


def gathered_a_partial_chunk(attempt: Any) -> str | None:
    """The gather starts on a chunk that is not the one this rank completed."""
    n = attempt.world_size
    if attempt.case.kind != "digits" or n < 3:
        return None
    for rank, record in enumerate(attempt.ranks):
        if len(record.sends) != 2 * (n - 1):
            return None
        first = record.sends[n - 1]
        numbers = digits.read_all(torch.tensor(first[4] or [], dtype=torch.float64), n)
        if numbers and 0 in numbers[0].counts:
            missing = [r for r, count in enumerate(numbers[0].counts) if not count]
            return (
                f"the gather half starts on a partial chunk: rank {rank} sent `{numbers[0].text}` first, "
                f"where rank {missing[0]} is missing. Start with the chunk that this rank has completed."
            )
    return None
