"""Which host names the server answers to.

A web page can make its own host name point to its visitor's machine (DNS rebinding): to the
browser this server is then the page's own, and the page may read what it answers. The request's
`Host` gives it away. A page does not know the API key, so where there is one nothing is checked.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from caudal.server.errors import error_response

_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::[0-9]*)?")

_OF_THIS_MACHINE = (".localhost", ".internal")
"""Nobody can register names that end so. Containers know their host as host.docker.internal."""

_OF_THIS_NETWORK = (".local", ".home.arpa")


def own_names(bound: str) -> frozenset[str]:
    """The names that lead to this machine.

    Args:
        bound: The host that the server was told to listen on.
    """
    name = socket.gethostname().lower()
    return frozenset(("localhost", bound.lower(), name, name.partition(".")[0]))


def checked_name(text: str) -> str:
    """A host name that a request can be for.

    Raises:
        ValueError: It is something else, such as a URL.
    """
    match = _HOST.fullmatch(text)
    if match is None or not (match["name"] or match["v6"]) or re.search(r"[\s/@*]", text):
        raise ValueError(f"{text!r} is no host name: it must be like example.org")
    name = match["name"] or match["v6"]
    return name.lower().rstrip(".")


def reaches_this_machine_only(host: str) -> bool:
    """Whether who listens on this address hears this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class HostCheck:
    """ASGI middleware: answers 403 to requests for hosts that this server is not.

    Args:
        app: What answers the others.
        names: What else the server is called, in lower case.
        local_only: Whether only this machine reaches the server. If others do, what their network
            calls it is fine too: names without a dot, and those below .local and .home.arpa.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], *, local_only: bool) -> None:
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._local_only = local_only
        self._is_ours = lru_cache(maxsize=64)(self._find_ours)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host":
                    host = value.decode("latin-1")
                    if not self._is_ours(host):
                        await self._refusal(scope, host)(scope, receive, send)
                        return
        await self._app(scope, receive, send)

    def _find_ours(self, header: str) -> bool:
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        if match["v6"] is not None:
            return _is_address(match["v6"])
        name = match["name"].lower().rstrip(".")
        if name in self._names or name.endswith(_OF_THIS_MACHINE) or _is_address(name):
            return True  # an address was no name to begin with: nobody pointed it here
        return not self._local_only and ("." not in name or name.endswith(_OF_THIS_NETWORK))

    def _refusal(self, scope: Scope, host: str) -> ASGIApp:
        name = host.rpartition(":")[0] or host
        return error_response(
            scope,
            403,
            f"This server does not answer to the host name {name!r:.100}. If it is one of its "
            f"names, start the server with --allowed-host NAME, or with an --api-key.",
            code="host_not_allowed",
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
