"""Every response says which request it answers: `x-request-id`, the client's where it has one."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"

MAX_LENGTH = 128
"""Longest id that is taken from a client: it goes into logs and headers."""


def request_id(scope: Scope) -> str:
    """The request's id: the client's where it is printable and short, otherwise a new one."""
    state: dict[str, Any] = scope.setdefault("state", {})
    identity: str | None = state.get("request_id")
    if identity is None:
        identity = _given(scope) or f"req_{secrets.token_hex(12)}"
        state["request_id"] = identity
    return identity


def _given(scope: Scope) -> str | None:
    for name, value in scope.get("headers", ()):
        if name == HEADER:
            text: str = value.decode("latin-1")
            acceptable = 0 < len(text) <= MAX_LENGTH and text.isascii() and text.isprintable()
            return text if acceptable else None
    return None


class RequestIds:
    """ASGI middleware around everything that answers, failures included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = (HEADER, request_id(scope).encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self._app(scope, receive, send_with_id)
