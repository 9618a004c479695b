from __future__ import annotations

from pathlib import Path

import pytest

from caudal.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store that doesn't exist on disk yet."""
    return Store(tmp_path / "home")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is tried again is tried again at once."""
    monkeypatch.setattr("caudal.store.transfer.retries.FIRST_PAUSE_SECONDS", 0.001)
