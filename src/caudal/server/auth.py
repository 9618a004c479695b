"""`--api-key`: every route but `/health` needs `Authorization: Bearer KEY` or `x-api-key: KEY`."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from caudal.server.errors import error_response


class ApiKeyAuth:
    """ASGI middleware, so that no route, not even one that does not exist, can forget it."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health" or self._allowed(scope):
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
        headers = Headers(scope=scope)
        given = [headers["x-api-key"]] if "x-api-key" in headers else []
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(token)
        # Compares in constant time, so that the key cannot be guessed byte by byte.
        return any(hmac.compare_digest(key.encode("latin-1"), self._expected) for key in given)
