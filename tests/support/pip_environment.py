"""Sets pip's configuration for a test, whatever this machine's is."""

from __future__ import annotations

import os

import pytest

from caudal.store.pypi.pip_settings import PipSettings, parse_pip_settings


def use_only_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make pip be configured for one index, without any file, proxy or certificate of its own."""
    clear_pip_configuration(monkeypatch)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("caudal.store.pypi.pull.read_pip_settings", _settings_of_the_environment)


def _settings_of_the_environment() -> PipSettings:
    """What pip would say of the variables alone, without the time it takes to start pip."""
    lines = [
        f":env:.{name.removeprefix('PIP_').lower().replace('_', '-')}={value!r}"
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    ]
    return parse_pip_settings("\n".join(lines), os.environ)


def clear_pip_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo whatever this machine's pip is configured with."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
