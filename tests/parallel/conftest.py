"""Test functions travel to ranks by value, so that ranks need not import pytest."""

from __future__ import annotations

import cloudpickle
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
