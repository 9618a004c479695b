"""Who asks, where a proxy asks for others: trusted proxies are believed, and nobody else.

A client may write into its headers what it likes, and a proxy adds at their end where a request
really came from. So entries are read from the last to the first, past those of trusted proxies.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_FOR = re.compile(r"(?:^|;)\s*for\s*=\s*(\"[^\"]*\"|[^;,\s]*)", re.IGNORECASE)
_PROTO = re.compile(r"(?:^|;)\s*proto\s*=\s*\"?(https?)\"?\s*(?:;|$)", re.IGNORECASE)
_SCHEMES = ("http", "https")

MOST_ENTRIES = 32
"""Proxies that a request may have come through; of more, the last ones are read."""


def checked_proxy(text: str) -> Network:
    """An address or a network (`10.0.0.0/8`) of proxies.

    Raises:
        ValueError: It is neither.
    """
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is no address and no network, such as 10.0.0.0/8") from None


class TrustedProxies:
    """Whose word is believed.

    Args:
        networks: Where they are.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks

    def trusts(self, address: Address | None) -> bool:
        """Whether an address is one of theirs."""
        return address is not None and any(address in network for network in self._networks)

    def origin(self, peer: Address, named: Sequence[str]) -> str:
        """Where a request came from.

        Args:
            peer: Who has sent it here, a trusted proxy.
            named: Whom the proxies say that it came from, the client first.
        """
        found = peer
        for text in reversed(named[-MOST_ENTRIES:]):
            address = read_address(text)
            if address is None:  # a name that a proxy made up: nobody to be told from others
                break
            found = address
            if not self.trusts(address):
                break
        return str(found)


def read_address(text: str) -> Address | None:
    """An address, with or without a port, brackets and quotes."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


class Proxied:
    """ASGI middleware around all others: what is sent by trusted proxies comes from their clients.

    `X-Forwarded-For` and `X-Forwarded-Proto` are read, and `Forwarded` where there is none of them.

    Args:
        app: What it is around.
        proxies: Whose word is believed.
    """

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None:
            peer = read_address(client[0])
            if peer is not None and self._proxies.trusts(peer):
                self._believe(scope, peer)
        await self._app(scope, receive, send)

    def _believe(self, scope: Scope, peer: Address) -> None:
        named, scheme = _listed(scope, b"x-forwarded-for"), _listed(scope, b"x-forwarded-proto")
        if not named and not scheme:
            forwarded = _listed(scope, b"forwarded")
            named = [match[1] for each in forwarded if (match := _FOR.search(each))]
            scheme = [match[1] for each in forwarded if (match := _PROTO.search(each))]
        if named:
            scope["client"] = (self._proxies.origin(peer, named), 0)
        if scheme and scheme[-1].lower() in _SCHEMES:
            scope["scheme"] = scheme[-1].lower()


def _listed(scope: Scope, name: bytes) -> list[str]:
    """What headers of a name list, in order."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return [each.strip() for each in ",".join(values).split(",") if each.strip()]
