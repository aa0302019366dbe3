"""What the code of an answer shows by itself: said below a diagnosis, which judges what the code has done."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
LEFT = {"MAX": "largest", "MIN": "smallest", "PRODUCT": "product"}  # what such a ReduceOp leaves of the ranks' numbers
RECEIVES = frozenset({"recv", "irecv"})


def remark(attempt: Any, told: str) -> str:
    """What is worth adding to the text that a learner is told; empty where nothing is."""
    text = _not_a_sum(attempt.code, attempt.exercise.operations, told) or from_anybody(attempt.code)
    return "" if text in told else text


def _calls(code: str) -> Iterator[tuple[str, ast.Call]]:
    """(name, call) of every call in the code: ("recv", that of `dist.recv(x, 0)`)."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def _not_a_sum(code: str, meant: frozenset[str], told: str) -> str:
    """A reduction with an operation that no right answer needs."""
    if any(word in told for word in LEFT.values()):
        return ""  # it is known already
    for name, call in _calls(code):
        for given in (*call.args, *(keyword.value for keyword in call.keywords)) if name in REDUCTIONS else ():
            operation = given.attr if isinstance(given, ast.Attribute) else ""
            if operation in LEFT and operation not in meant:
                return (
                    f"`{ast.unparse(call)}` leaves the {LEFT[operation]} of the ranks' numbers. op=SUM, the default, "
                    "adds them up."
                )
    return ""


def from_anybody(code: str) -> str:
    """What a receive does that does not say from whom; empty where there is none."""
    for name, call in _calls(code):
        if name in RECEIVES and len(call.args) == 1 and not {k.arg for k in call.keywords} & {"src", "group_src", None}:
            return (
                f"`{ast.unparse(call)}` takes the first message that comes, from whichever rank, perhaps one of a "
                "later step. Say from whom: src=..."
            )
    return ""
