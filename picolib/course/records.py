"""What comes back from trying a function: the record of each rank, or the error that ended the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from picolib.course.exercise import Case, Exercise


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
