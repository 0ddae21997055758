"""What is here needs several packages at a time, and is marked so."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test below this folder `integration`."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
