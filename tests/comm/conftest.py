"""Ranks for tests of picolib.comm: `picolib.run`, so that a deadlock or an error ends a test at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import picolib


def _run(function: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Any:
    return picolib.run(function, world_size, *args, **{"timeout": 60.0, **options})


@pytest.fixture
def run_ranks() -> Callable[..., Any]:
    """`run_ranks(function, world_size, *args)`: what each rank returned, as from `picolib.run`."""
    return _run
