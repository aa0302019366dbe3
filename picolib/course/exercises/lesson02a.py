"""Exercises of sitting 02A: messages, the pictures of the collectives, the ring in two halves."""

from __future__ import annotations

import re
from typing import Any

import torch

from picolib.course import digits, values
from picolib.course.exercise import Case, Exercise, Sent, Traffic
from picolib.course.exercises.data import all_reduced, nbytes, reduce_scattered, vectors

LESSON = "02A_messages_and_ring"


# 2.1 ----------------------------------------------------------------------------------------------------------


def from_the_left(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds when everybody has passed its tensor to the right."""
    return [tensors[rank - 1] for rank in range(len(tensors))]


def right_of(rank: int, n: int) -> frozenset[int]:
    """The right neighbour as a set, for `Traffic.to`."""
    return frozenset({(rank + 1) % n})


def pass_traffic(case_: Case, rank: int) -> Traffic:
    """One message to the right; alone, none."""
    n = case_.world_size
    return Traffic(0, 0, frozenset()) if n == 1 else Traffic(1, nbytes(case_.inputs[rank][0]), right_of(rank, n))


# 2.2 ----------------------------------------------------------------------------------------------------------

# Four ranks before and after, a row a rank: what each holds, chunk by chunk. Letters are ranks, numbers are chunks;
# "1111" is a sum over all four ranks.
PICTURES: dict[str, dict[str, Any]] = {
    "A": {
        "collective": "reduce_scatter",
        "before": [[f"{r}{c}" for c in range(4)] for r in "abcd"],
        "after": [[f"sum {c}"] for c in range(4)],
    },
    "B": {
        "collective": "all_gather",
        "before": [[r] for r in "abcd"],
        "after": [list("abcd")] * 4,
    },
    "C": {
        "collective": "all_to_all",
        "before": [[f"{r}{c}" for c in range(4)] for r in "abcd"],
        "after": [[f"{r}{c}" for r in "abcd"] for c in range(4)],
    },
    "D": {
        "collective": "all_reduce",
        "before": [[f"{r}{c}" for c in range(4)] for r in "abcd"],
        "after": [[f"sum {c}" for c in range(4)]] * 4,
    },
}
LEAVES = {
    "broadcast": "what one rank had, on all ranks",
    "scatter": "a different chunk of one rank's on each rank",
    "gather": "everybody's on one rank, nothing on the others",
    "reduce": "the sum on one rank only",
    "all_reduce": "the whole sum on every rank",
    "all_gather": "everybody's own, side by side, on every rank",
    "reduce_scatter": "one chunk of the sum on each rank",
    "all_to_all": "chunk r of everybody on rank r, nothing added",
}


def name_cases(world_size: int, seed: int) -> list[Case]:
    """No input: the pictures are the question."""
    return [Case("names", ((),), None)]


def judge_names(attempt: Any) -> str | None:
    """Each picture has its collective's name; a wrong one is told what it would leave instead."""
    named = attempt.outputs[0]
    if not isinstance(named, dict) or not set(PICTURES) & set(named):
        return 'return a dictionary with a name for each picture, such as {"A": "broadcast", ...}.'
    for letter, picture in PICTURES.items():
        said = named.get(letter)
        if said is None or said == "" or values.shown(said) == "an ellipsis":
            return f"picture {letter} has no name yet."
        plain = re.sub("_(into_tensor|tensor|single)$", "", str(said).replace("-", "_").replace(" ", "_").lower())
        if plain not in LEAVES:
            return f"picture {letter}: {values.shown(said)} is none of {', '.join(LEAVES)}."
        if plain != picture["collective"]:
            return f"picture {letter} is not {said}: that would leave {LEAVES[plain]}."
    return None


# 2.3 ----------------------------------------------------------------------------------------------------------


def half_ring_traffic(case_: Case, rank: int) -> Traffic:
    """(N-1)/N of the vector, in N-1 messages to the right."""
    n, size = case_.world_size, nbytes(case_.inputs[rank][0])
    return Traffic(n - 1, size * (n - 1) // n, right_of(rank, n) if n > 1 else frozenset())


def reduce_scatter_script(n: int, rank: int) -> list[Sent]:
    """Chunk r must end on rank r, so rank r starts with chunk r-1, and goes down."""
    return [Sent((rank + 1) % n, (rank - 1 - step) % n) for step in range(n - 1)]


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


# 2.4, 2.5 -----------------------------------------------------------------------------------------------------


def ring_traffic(case_: Case, rank: int) -> Traffic:
    """2(N-1)/N of the vector, in 2(N-1) messages to neighbours."""
    n, size = case_.world_size, nbytes(case_.inputs[rank][0])
    return Traffic(2 * (n - 1), 2 * size * (n - 1) // n, frozenset({(rank + 1) % n, (rank - 1) % n}) - {rank})


def leftward_script(n: int, rank: int) -> list[Sent]:
    """The reduce-scatter to the right, then chunk r starts from rank r and travels to the left."""
    return reduce_scatter_script(n, rank) + [Sent((rank - 1) % n, (rank + step) % n) for step in range(n - 1)]


def rightward_script(n: int, rank: int) -> list[Sent]:
    """Both halves to the right."""
    return reduce_scatter_script(n, rank) + [Sent((rank + 1) % n, (rank - step) % n) for step in range(n - 1)]


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


WRAPS = "In a ring the number wraps around: (rank + 1) % N, (rank - 1) % N."
RING_HINTS = (
    "Which chunk does rank r hold completely after N-1 steps of the first half? That one it may pass on.",
    "In the second half nothing is added any more: what arrives takes the place of what was there.",
    "To the left: send chunk (r + step) % N to rank r-1, receive chunk (r + 1 + step) % N from rank r+1.",
)

EXERCISES = (
    Exercise(
        id="2.1",
        function="pass_right",
        title="pass it to the right",
        lesson=LESSON,
        sitting="02A",
        difficulty=1,
        minutes=5,
        task="Send your tensor to the right neighbour, return what comes from the left; alone, return a copy.",
        cases=vectors(from_the_left, 0, pieces=False, many=100, exact=True),
        keeps="x",
        traffic=pass_traffic,
        circle="If every rank receives first (or sends first, and waits), nobody gets to its second call.",
        beyond=WRAPS,
        formula="S",
        verified="one message a rank, to the right neighbour; none on 1 rank",
        hints=(
            "The ring closes: the right neighbour of the last rank is rank 0. Which operator does that?",
            "If all ranks receive first, nobody ever sends. Start the send without waiting (isend), then receive.",
            "request = dist.isend(x, right); dist.recv(y, left); request.wait(). And N = 1 has no neighbour.",
        ),
    ),
    Exercise(
        id="2.2",
        function="name_the_collectives",
        title="name it",
        lesson=LESSON,
        sitting="02A",
        difficulty=1,
        minutes=5,
        task="Four pictures, before and after, on four ranks: return the collective's name for A, B, C and D.",
        cases=name_cases,
        judge=judge_names,
        sizes=(1,),
        verified="A, B, C and D have their names",
        hints=(
            "Ask two questions of a picture: was something added? Does every rank end with the same?",
            "The same everywhere: all_reduce if added, all_gather if not. Different on each: the other two.",
            "Reduce-scatter adds and leaves each rank one chunk; all-to-all transposes and adds nothing.",
        ),
    ),
    Exercise(
        id="2.3",
        function="ring_reduce_scatter",
        title="ring reduce-scatter",
        lesson=LESSON,
        sitting="02A",
        difficulty=3,
        minutes=15,
        task="x has N chunks; pass partial sums around the ring to the right; return chunk r of the sum on rank r.",
        cases=vectors(reduce_scattered, 1),
        keeps="x",
        traffic=half_ring_traffic,
        beyond=WRAPS,
        formula="(N-1)/N·S",
        script=reduce_scatter_script,
        rules=(sent_own_again,),
        verified="{bytes} bytes per rank = (N-1)/N·S; N-1 = {messages} messages, all to the right neighbour",
        hints=(
            "A chunk must visit every rank once. If chunk r is to end on rank r, on which rank does its journey start?",
            "Rank r sends chunk r-1 first. It adds its share to each chunk that arrives; that one it sends next.",
            "Step s of N-1: send chunk (r - 1 - s) % N to the right, receive chunk (r - 2 - s) % N, add it.",
        ),
    ),
    Exercise(
        id="2.4",
        function="ring_all_reduce",
        title="gather to the left, and all-reduce",
        lesson=LESSON,
        sitting="02A",
        difficulty=3,
        minutes=15,
        task="Sum x over all ranks, in place: your reduce-scatter to the right, then an all-gather to the left.",
        cases=vectors(all_reduced, 1),
        output="argument",
        traffic=ring_traffic,
        formula="2(N-1)/N·S",
        script=leftward_script,
        beyond=WRAPS,
        rules=(added_while_gathering, gathered_a_partial_chunk, gathers_leftward),
        same_bits=True,
        verified="{bytes} bytes per rank = 2(N-1)/N·S; {messages} steps; the same bits on every rank",
        hints=RING_HINTS,
    ),
    Exercise(
        id="2.5",
        function="mended_all_reduce",
        title="find the bug: the missing rank",
        lesson=LESSON,
        sitting="02A",
        difficulty=2,
        minutes=10,
        task="This ring all-reduce runs and is wrong: one rank is missing from the sum. Find the line, mend it.",
        cases=vectors(all_reduced, 1),
        output="argument",
        traffic=ring_traffic,
        formula="2(N-1)/N·S",
        script=rightward_script,
        beyond=WRAPS,
        rules=(added_while_gathering,),
        same_bits=True,
        verified="{bytes} bytes per rank = 2(N-1)/N·S; nobody is missing",
        hints=(
            "Run it with digits: rank r contributes 10^r. Which digit of the result is 0?",
            "Follow one chunk: it leaves one rank, and every rank it comes to has to add its own share.",
            "In the first half, look at what happens to what arrives, step by step. Is the first step like the others?",
        ),
    ),
)
