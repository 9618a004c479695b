"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from caudal.store import Store


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, fetched into the user's own store the first time."""
    return Store().ensure("smollm2").path


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M's GGUF file, fetched into the user's own store the first time."""
    return Store().ensure("gemma3:270m-base").path
