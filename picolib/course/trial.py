"""Trying a function: run it on fresh ranks, and bring back what it returned, left behind, sent and called.

Nothing that the learner's code could have made is unpickled here: ranks answer with numbers, lists and tensors.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib
import inspect
import io
import itertools
import os
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from picolib.course.exercise import Case, Exercise
from picolib.launch.frames import is_library

LONGEST = 2.5  # seconds for one run on a machine that is free, so that a check stays within 3
MOST_LOAD = 3.0  # times that where the machine is busy: right answers take a fifth of a second a run
NOT_ATTEMPTED = "not attempted"
AFTERWARDS = "Your function had returned by then: this came of what it returned, or left behind."


@dataclass
class RankRecord:
    """What one rank did in one case: see `notebook.Notebook` for the entries."""

    output: Any
    returned: Any
    entries: list[list] = field(default_factory=list)
    kept: Any = None  # the first argument after the call, where it has to stay as it is
    shares: bool = False  # whether the returned tensor lives in the memory of the first argument
    rebound: str = ""  # the name of the first argument, where the function gives that name to something else

    @property
    def sends(self) -> list[list]:
        """The learner's own messages, in order."""
        return [e for e in self.entries if e[0] == "send" and e[5] is None]

    @property
    def collectives(self) -> list[list]:
        """[name, elements, is picolib's own] of every collective called."""
        calls = [[e[1], e[2], e[3] is not None] for e in self.entries if e[0] == "collective"]
        owners = {e[5] for e in self.messages} - {None, *(call[0] for call in calls)}
        return calls + [[name, 0, True] for name in owners]  # parts of picolib's algorithms, called directly

    @property
    def messages(self) -> list[list]:
        """All sends and receives, also those of picolib's collectives."""
        return [e for e in self.entries if e[0] in ("send", "recv")]

    @property
    def receives(self) -> list[list]:
        """What came in by the learner's own receives, in the order in which they were started."""
        return [e for e in self.entries if e[0] == "recv" and e[5] is None]

    @property
    def store_used(self) -> str:
        """The first method of the ranks' store that the learner's code has called; empty where none was."""
        return next((e[1] for e in self.entries if e[0] == "store"), "")

    @property
    def reductions(self) -> list[list]:
        """All-reduces of the learner's, in order: see `notebook.Notebook` for what an entry holds."""
        return [e for e in self.entries if e[0] == "collective" and e[1] == "all_reduce"]

    @property
    def unwaited(self) -> list[list]:
        """Messages and asynchronous collectives whose handle was never waited for."""
        waited = {e[1] for e in self.entries if e[0] == "wait"}
        mine = [e for e in self.messages if e[5] is None and e[3] not in waited]
        return mine + [e for e in self.entries if e[0] == "collective" and e[4] is not None and e[4] not in waited]

    @property
    def early(self) -> list[tuple[list, str]]:
        """(message or collective, place in the code) of each tensor that was used before wait()."""
        told = [e for e in self.entries if e[0] in ("send", "recv", "collective")]
        by_id = {e[4] if e[0] == "collective" else e[3]: e for e in told}
        return [(by_id[e[1]], e[2]) for e in self.entries if e[0] == "early"]


@dataclass
class Attempt:
    """One case run with the learner's function: the ranks' records, or the error that ended the run."""

    exercise: Exercise
    case: Case
    ranks: list[RankRecord] = field(default_factory=list)
    error: Exception | None = None
    not_attempted: bool = False
    stub: str = ""  # the function that is not written yet: the learner's own, or one that it calls
    code: str = ""  # the statements of the learner's function, where Python knows them

    @property
    def world_size(self) -> int:
        """On how many ranks it ran."""
        return self.case.world_size

    @property
    def outputs(self) -> list[Any]:
        """What each rank ended with: returned, or in its first argument."""
        return [record.output for record in self.ranks]

    def inputs(self, position: int = 0) -> list[Any]:
        """Argument number `position` of each rank, as it was before the call."""
        return [arguments[position] for arguments in self.case.inputs]


class Unknown(str):
    """Stands for a returned object that is neither number, text, list nor tensor: the name of its type."""


