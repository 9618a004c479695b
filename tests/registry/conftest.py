"""Pulls and pushes with a registry as others run it; `make test-registry` fetches it."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the program; left out unless asked for with `-m registry`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.registry)
