"""Where credentials for registries come from, and what registries ask for."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from caudal.errors import StoreError
from caudal.store.registry.challenge import Challenge, parse_challenges
from caudal.store.registry.client import Repository
from caudal.store.registry.credentials import Credentials, find_credentials
from caudal.store.transfer.retries import pause_asked_for

ANNA = Credentials("anna", "s3:cret")
PACKED = base64.b64encode(b"anna:s3:cret").decode()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home without any login."""
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, **config: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("key", "entry", "found"),
    [
        ("example.com:5000", {"auth": PACKED}, ANNA),
        ("https://example.com:5000/v1/", {"auth": PACKED}, ANNA),
        ("example.com:5000", {"username": "anna", "password": "s3:cret"}, ANNA),
        ("example.com:5000", {"identitytoken": "abc", "auth": PACKED}, Credentials("", "abc")),
        ("example.com", {"auth": PACKED}, None),
        ("example.com:5000", {}, None),
    ],
)
def test_dockers_login(home: Path, key: str, entry: Any, found: Credentials | None) -> None:
    write(home / ".docker/config.json", auths={key: entry})
    assert find_credentials("example.com:5000") == found


def test_files_in_their_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "own": home / ".docker/config.json",
        "docker": home / "docker/config.json",
        "podman": home / "run/containers/auth.json",
        "named": home / "auth.json",
    }
    for user, path in places.items():
        write(path, auths={"example.com": {"username": user, "password": "x"}})
    for user, name, value in (
        ("own", "NONE", ""),
        ("docker", "DOCKER_CONFIG", str(home / "docker")),
        ("podman", "XDG_RUNTIME_DIR", str(home / "run")),
        ("named", "REGISTRY_AUTH_FILE", str(home / "auth.json")),
    ):
        monkeypatch.setenv(name, value)
        assert find_credentials("example.com") == Credentials(user, "x")


def test_a_helper(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = home / "bin/docker-credential-safe"
    helper.parent.mkdir()
    helper.write_text(
        "#!/bin/sh\nread host\n"
        '[ "$host" = example.com ] || { echo credentials not found; exit 1; }\n'
        'echo \'{"ServerURL": "example.com", "Username": "anna", "Secret": "s3:cret"}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:/usr/bin:/bin")
    write(home / ".docker/config.json", credsStore="safe", auths={"example.com": {}})
    assert find_credentials("example.com") == ANNA
    assert find_credentials("other.com") is None
    write(home / ".docker/config.json", credHelpers={"example.com": "missing"})
    assert find_credentials("example.com") is None


@pytest.mark.parametrize("content", ["{", '{"auths": {"a.com": {"auth": "YW5uYQ=="}}}'])
def test_a_damaged_file_is_named(home: Path, content: str) -> None:
    path = home / ".docker/config.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(StoreError, match=r"config\.json"):
        find_credentials("a.com")


def test_challenges() -> None:
    header = (
        'Bearer realm="https://auth.a.com/token?x=1,2",service="a \\"b\\"", '
        'scope="repository:me/x:pull,push", Basic realm=plain'
    )
    assert parse_challenges([header, "Negotiate", "???"]) == [
        Challenge(
            "bearer",
            {
                "realm": "https://auth.a.com/token?x=1,2",
                "service": 'a "b"',
                "scope": "repository:me/x:pull,push",
            },
        ),
        Challenge("basic", {"realm": "plain"}),
        Challenge("negotiate", {}),
    ]


@pytest.mark.parametrize(
    ("host", "insecure", "url"),
    [
        ("localhost:5000", False, "http://localhost:5000/v2/me/x/"),
        ("127.0.0.2", False, "http://127.0.0.2/v2/me/x/"),
        ("example.com:5000", False, "https://example.com:5000/v2/me/x/"),
        ("example.com", True, "http://example.com/v2/me/x/"),
        ("docker.io", False, "https://registry-1.docker.io/v2/me/x/"),
        ("localhost.example.com", False, "https://localhost.example.com/v2/me/x/"),
    ],
)
def test_where_a_repository_is(host: str, insecure: bool, url: str) -> None:
    assert str(Repository(host, "me/x", insecure).url) == url


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", 0, 0),
        ("7", 7, 7),
        ("soon", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 1e9, 1e12),
    ],
)
def test_how_long_to_wait(text: str, least: float, most: float) -> None:
    headers = {"Retry-After": text} if text else {}
    assert least <= pause_asked_for(httpx2.Response(503, headers=headers)) <= most
