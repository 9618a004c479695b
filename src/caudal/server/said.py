"""What answers say in headers of what was made of their requests."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastapi import Request
from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.server.bounded_label import BoundedLabel

logger = logging.getLogger("caudal.server")

_SCOPE_KEY = "caudal.said"
_MAX_HEADER = 1024


class Said:
    """Names that answers have in a header, which are counted, and each of which is logged once.

    Args:
        header: The header.
        counter: Counts requests, by the name alone.
        line: The log's, with places for the route and the name.
    """

    def __init__(self, header: str, counter: Counter, line: str) -> None:
        self._header = header
        self._counter = counter
        self._line = line
        self._label = BoundedLabel()  # names come from clients

    def say(self, request: Request, names: Iterable[str]) -> None:
        """Have a request's answer have names, each once; before it begins."""
        said: dict[str, dict[str, None]] = request.scope.setdefault(_SCOPE_KEY, {})
        for name in names:
            of_answer = said.setdefault(self._header, {})
            if name not in of_answer:
                of_answer[name] = None
                self._count(request.url.path, name)

    def _count(self, route: str, name: str) -> None:
        was_known = name in self._label
        self._counter.labels(self._label.of(name)).inc()
        if name in self._label and not was_known:
            logger.info(self._line, route, name)


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
