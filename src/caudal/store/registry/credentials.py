"""Credentials for registries, from where `docker login` and `podman login` put them."""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caudal.errors import StoreError

_HELPER_SECONDS = 30
_TOKEN_USER = "<token>"
"""What helpers call the user where the secret is an identity token."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks a registry.

    Attributes:
        user: The name; empty with an identity token.
        secret: The password, or the identity token.
    """

    user: str
    secret: str

    @property
    def is_identity_token(self) -> bool:
        """Whether tokens are fetched with it by OAuth2."""
        return not self.user

    @property
    def basic(self) -> str:
        """As basic authentication sends them."""
        pair = f"{self.user}:{self.secret}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def find_credentials(host: str) -> Credentials | None:
    """What the user has logged in with.

    Asked are the files that `REGISTRY_AUTH_FILE` and `DOCKER_CONFIG` name, podman's and Docker's
    own, and the helpers that these name. Formats: docs.docker.com/reference/cli/docker/login.

    Args:
        host: The registry, with its port.

    Raises:
        StoreError: A file of these can't be read, or a helper fails.
    """
    for path in _files():
        config = _read(path)
        if config is None:
            continue
        helper = _object(config, "credHelpers").get(host) or config.get("credsStore")
        entry = _entry(_object(config, "auths"), host)
        found = None if entry is None else _of_entry(entry, path)
        if found is None and isinstance(helper, str) and helper:
            found = _ask_helper(helper, host)
        if found is not None:
            return found
    return None


def _files() -> Iterator[Path]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named).expanduser()
    if folder := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(folder) / "containers" / "auth.json"
    docker = os.environ.get("DOCKER_CONFIG")
    yield (Path(docker).expanduser() if docker else Path.home() / ".docker") / "config.json"


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}, which has credentials, can't be read: {error}") from error
    return content if isinstance(content, dict) else None


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _entry(auths: Mapping[str, Any], host: str) -> Mapping[str, Any] | None:
    """Entries are called by the host, or, from earlier days, by a URL."""
    for key, entry in auths.items():
        name = key.partition("://")[2] or key
        if name.partition("/")[0] == host and isinstance(entry, dict):
            return entry
    return None


def _of_entry(entry: Mapping[str, Any], path: Path) -> Credentials | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Credentials("", token)
    user, secret = entry.get("username"), entry.get("password")
    if isinstance(user, str) and isinstance(secret, str) and user:
        return Credentials(user, secret)
    packed = entry.get("auth")
    if not isinstance(packed, str) or not packed:
        return None  # a helper has them
    try:
        user, colon, secret = base64.b64decode(packed, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user, colon, secret = "", "", ""
    if not colon or not user:
        raise StoreError(f"an `auth` in {path} is not NAME:PASSWORD in base64")
    return Credentials(user, secret.rstrip("\0"))


def _ask_helper(helper: str, host: str) -> Credentials | None:
    """Ask `docker-credential-HELPER`; None where it knows nothing of the host, or isn't there."""
    try:
        result = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=host.encode(),
            capture_output=True,
            timeout=_HELPER_SECONDS,
            check=False,
        )
        content = json.loads(result.stdout) if result.returncode == 0 else {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"docker-credential-{helper} failed: {error}") from error
    user, secret = content.get("Username"), content.get("Secret")
    if not isinstance(user, str) or not isinstance(secret, str) or not secret:
        return None
    return Credentials("" if user == _TOKEN_USER else user, secret)
