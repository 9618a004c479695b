"""A server as a real Prometheus sees it; `make test-prometheus` fetches that."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the programs; left out unless asked for, `-m prometheus`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.prometheus)
