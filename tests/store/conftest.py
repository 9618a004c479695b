"""A store of its own and a package index of its own for every test here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caudal.store import Store
from support.package_index import LocalIndex
from support.pip_environment import use_only_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalIndex]:
    """An index that pip is configured for, and nothing else."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    local = LocalIndex(wheels)
    use_only_index(monkeypatch, local.url)
    yield local
    local.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store that doesn't exist on disk yet."""
    return Store(tmp_path / "home")
