"""Who may use the server: a key, the names it goes by, and the web pages that may read it.

`--api-key`: every route but the open ones needs `Authorization: Bearer KEY` or `x-api-key: KEY`.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from caudal.server.errors import error_response
from caudal.server.open_paths import OPEN_PATHS


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        api_key: The key that every client needs; None where nobody does.
        host_names: What the server is called: see `caudal.server.hosts`. Of no account with a key.
        local_only: Whether only this machine reaches the server.
        origins: Web pages that may use it: see `caudal.server.cors`.
    """

    api_key: str | None = None
    host_names: Collection[str] = ("localhost",)
    local_only: bool = True
    origins: Collection[str] = ()


def checked_key(key: str) -> str:
    """An API key that clients can send.

    Raises:
        ValueError: There is nothing to it, or a header can't carry it.
    """
    if not key.strip():
        raise ValueError("must not be empty")
    if key != key.strip():
        raise ValueError("must not begin or end with spaces: a header can't carry them")
    if not key.isprintable():
        raise ValueError("must not have control characters: a header can't carry them")
    return key


class ApiKeyAuth:
    """ASGI middleware, so that no route, not even one that does not exist, can forget it."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = [api_key.encode(errors="surrogateescape")]
        with contextlib.suppress(UnicodeEncodeError):
            # Clients disagree on how a header carries what isn't ASCII.
            self._expected.append(api_key.encode("latin-1"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        response = error_response(
            scope,
            401,
            "This server needs an API key: send the header Authorization: Bearer KEY "
            "or x-api-key: KEY.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given.append(value)
            elif name == b"authorization":
                scheme, _, token = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    given.append(token.strip())
        # Compares in constant time, so that the key cannot be guessed byte by byte.
        return any(
            hmac.compare_digest(key, expected) for key in given for expected in self._expected
        )
