"""Requests whose redirects take no credentials along, and never leave an encrypted connection."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import httpx2

from caudal.errors import StoreError

STALL_SECONDS = 30.0
"""How long a server may say nothing."""
CONNECT_SECONDS = 15.0
MOST_REDIRECTS = 8
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Body(Protocol):
    """What is sent, made anew for every attempt."""

    def __call__(self) -> AsyncIterator[bytes] | bytes: ...


def open_client(connections: int) -> httpx2.AsyncClient:
    """A client for transfers; proxies and certificates are the environment's.

    Args:
        connections: Most at once.
    """
    # What runs on this machine isn't asked for by way of another one.
    context = httpx2.create_ssl_context()
    direct = {f"all://{host}": httpx2.AsyncHTTPTransport(verify=context) for host in _LOOPBACK}
    return httpx2.AsyncClient(
        verify=context,
        mounts=direct,
        headers={"User-Agent": "caudal", "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(STALL_SECONDS, connect=CONNECT_SECONDS, pool=None),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    host = host.strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Whom credentials are for."""
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return url.scheme, url.host, port


@asynccontextmanager
async def sent(
    client: httpx2.AsyncClient,
    method: str,
    url: httpx2.URL,
    headers: Mapping[str, str],
    *,
    authorization: str = "",
    body: Body | None = None,
    secret: bool = False,
) -> AsyncIterator[httpx2.Response]:
    """An answer whose body hasn't been read, behind all redirects.

    Args:
        client: Sends.
        method: The method.
        url: Where to.
        headers: What goes along everywhere.
        authorization: The credentials for the first URL's origin, and for no other.
        body: What is sent.
        secret: Whether the body is for the first URL's origin alone.

    Raises:
        StoreError: It leads on and on, or from an encrypted connection to a plain one, or a secret
            elsewhere.
        httpx2.TransportError: It didn't come through.
    """
    home = origin(url)
    for _ in range(MOST_REDIRECTS + 1):
        own = {"Authorization": authorization} if authorization and origin(url) == home else {}
        request = client.build_request(
            method, url, headers={**headers, **own}, content=None if body is None else body()
        )
        response = await client.send(request, stream=True)
        try:
            target = response.headers.get("Location", "")
            # An upload's answers have a place too, and 303 isn't asked for any of ours.
            if response.status_code not in _REDIRECTS or not target:
                yield response
                return
        finally:
            await response.aclose()
        before, url = url, _joined(url, target)
        if before.scheme == "https" and url.scheme == "http":
            raise StoreError(f"{shown(before)} leads to {shown(url)}, which isn't encrypted")
        if url.scheme not in ("http", "https"):
            raise StoreError(f"{shown(before)} leads to {shown(url)}, which can't be asked")
        if secret and origin(url) != home:
            raise StoreError(f"{shown(before)} leads elsewhere with a secret: to {shown(url)}")
    raise StoreError(f"{shown(url)} leads on and on")


def _joined(base: httpx2.URL, target: str) -> httpx2.URL:
    try:
        return base.join(target)
    except httpx2.InvalidURL as error:
        raise StoreError(f"{shown(base)} leads to {target[:80]!r}, which is no address") from error


def shown(url: httpx2.URL) -> str:
    """A URL without what may be secret: signed ones are in the query."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))
