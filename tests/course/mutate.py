"""How well do the checks name a fault? Small changes to the solutions, each tried as a learner's answer would be.

    python -m tests.course.mutate --seed 1 --count 40                     a table in Markdown
    python -m tests.course.mutate --seed 1 --count 5 --exercise 3.4 --full      with the whole texts below it

Whoever reads the table decides: a mutant that passed may be right all the same (another way to write it), or it shows
a hole; one that was refused should be told what to repair. Neither can be decided by a program.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle

from picolib.course import lessons
from picolib.course.catalogue import by_id, exercises
from picolib.course.check import examine, failed_text, passed_text
from picolib.course.exercise import Exercise

from .mutations import Mutant, mutants

SITTINGS = ("02A", "02B", "03A", "03B", "04A", "04B", "05A", "05B")
SPAWN = multiprocessing.get_context("spawn")
SECONDS = 120  # for one mutant; its check ends by itself long before
NEEDED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)  # what a lesson's functions are made with


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "passed", "refused" or "broken" (no answer, or the judgement failed), and the text."""

    exercise: Exercise
    mutant: Mutant
    result: str
    text: str


def sample(seed: int, count: int, only: str | None = None) -> list[tuple[Exercise, Mutant]]:
    """`count` mutants, spread evenly over the exercises of SITTINGS (or of one exercise alone)."""
    asked = [by_id(only)] if only else [e for e in exercises().values() if e.sitting in SITTINGS]
    asked = sorted(asked, key=lambda e: tuple(map(int, e.id.split("."))))
    queues = [(exercise, mutants(solved(exercise), f"{seed} {exercise.id}")) for exercise in asked]
    longest = max(len(made) for _, made in queues)
    turns = ((exercise, made[turn]) for turn in range(longest) for exercise, made in queues if turn < len(made))
    return list(islice(turns, count))


def solved(exercise: Exercise) -> ast.FunctionDef:
    """The solution's function."""
    return lessons.definitions(lessons.solution_of(exercise))[exercise.function]


def surroundings(exercise: Exercise) -> str:
    """What the function finds in its notebook: imports, the other functions and the classes."""
    path = lessons.root() / "solutions" / f"{exercise.lesson}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    nodes = [node for cell in cells if cell["cell_type"] == "code" for node in ast.parse("".join(cell["source"])).body]
    return "\n\n".join(ast.unparse(n) for n in nodes if isinstance(n, NEEDED) and _name(n) != exercise.function)


def _name(node: ast.stmt) -> str:
    return getattr(node, "name", "")


class Judge:
    """A process that checks answers, one after the other; it is ended, with its ranks, when one takes too long."""

    def __init__(self) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def ask(self, exercise: Exercise, path: str) -> tuple[str, str]:
        """The result and the text of the answer in a file."""
        try:
            self.pipe.send((exercise.id, path))
            if self.pipe.poll(SECONDS):
                return self.pipe.recv()
            return "broken", f"no answer after {SECONDS} s"
        except EOFError:
            return "broken", "the check has ended its process"

    def end(self) -> None:
        """End the process and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()


def serve(pipe: Connection) -> None:
    """In the process: answer until there are no more questions."""
    os.setsid()
    while True:
        id_, path = pipe.recv()
        try:
            pipe.send(judged(by_id(id_), path))
        except Exception:
            pipe.send(("broken", traceback.format_exc()))


def judged(exercise: Exercise, path: str) -> tuple[str, str]:
    """The result and the text of the answer in a file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # as a notebook's functions travel
    verdict = examine(exercise, getattr(module, exercise.function))
    if verdict.passed:
        return "passed", passed_text(verdict)
    failed = verdict.fault is not None and verdict.fault.cause is not None
    return "broken" if failed else "refused", failed_text(verdict)


def outcomes(asked: list[tuple[Exercise, Mutant]]) -> Iterator[Outcome]:
    """Try the mutants one after the other."""
    judge = Judge()
    with tempfile.TemporaryDirectory(prefix="picolib-mutants-") as folder:
        for number, (exercise, mutant) in enumerate(asked, 1):
            path = Path(folder) / f"mutant{number}.py"
            path.write_text(f"{surroundings(exercise)}\n\n{mutant.code}\n", encoding="utf-8")
            result, text = judge.ask(exercise, str(path))
            if result == "broken":
                judge.end()
                judge = Judge()
            yield Outcome(exercise, mutant, result, text)
    judge.end()


def table(tried: list[Outcome]) -> str:
    """One row a mutant, with the first two lines that are about the fault."""
    rows = ["| | exercise | before → after | | told |", "|---|---|---|---|---|"]
    for number, one in enumerate(tried, 1):
        lines = [line.strip() for line in one.text.splitlines() if line.strip()]
        told = " ".join(lines[1:3] if one.result == "refused" else lines[:2]) if one.result != "passed" else ""
        change = f"`{one.mutant.before}` → `{one.mutant.after or 'nothing'}`"
        rows.append(f"| {number} | {one.exercise.id} | {_cell(change)} | {one.result} | {_cell(told)} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Try the mutants one after the other, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.course.mutate", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--exercise", metavar="ID", help="mutants of this exercise alone")
    parser.add_argument("--full", action="store_true", help="print the whole texts, too")
    given = parser.parse_args()
    tried = list(outcomes(sample(given.seed, given.count, given.exercise)))
    print(table(tried))
    for number, one in enumerate(tried, 1) if given.full else ():
        head = f"## {number}: {one.exercise.id}, {one.mutant.kind}, {one.result}"
        print(f"\n{head}\n\n- `{one.mutant.before}`\n- `{one.mutant.after}`\n\n{one.text}")


if __name__ == "__main__":
    main()
