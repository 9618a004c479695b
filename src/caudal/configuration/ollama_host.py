"""Where Ollama listens and is asked, as its `OLLAMA_HOST` says it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from caudal.configuration.environment import from_environment

PORT = 11434

_PORTS = {"http": 80, "https": 443}
"""Of addresses that name a scheme, where they name no port."""

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that nobody can ask, and where who listens there is asked instead."""


@dataclass(frozen=True, slots=True)
class OllamaHost:
    """A place.

    Attributes:
        scheme: Of its address: `http` or `https`.
        host: A name, or an address, without brackets.
        port: 0 for a free one.
    """

    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int = PORT

    @property
    def url(self) -> str:
        """Where a client asks."""
        host = _ANY.get(self.host, self.host)
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


def read_ollama_host(text: str) -> OllamaHost:
    """A place as Ollama reads it: `HOST`, `HOST:PORT`, `:PORT`, either of it with `http://` or `https://`
    before and a path behind, which is of no account.

    Raises:
        ValueError: Its port can't be one. Ollama takes its own then.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "http", text.strip()
    elif scheme not in _PORTS:
        raise ValueError(f"must be like 127.0.0.1:11434, but is {text[:80]!r}")
    place = rest.partition("/")[0]
    default = _PORTS[scheme] if separator else PORT
    bare = place.removeprefix("[").removesuffix("]")
    host, colon, port = place.rpartition(":")
    if not colon or _is_address(bare):
        return OllamaHost(scheme, bare or "127.0.0.1", default)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"has the port {port[:20]!r}; ports are 0 to 65535")
    host = host.removeprefix("[").removesuffix("]")
    return OllamaHost(scheme, host or "0.0.0.0", int(port))


def named_host() -> OllamaHost | None:
    """What `OLLAMA_HOST` says; None where it isn't set.

    Raises:
        SettingError: It makes no sense.
    """
    found = from_environment(read_ollama_host, ("OLLAMA_HOST",))
    return None if found is None else found[1]


def ollama_host() -> OllamaHost:
    """What `OLLAMA_HOST` says, or where Ollama is by default; raises what `named_host` raises."""
    return named_host() or OllamaHost()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
