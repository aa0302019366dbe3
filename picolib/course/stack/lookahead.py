"""Your `prefetched` (4.5) on a model whose modules are called by somebody else.

It is a loop that calls `compute(i, weight)`, and `compute` has to last as long as a module computes. So the loop has a
thread of its own, and the two take turns: one stands still while the other runs. Only your all-gathers go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from picolib.course.stack.parts import wrong


class Lookahead:
    """One pass over `units`, each of which fetches its whole weight when its turn has come."""

    def __init__(self, prefetched: Any, units: Sequence[Any], look: Callable[[str, Any, torch.Tensor], None]) -> None:
        """look: look("prefetched", weight, own_part) raises where that cannot be the weight."""
        self.prefetched, self.units, self.look = prefetched, list(units), look
        self.fetched = 0
        self.weight: torch.Tensor | None = None
        self.error: BaseException | None = None
        self.over = False  # the loop has ended
        self.skips = False  # the rest of the pass is of no use to anybody
        self.thread: threading.Thread | None = None
        self.loops, self.computes = threading.Semaphore(0), threading.Semaphore(0)  # whose turn it is

    def is_next(self, unit: Any) -> bool:
        """Whether it is this unit's turn."""
        return self.fetched < len(self.units) and self.units[self.fetched] is unit

    def fetch(self) -> torch.Tensor:
        """The next unit's whole weight. What the loop has started for the one after it goes on."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        if not self.over:
            self._let_it_run()
        self.fetched += 1
        if self.over:
            raise wrong("prefetched", f"called compute {self.fetched - 1} times for {len(self.units)} layers")
        return self.weight

    def end(self) -> None:
        """Let the loop come to its end; layers that it has fetched for nobody are not computed."""
        if self.thread is not None and not self.over:
            self.skips = True
            self._let_it_run()

    def _let_it_run(self) -> None:
        self.weight = None
        self.loops.release()
        self.computes.acquire()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        self.loops.acquire()
        try:
            with torch.no_grad():
                self.parts = [unit.own_part() for unit in self.units]
                self.prefetched(self.parts, list(range(len(self.units))), self._compute)
        except BaseException as error:  # it belongs to the thread that waits
            self.error = error
        self.over = True
        self.computes.release()

    def _compute(self, i: int, weight: torch.Tensor) -> None:
        if self.skips:
            return
        if i != self.fetched:
            raise wrong("prefetched", f"called compute({i}, weight) when layer {self.fetched} was to come")
        self.look("prefetched", weight, self.parts[i])
        self.weight = weight
        self.computes.release()
        self.loops.acquire()
