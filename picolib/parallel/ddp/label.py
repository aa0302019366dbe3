"""What a wrapper's collectives are called, so that those of two wrappers are told apart."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from picolib.comm.groups import resolve

# How many wrappers a process group has had, keyed weakly: it goes when the process group goes.
_counts: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()


class Label:
    """Names the collectives of one wrapper: "bucket 0", or "bucket 0 of wrapper 2 (Encoder)" once there are others.

    Two wrappers on one group whose backward passes come in another order on another rank would add the gradients of one
    to those of the other. Ranks whose labels differ are told instead. Wrapping is a collective call, so all ranks count
    alike; a copy keeps the label of its original, since it may be made on one rank only.
    """

    def __init__(self, module: nn.Module, group: Any) -> None:
        self.count = _counts.setdefault(resolve(group)[0], [0])
        self.count[0] += 1
        self.wrapper = f"wrapper {self.count[0]} ({type(module).__name__})"

    def __call__(self, what: str) -> str:
        return what if self.count == [1] else f"{what} of {self.wrapper}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Label:
        return self
