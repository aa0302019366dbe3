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
    "Link",
    "Links",
    "MismatchError",
    "RankError",
    "RankTimeout",
    "Run",
    "RunError",
    "RunInterrupted",
    "init",
    "mark",
    "pretend",
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
    elif name in ("Link", "Links"):
        from picolib.launch import links

        globals().update(Link=links.Link, Links=links.Links)
    elif name == "pretend":
        from picolib.launch import pretending

        globals()["pretend"] = pretending.pretend
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]
