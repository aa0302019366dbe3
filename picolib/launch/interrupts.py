"""Ctrl-C and the stop button while ranks run: noted when they come, acted upon where nothing is half done.

A KeyboardInterrupt in the middle of a start or of the clean-up would leave open files, folders and ranks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_usual: Callable[..., Any] | None = None  # what an interrupt calls otherwise; None: interrupts are not held
_noted = False


def _note(*_: object) -> None:
    global _noted
    _noted = True


def _can_hold() -> bool:
    """Only the main thread sees interrupts; where they are ignored, or nothing of Python's, that stays so."""
    return threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))


@contextmanager
def held() -> Iterator[None]:
    """Inside, an interrupt only makes the next `check` call the usual handler."""
    global _usual, _noted
    if not _can_hold() or _usual is not None:
        yield
        return
    _usual, _noted = signal.getsignal(signal.SIGINT), False
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _usual)
        _usual = None


def check() -> None:
    """Act on an interrupt that has been held: the usual handler raises KeyboardInterrupt."""
    global _noted
    if _noted and _usual is not None and threading.current_thread() is threading.main_thread():
        _noted = False
        _usual(signal.SIGINT, None)


@contextmanager
def allowed() -> Iterator[None]:
    """Around code of the learner's, which may never end: interrupts act at once."""
    if _usual is None or not _can_hold():
        yield
        return
    check()
    signal.signal(signal.SIGINT, _usual)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _note)
