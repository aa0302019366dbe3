"""The live view of a long run in a notebook: one line a rank, updated in place, gone at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FIRST, EVERY = 1.0, 0.25  # seconds until the view appears, and between two updates


class LiveView:
    """Does nothing outside a Jupyter kernel, or with PICOLIB_LIVE=0.

    The output that holds it starts and ends without any content: a stored notebook shows nothing of it, and nbval,
    which ignores updates, compares nothing. So long and short runs leave the same outputs.
    """

    def __init__(self) -> None:
        self._due = time.monotonic() + FIRST
        self._handle: Any = None
        self._last: list[str] = []
        self.possible = os.environ.get("PICOLIB_LIVE", "1") != "0" and _in_kernel()

    def show(self, lines: Callable[[], list[str]]) -> None:
        """Show these lines when it is time to."""
        now = time.monotonic()
        if not self.possible or now < self._due:
            return
        self._due = now + EVERY
        newest = lines()
        if newest == self._last:
            return
        self._last = newest
        if self._handle is None:
            from IPython.display import display

            self._handle = display({}, raw=True, display_id=True)
        self._handle.update({"text/plain": "\n".join(newest)}, raw=True)

    def close(self) -> None:
        """Take the view away."""
        if self._handle is not None:
            self._handle.update({}, raw=True)
            self._handle = None
        self.possible = False


def _in_kernel() -> bool:
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")
