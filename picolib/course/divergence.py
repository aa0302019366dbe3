"""Where the learner's messages leave those of the reference: the first one that differs."""

from __future__ import annotations

from typing import Any

import torch

from picolib.course import digits, sums
from picolib.course.records import Attempt
from picolib.course.words import number_of


def first_divergence(attempt: Attempt) -> str:
    """The first message where the learner's ranks leave the reference: "step 2: rank 1 sent chunk 0; …"."""
    script = attempt.exercise.script
    if script is None or not attempt.ranks:
        return ""
    plans = [list(script(attempt.world_size, rank)) for rank in range(attempt.world_size)]
    longest = max(max(map(len, plans)), max(len(r.sends) for r in attempt.ranks))
    for step in range(longest):
        for rank, record in enumerate(attempt.ranks):
            text = _difference(attempt, rank, record.sends[step : step + 1], plans[rank][step : step + 1])
            if text:
                return f"First difference from the reference, step {step + 1}: {text}"
    return ""


def same_messages(attempt: Attempt) -> str:
    """What is wrong is not what travels: said where all messages have been read, and are those of the reference."""
    if attempt.exercise.script is None or not attempt.ranks or attempt.case.kind != "digits":
        return ""
    if attempt.case.pieces and any(_chunk_sent(attempt, s) is None for record in attempt.ranks for s in record.sends):
        return ""
    what = f", and each carries the {attempt.exercise.piece} that it should" if attempt.case.pieces else ""
    return (
        f"Your messages go where those of the reference go{what}. Look at what is done with what arrives, "
        "and at what you end with."
    )


def _difference(attempt: Attempt, rank: int, sent: list, planned: list) -> str | None:
    if not sent and not planned:
        return None
    if not planned:
        what = number_of(sent[0][2], "byte")
        return f"rank {rank} sent {what} to rank {sent[0][1]}; the reference sends nothing any more."
    plan = planned[0]
    should = f"chunk {plan.chunk}" if plan.chunk is not None else "the tensor"
    should = should.replace("chunk", attempt.exercise.piece)
    if not sent:
        return f"rank {rank} sent nothing; the reference sends {should} to rank {plan.peer}."
    chunk = _chunk_sent(attempt, sent[0])
    same_peer, same_chunk = sent[0][1] == plan.peer, plan.chunk is None or chunk is None or chunk == plan.chunk
    if same_peer and same_chunk:
        return None
    what = should if chunk is None or chunk == plan.chunk else f"{attempt.exercise.piece} {chunk}"
    if chunk == "all":
        what = "the whole tensor"
    to = "" if same_peer else f" to rank {sent[0][1]}"
    return f"rank {rank} sent {what}{to}; the reference sends {should}{'' if same_peer else f' to rank {plan.peer}'}."


def _chunk_sent(attempt: Attempt, sent: list) -> Any:
    """Which chunk a message carried, read from its digits; "all" for the whole tensor, None when unknown."""
    case = attempt.case
    if case.kind != "digits" or not case.pieces or sent[4] is None:
        return None
    length = case.inputs[0][0].numel()
    numbers = digits.read_all(torch.tensor(sent[4], dtype=torch.float64), attempt.world_size)
    if any(sum(number.counts) > 1 for number in numbers or []) and sums.mixed(attempt):
        return None  # parts of several chunks: the place that their mean points at says nothing
    if numbers and len(numbers) == length and case.pieces > 1:
        return "all"
    return digits.piece_of(numbers, length, case.pieces)
