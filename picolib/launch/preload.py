"""What torch imports only when DistributedDataParallel, FSDP, DTensor or pipelining is used for the first time.

That is a good 800 modules: seconds, and some 90 MB, in every rank of every run. The fork server imports them once, when
a first run is over and nothing else is asked for, so that neither a session's start nor its first run waits for them;
as soon as a rank has used them, without delay.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import sys
from collections.abc import Sequence

from picolib.launch import frames, threads

VARIABLE = "PICOLIB_PRELOAD"  # other modules to import, with commas between them; empty: none
MODULES = (  # one at a time: in between, the server looks whether somebody wants something
    "sympy",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
)
ENOUGH_MEMORY = 1_000_000_000  # bytes that must be free


class Preload:
    """The modules still to be imported, and the names under which the learner may have modules of their own."""

    def __init__(self) -> None:
        wish = os.environ.get(VARIABLE)
        self.left = list(MODULES) if wish is None else [name for name in wish.split(",") if name]
        self.names: set[str] = set()
        self._wish = mmap.mmap(-1, 1)  # shared with the ranks

    def tell_if_used(self) -> None:
        """In a rank, at its end: the next ranks will probably want these modules too."""
        if any(name in sys.modules for name in self.left):
            self._wish[0] = 1

    def is_urgent(self) -> bool:
        """Whether a rank has had to import some of it by itself."""
        return bool(self.left) and self._wish[0] == 1

    def step(self) -> None:
        """Import the next module; one that is not there (an older torch) is left out."""
        name = self.left.pop(0)
        free = threads.usable_memory()
        if free is not None and free < ENOUGH_MEMORY:
            self.left.clear()
            return
        before, path = set(sys.modules), sys.path[:]
        sys.path[:] = [folder for folder in path if frames.is_library(os.path.join(folder, ""))]
        try:
            importlib.import_module(name)
        except Exception:
            pass
        finally:
            sys.path[:] = path
        self.names |= {module for module in set(sys.modules) - before if "." not in module}
        if not self.left:
            gc.collect()
            gc.freeze()

    def forget_shadowed(self, path: Sequence[str]) -> None:
        """In a rank: a preloaded module of which the learner's folders hold another one is theirs to import."""
        folders = [folder for folder in path if not frames.is_library(os.path.join(folder, ""))]
        for name in self.names:
            found = (os.path.join(folder or os.curdir, name) for folder in folders)
            if any(os.path.exists(f"{place}.py") or os.path.isdir(place) for place in found):
                for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                    del sys.modules[module]
