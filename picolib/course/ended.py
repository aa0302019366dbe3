"""A run that an error has ended, in the words of a check: the explanation of the run, and what this exercise adds."""

from __future__ import annotations

import re
from typing import Any

from picolib.course.catalogue import built_on
from picolib.launch.wording import listed

ITSELF = "itself; ranks can only exchange messages with others"
TORCHS_ITSELF = "rank should not be the same as the rank of the current process"
COPY_INSTEAD = "Copy the tensor instead: buffer.copy_(tensor)."
IN_A_MESSAGE = re.compile(r"\bi?(send|recv)\(")
TOO_MANY = re.compile(r"(sent|made) (\d+) (messages|collectives) in one call")


def explained(attempt: Any) -> str:
    """The error that ended a run, and what usually helps against it."""
    text = _without_the_check(_without_what_misleads(attempt, _without_ranks(attempt, str(attempt.error))))
    if type(attempt.error).__name__ == "RankTimeout":
        return f"Your function was not through in time: {_why_so_long(text)}\n{text}"
    for advice in (
        _power,
        _exercises_own,
        _raised,
        _endless,
        _blocked,
        _beyond,
        _not_run,
        _no_gradient,
        _on_a_leaf,
        _swapped,
        _nobody,
        _no_tensor,
        _a_tuple,
    ):
        more = advice(attempt, text)
        if more:
            return f"{text}\n\n{more}"
    return text


def power(code: str) -> str:
    """What ^ means in Python, where the code has it behind a 2; empty where not."""
    if not re.search(r"\b2 \^", code):
        return ""
    return 'In Python ^ is not "to the power", it flips bits: 2 ^ 1 is 3. A power of two is 2**k, or 1 << k.'


def _power(attempt: Any, text: str) -> str:
    return power(attempt.code) if ITSELF in text or "there is no rank" in text else ""


def _without_what_misleads(attempt: Any, text: str) -> str:
    """On several ranks somebody else was meant, and no copy would help."""
    if ITSELF in text and attempt.world_size > 1:
        return text.replace(COPY_INSTEAD, "").rstrip()
    return text


def _without_ranks(attempt: Any, text: str) -> str:
    """Where an exercise knows nothing of ranks, its function fails."""
    return re.sub(r"^rank 0 failed", "your function failed", text) if attempt.exercise.sizes == (1,) else text


def _without_the_check(text: str) -> str:
    """Without the lines of a traceback that stand in the check itself: nobody can mend anything there."""
    return re.sub(r"(?m)^ *picolib/course/\S+, line \d+.*\n(?: {6,}.*\n?)?", "", text).rstrip("\n")


def _why_so_long(text: str) -> str:
    """A rank that stands in a message has no loop without end."""
    if re.search(r"\b(wait|send|recv|barrier)\(", text):
        return "a rank still waits in a message. Has every handle been waited for, and every send its receive?"
    return "is there a loop without end?"


def _exercises_own(attempt: Any, text: str) -> str | None:
    return attempt.exercise.ended(attempt, text) if attempt.exercise.ended else None


def _raised(attempt: Any, text: str) -> str | None:
    return next((advice for pattern, advice in attempt.exercise.raised if re.search(pattern, text)), None)


def _endless(attempt: Any, text: str) -> str | None:
    """`observe` has stopped a rank that went on sending, or all-reducing."""
    if not TOO_MANY.search(text):
        return None
    traffic = attempt.exercise.traffic
    needed = max(traffic(attempt.case, r).messages or 0 for r in range(attempt.world_size)) if traffic else 0
    suffice = f" {needed} {'is' if needed == 1 else 'are'} enough on {attempt.world_size} ranks." if needed else ""
    return f"Does the loop ever end?{suffice} Look at what its condition tests, and where that changes."


def _blocked(attempt: Any, text: str) -> str | None:
    """A circle of waits needs another order; where somebody has gone, the explanation says which call is missing."""
    if type(attempt.error).__name__ != "DeadlockError":
        return None
    circle = attempt.exercise.circle if "wait for each other" in text else ""
    return circle or attempt.exercise.blocked or None


def _beyond(attempt: Any, text: str) -> str | None:
    if attempt.world_size == 1 and is_to_itself(text):
        return "On one rank there is nobody to send to or to receive from: nothing is sent there."
    nowhere = "there is no rank" in text or TORCHS_ITSELF in text or (ITSELF in text and attempt.world_size > 1)
    return attempt.exercise.beyond or None if nowhere else None


def is_to_itself(text: str) -> bool:
    """Whether the explanation is that of a message from a rank to itself."""
    return ITSELF in text or TORCHS_ITSELF in text


def _not_run(attempt: Any, text: str) -> str | None:
    """The function of another exercise that this kernel does not know."""
    found = re.search(r"NameError: name '(\w+)' is not defined", text)
    name = found[1] if found else ""
    earlier = built_on(attempt.exercise, name)
    if earlier is None:
        return None
    return (
        f"{earlier.function} is your answer to exercise {earlier.id}: run its cell first. "
        "(After a restart of the kernel nothing is defined, also what has passed.)"
    )


def _no_gradient(attempt: Any, text: str) -> str | None:
    """A collective or an operation on `p.grad`, which is None."""
    if "NoneType" not in text or ".grad" not in text:
        return None
    backward = "gradients" in attempt.exercise.tags and ".backward(" not in attempt.code
    why = "you have not called loss.backward()" if backward else "no backward pass has given it a gradient"
    return f"p.grad is None: {why}. Gradients are there after loss.backward()."


def _on_a_leaf(attempt: Any, text: str) -> str | None:
    """A parameter is changed in place, and autograd records it."""
    if "leaf Variable that requires grad" not in text:
        return None
    return (
        "A parameter that requires a gradient may not be changed in place while autograd records: write into it in "
        "`with torch.no_grad():`."
    )


def _swapped(attempt: Any, text: str) -> str | None:
    """A rank where send and recv take a tensor, or a tensor where they take a rank."""
    no_tensor = r"Expected parameter `tensor` of type torch.Tensor\s+but got <class 'int'"
    odd = re.search(rf"in _check_not_self_rank|{no_tensor}", text)
    if not odd or TORCHS_ITSELF in text or not IN_A_MESSAGE.search(text):
        return None
    return "The tensor comes first, then the rank: dist.send(x, dst=1), dist.recv(x, src=0)."


def _nobody(attempt: Any, text: str) -> str | None:
    """A send to nobody."""
    if "Must specify global_rank or group_rank" not in text:
        return None
    return "A message goes to a rank: dist.send(x, dst=1), dist.isend(x, dst=1)."


def _no_tensor(attempt: Any, text: str) -> str | None:
    """A collective of a number."""
    if "Expected parameter `tensor` of type torch.Tensor" not in text or IN_A_MESSAGE.search(text):
        return None
    return "A collective works in place, on a tensor: make one first, such as count = torch.tensor(3.0)."


def _a_tuple(attempt: Any, text: str) -> str | None:
    """`chunks[i] += ...`, where chunk() and split() give tuples."""
    if "'tuple' object does not support item assignment" not in text:
        return None
    ways = listed(["chunks[i].add_(y)", "chunks[i].copy_(y)", "chunks[i][:] = y"], "or")
    return f"chunk() and split() return a tuple: its places keep their tensors. Write into the tensor itself: {ways}."
