"""What answers say in headers of what was made of their requests."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SCOPE_KEY = "caudal.said"
_MAX_HEADER = 1024


def say(scope: Scope, header: str, name: str) -> bool:
    """Have an answer name something in a header; before it begins.

    Returns:
        Whether it wouldn't have, yet.
    """
    said: dict[str, dict[str, None]] = scope.setdefault(_SCOPE_KEY, {})
    names = said.setdefault(header, {})
    if name in names:
        return False
    names[name] = None
    return True


class SaidHeaders:
    """ASGI middleware: puts what was said of a request into its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_named(message: Message) -> None:
            said: dict[str, dict[str, None]] | None = scope.get(_SCOPE_KEY)
            if said and message["type"] == "http.response.start":
                more = [(header.encode(), _value(names)) for header, names in said.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, send_named)


def _value(names: Iterable[str]) -> bytes:
    text = ""
    for name in names:
        if len(text) + len(name) > _MAX_HEADER:
            return f"{text}, …".encode("ascii", "replace")
        text += f", {name}" if text else name
    return text.encode("ascii")
