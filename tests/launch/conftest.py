"""What several test files of this folder need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest

REPOSITORY = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Functions of test modules travel by value, so that ranks need not import pytest."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)


def marked(mark: str) -> list[psutil.Process]:
    """All living processes that were started with PICOLIB_TEST=mark in their environment, or forked from such."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("PICOLIB_TEST") == mark:
                found.append(process)
        except psutil.Error:
            pass
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run a text as a plain Python script, in a process of its own."""

    def run(text: str, timeout: float = 100, **env: str) -> subprocess.CompletedProcess:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **env}
        return subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=timeout, env=variables, cwd=tmp_path
        )

    return run


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """A shell that starts the tests in the background has them ignore SIGINT; Python then leaves it at that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After all tests of a worker: the fork server goes, and with it everything it has started."""
    yield
    from picolib.launch import forked

    if forked._current is not None:
        children = psutil.Process(forked._current.process.pid).children(recursive=True)
        forked._current.close()
        forked._current = None
        assert [child for child in children if child.is_running()] == []
