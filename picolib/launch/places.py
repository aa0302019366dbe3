"""Where in the learner's own code a call comes from.

Frames of torch, picolib, the standard library and installed packages are skipped: what remains is a
cell, a script or the learner's own modules.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import zlib
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

import torch

_PICOLIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = tuple({os.path.realpath(sysconfig.get_path(p)) + os.sep for p in ("stdlib", "platstdlib")})
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MASK = (1 << 64) - 1

_BOTTOM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")  # calls the learner's function

LEARNER, LIBRARY, DISTRIBUTED = 0, 1, 2


class Place(NamedTuple):
    """A call's origin.

    text: JSON `[file, line, function]` of the innermost frame of the learner's.
    stack: hash of all the learner's frames, equal in all processes that run the same code.
    public: the function of `torch.distributed` that the learner called, if it was one.
    direct: the learner (or a picolib function) called it, rather than something else inside torch.
    """

    text: str
    stack: int
    public: str | None
    direct: bool


@lru_cache(maxsize=4096)
def kind_of(filename: str) -> int:
    """Whose code a file is: the learner's, a library's, or torch.distributed's front door."""
    if filename.startswith(_TORCH):
        # Under a mode such as `with torch.device(...)` the last two hand a call on: the learner made it all the same.
        front = filename.endswith(("distributed_c10d.py", "c10d_logger.py", "overrides.py", "utils/_device.py"))
        return DISTRIBUTED if front else LIBRARY
    if filename.startswith(_PICOLIB) or filename.startswith("<frozen") or filename == "<string>":
        return LIBRARY
    if any(part in filename for part in _PACKAGES) or os.path.realpath(filename).startswith(_STDLIB):
        return LIBRARY
    return LEARNER


@lru_cache(maxsize=4096)
def _crc(filename: str) -> int:
    return zlib.crc32(filename.encode("utf-8", "replace"))


_places: dict[tuple[int, ...], tuple[Place, list[CodeType]]] = {}  # by the way there: code and instruction, outwards


def find_place(frame: FrameType | None = None) -> Place:
    """The place in the learner's code from which the caller, or the function of `frame`, was called.

    Each way through the code is looked at once. Every collective asks, mostly after a wait, when the processor's
    caches are cold: then the short loop costs a third of looking anew.
    """
    frame = frame or sys._getframe(1)
    way: list[int] = []
    step: FrameType | None = frame
    while step is not None:
        code = step.f_code
        if code.co_filename == _BOTTOM:
            break
        way += (id(code), step.f_lasti)
        step = step.f_back
    key = tuple(way)
    known = _places.get(key)
    if known is None:
        if len(_places) > 4096:
            _places.clear()
        known = _places[key] = _look_up(frame)
    return known[0]


def _look_up(frame: FrameType | None) -> tuple[Place, list[CodeType]]:
    """The place, and the code on the way to it: kept, so that no other code gets the same id."""
    text, public, direct, stack, way = "", None, True, 0, []
    while frame is not None and frame.f_code.co_filename != _BOTTOM:
        code = frame.f_code
        filename = code.co_filename
        kind = kind_of(filename)
        way.append(code)
        if kind == LEARNER:
            text = text or json.dumps([filename, frame.f_lineno, code.co_name])
            stack = (stack * 1000003 ^ _crc(filename) ^ (code.co_firstlineno << 20) ^ frame.f_lasti) & _MASK
        elif not text:
            if kind == DISTRIBUTED:
                if code.co_name != "wrapper":
                    public = code.co_name
            elif filename.startswith(_TORCH):
                direct = False
        frame = frame.f_back
    return Place(text, stack, public, direct), way
