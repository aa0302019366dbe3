"""The command line: `picolib` lists its commands, `picolib COMMAND --help` explains one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

PIPE_CLOSED, INTERRUPTED = 141, 130  # what a shell's own tools end with: 128 + SIGPIPE, 128 + SIGINT


def lab(options: argparse.Namespace) -> int:
    """Open the course in JupyterLab, on your own copies in workspace/."""
    from picolib.course import workspace

    return workspace.open_lab(_folder(options), options.jupyter)


def update(options: argparse.Namespace) -> int:
    """Bring new lesson cells into workspace/; what you have edited stays."""
    from picolib.course import workspace

    print(workspace.update(_folder(options)))
    return 0


def _folder(options: argparse.Namespace) -> str:
    """The workspace that is named, or that this is (in a terminal of JupyterLab), or that lies here."""
    from picolib.course import state

    return options.workspace or str(state.workspace() or "workspace")


def grade(options: argparse.Namespace) -> int:
    """Run every exercise of a notebook in fresh processes and report which pass."""
    from picolib.course import grade

    return grade.main(options.notebook, junit=options.junit)


def doctor(options: argparse.Namespace) -> int:
    """Tell what this machine can do and what each lesson needs."""
    from picolib.course import doctor

    report = doctor.examine()
    print(report)
    return 0 if report.healthy else 1


def calibrate(options: argparse.Namespace) -> int:
    """Measure this machine's latency and bandwidth between ranks."""
    from picolib.comm import calibration

    print(calibration.calibrate(world_size=options.ranks))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="picolib", description="Build the parallelism of large-model training yourself, on real ranks."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(function):
        made = commands.add_parser(function.__name__, help=function.__doc__, description=function.__doc__)
        made.set_defaults(function=function)
        return made

    for function in (lab, update):
        made = command(function)
        text = "where your copies live (default: the workspace that you are in, else workspace)"
        made.add_argument("--workspace", default=None, metavar="FOLDER", help=text)
    commands.choices["lab"].add_argument("jupyter", nargs="*", metavar="-- OPTION", help="handed to jupyter lab")
    made = command(grade)
    made.add_argument("notebook", nargs="+", metavar="NOTEBOOK")
    made.add_argument("--junit", metavar="FILE", help="also write a JUnit XML report")
    command(doctor)
    made = command(calibrate)
    made.add_argument("--ranks", type=int, default=2, metavar="N", help="how many ranks take part (default: 2)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; without one, list them. What comes back is the exit status."""
    try:
        try:
            return _obey(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `picolib doctor | head -1`: whoever reads has seen enough
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python flushes once more at its end
        return PIPE_CLOSED


def _obey(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "function"):
        parser.print_help()
        return 0
    try:
        return options.function(options)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:  # every error is a sentence, not a traceback
        print(f"picolib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("picolib: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
