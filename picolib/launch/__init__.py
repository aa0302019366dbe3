"""Start ranks from a notebook cell or a script, collect their results, explain their failures."""

from picolib.launch.errors import (
    DeadlockError,
    MismatchError,
    RankError,
    RankTimeout,
    RunError,
    RunInterrupted,
)

__all__ = [
    "DeadlockError",
    "MismatchError",
    "RankError",
    "RankTimeout",
    "Run",
    "RunError",
    "RunInterrupted",
    "init",
    "mark",
    "run",
]


def __getattr__(name: str):
    # These need torch; the error classes and the fork server's start do not, and so need not wait for it.
    if name in ("run", "Run"):
        from picolib.launch import runner

        globals().update(run=runner.run, Run=runner.Run)
    elif name == "init":
        from picolib.launch import joining

        globals()["init"] = joining.init
    elif name == "mark":
        from picolib.launch import marks

        globals()["mark"] = marks.mark
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]
