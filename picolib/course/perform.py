"""Inside a rank: call the learner's function once a case, and make plain records of what it returned and did.

A failure ends with the learner's own line: the check's own code in a traceback would only be in the way.
`early` and `observe` know the frame that called the learner's function by the name of this module.
"""

from __future__ import annotations

import dis
import itertools
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from picolib.course.inputs import own_inputs
from picolib.launch.frames import is_library

NOT_ATTEMPTED = "not attempted"
AFTERWARDS = "Your function had returned by then: this came of what it returned, or left behind."


def perform(
    fn: Any,
    exercise_call: Any,
    in_place: bool,
    keeps: bool,
    folder: str,
    tampered: Sequence[str] = (),
    imported: Sequence[Any] = (),
) -> Any:
    """Call the learner's function on each case's inputs; return what a `RankRecord` is made of, a list for each case.

    Where the function is a stub, return a text: NOT_ATTEMPTED and the name of the function that is not written yet.

    Args:
        fn: the function, or its serialised form, which is unpickled only here.
        exercise_call: `Exercise.call`, which calls the function in its stead; None calls it with its arguments.
        in_place: whether the answer is the first argument after the call, not what is returned.
        keeps: whether the first argument has to stay as it is, so that it is looked at after the call.
        folder: where `inputs.handed_out` has put the arguments.
        tampered: for each case `Case.tampered`.
        imported: modules that were imported as the arguments arrived (see `trial._Imported`).
    """
    from picolib.course import early, observe  # which import this module

    mine = own_inputs(folder)
    if isinstance(fn, bytes):
        import cloudpickle

        fn = cloudpickle.loads(fn)
    notebook = observe.install()
    rebound = rebinds(fn)
    records = []
    for args, notebook.tamper in itertools.zip_longest(mine, tampered, fillvalue=""):
        try:
            with early.Watch(notebook):
                returned = exercise_call(fn, args) if exercise_call else fn(*args)
        except NotImplementedError as error:
            if str(error):
                raise
            return f"{NOT_ATTEMPTED} {_stub(error)}"
        except Exception as error:
            _without_the_watch(error)
            _end_with_the_learner(error)
            raise
        output = args[0] if in_place else returned
        left = [plain(args[0]), _share_memory(returned, args[0])] if keeps else [None, False]
        records.append([plain(output), plain(returned) if in_place else None, notebook.clear(), *left, rebound])
    return records


def _stub(error: Exception) -> str:
    """The function that is not written yet, where its caller knows it by its name; empty for a method."""
    steps = [step for step, _ in traceback.walk_tb(error.__traceback__)]
    code, caller = steps[-1].f_code, steps[max(len(steps) - 2, 0)]
    known = caller.f_locals.get(code.co_name, caller.f_globals.get(code.co_name))
    return code.co_name if getattr(known, "__code__", None) is code else ""


def rebinds(fn: Any) -> str:
    """The name of a function's first argument, where a plain `name = ...` in it gives the name to something else."""
    code = getattr(fn, "__code__", None)
    if code is None or not code.co_argcount:
        return ""
    name, steps = code.co_varnames[0], list(dis.get_instructions(code))
    for before, step in zip(steps, steps[1:], strict=False):
        in_place = "INPLACE" in before.opname or before.argrepr.endswith("=")
        if step.opname == "STORE_FAST" and step.argval == name and not in_place:
            return name
    return ""


def _share_memory(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or not one.numel():
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _without_the_watch(error: Exception) -> None:
    """Take the frames of `early.Watch` out of the traceback: they stand below every line that uses torch."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        if entry.tb_next.tb_frame.f_globals.get("__name__") == "picolib.course.early":
            entry.tb_next = entry.tb_next.tb_next
        else:
            entry = entry.tb_next


def _end_with_the_learner(error: Exception) -> None:
    """Cut what failed in the check's own code behind the learner's last line, which is the last to be shown.

    Such as what `observe` has refused, or a module of the exercise that was called with something odd. Where no line
    is the learner's, the function had returned.
    """
    steps = [step for step, _ in traceback.walk_tb(error.__traceback__)]
    names = [step.f_globals.get("__name__", "") for step in steps]
    last = max((i for i, step in enumerate(steps) if not is_library(step.f_code.co_filename)), default=None)
    if last is None:
        error.__notes__ = [*getattr(error, "__notes__", []), AFTERWARDS]  # add_note() is younger than Python 3.10
        return
    if not any(name.startswith("picolib.course") for name in names[last:]):
        return
    entry = error.__traceback__
    for _ in range(last):
        entry = entry.tb_next  # type: ignore[union-attr]
    entry.tb_next = None  # type: ignore[union-attr]


def plain(value: Any) -> Any:
    """The value without anything that could not travel as numbers, text and tensors."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return {"type": type(value).__name__}
