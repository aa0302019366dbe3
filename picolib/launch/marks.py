"""Marking a span of one's own in a trace, for the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from picolib.launch import monitor


@contextmanager
def mark(label: str) -> Iterator[None]:
    """Show what happens inside under `label` in the timeline of a run made with `trace=True`.

        with picolib.mark("backward"):
            loss.backward()

    Also a decorator: `@picolib.mark("forward")`. Marks may lie inside one another. Where nothing is traced, it costs
    next to nothing and does nothing.

    Raises:
        TypeError: the label is not a text.
    """
    if not isinstance(label, str):
        raise TypeError(f'label must be a text such as "backward", got {label!r}')
    start = monitor.now()
    try:
        yield
    finally:
        monitor.mark(label, start)