def perform(
    fn: Any,
    exercise_call: Any,
    in_place: bool,
    keeps: bool,
    folder: str,
    tampered: Sequence[str] = (),
    imported: Sequence[Any] = (),
) -> Any:
    """In a rank: call the learner's function (or its serialised form) once per case; return plain records."""
    from picolib.course import early, observe

    mine = _own_inputs(folder)
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
            return f"{NOT_ATTEMPTED} {traceback.extract_tb(error.__traceback__)[-1].name}"
        except Exception as error:
            _without_the_watch(error)
            _end_with_the_learner(error)
            raise
        output = args[0] if in_place else returned
        left = [plain(args[0]), _share_memory(returned, args[0])] if keeps else [None, False]
        records.append([plain(output), plain(returned) if in_place else None, notebook.clear(), *left, rebound])
    return records


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


@contextlib.contextmanager
def _handed_out(cases: Sequence[Case]) -> Iterator[str]:
    """A folder with one file a rank that holds its inputs; see `_own_inputs`."""
    from picolib.launch import pickling

    with tempfile.TemporaryDirectory(prefix="picolib-inputs-", ignore_cleanup_errors=True) as folder:
        for rank in range(cases[0].world_size):
            with open(os.path.join(folder, str(rank)), "wb") as file:
                file.writelines(pickling.dumps([case.inputs[rank] for case in cases]))
        yield folder


def _own_inputs(folder: str) -> list[tuple]:
    """This rank's inputs, and nobody else's: every file is gone before any rank calls the learner's function.

    As an argument of the run all ranks' inputs would stand in every rank's memory, for the learner to look up.
    """
    from picolib.launch import pickling

    path = os.path.join(folder, str(dist.get_rank()))
    with open(path, "rb") as file:
        packed = bytearray(file.read())
    os.remove(path)
    while os.listdir(folder):
        time.sleep(0.001)
    return pickling.loads(memoryview(packed))


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


def attempt(exercise: Exercise, fn: Any, cases: Sequence[Case]) -> list[Attempt]:
    """Run `fn` on these cases (all of one world size) in one run."""
    tried = [Attempt(exercise, case, code=code_of(fn)) for case in cases]
    try:
        answers = _run(exercise, fn, cases)
    except Exception as error:  # whatever ends a run is explained by its text
        tried[0].error = error
        return tried[:1]
    stubs = [answer for answer in answers if isinstance(answer, str)]
    if stubs:
        tried[0].not_attempted = True
        tried[0].stub = stubs[0].removeprefix(NOT_ATTEMPTED).strip()
        return tried[:1]
    for number, one in enumerate(tried):
        one.ranks = [_record(answer[number], exercise) for answer in answers]
    return tried


def code_of(fn: Any) -> str:
    """The statements of a function, without comments and docstring; empty where Python does not know its source."""
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(fn))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    body = getattr(made, "body", [])
    has_docstring = isinstance(made, ast.FunctionDef) and ast.get_docstring(made) is not None
    return "\n".join(ast.unparse(statement) for statement in body[has_docstring:]) if isinstance(body, list) else ""


def _record(answer: list, exercise: Exercise) -> RankRecord:
    output, returned, *rest = answer
    return RankRecord(output, returned if exercise.output == "argument" else output, *rest)


def _run(exercise: Exercise, fn: Any, cases: Sequence[Case]) -> Any:
    from picolib.launch import run

    options: dict[str, Any] = {"results": "plain", "max_seconds": longest()}
    with printed_nowhere(), _handed_out(cases) as folder:
        how = exercise.call, exercise.output == "argument", bool(exercise.keeps)
        tampered = [case.tampered for case in cases]
        imported = [_Imported(name) for name in exercise.imports]
        return run(perform, cases[0].world_size, fn, *how, folder, tampered, imported, **options)


class _Imported:
    """Travels to a rank and is, on arrival, a module imported there: arguments arrive before the rank's time starts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _imported, (self.name,)


def _imported(name: str) -> Any:
    """The module, or None where this version of torch has none of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def longest() -> float:
    """Seconds for one run: longer where other programs keep the cores busy, so that no right answer is cut off."""
    try:
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # Windows has no load average
        busy = 1.0
    return LONGEST * min(max(busy, 1.0), MOST_LOAD)


@contextlib.contextmanager
def printed_nowhere() -> Any:
    """What ranks print would fill the notebook with the lines of a dozen runs."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


Runner = Callable[[Exercise, Any, Sequence[Case]], list[Attempt]]
