"""What requests asked for that had no effect: said in a header, counted, and logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.server.body_error import BodyError

logger = logging.getLogger("caudal.server")

HEADER = "x-caudal-ignored"

_SCOPE_KEY = "caudal.ignored"
_MAX_HEADER = 1024
_MAX_SERIES = 200
"""Names come from clients: more than so many share a series, and are not logged."""

OTHER = "other"


class IgnoredFields:
    """Counts the fields that were taken without effect, by name.

    Args:
        registry: Where the counts are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "caudal_ignored_fields",
            "Fields of requests that were taken and had no effect.",
            ["field"],
            registry=registry,
        )
        self._known: set[str] = set()

    def count(self, route: str, field: str) -> None:
        """Add a field of a request; the first of its name is logged."""
        if field not in self._known:
            if len(self._known) >= _MAX_SERIES:
                field = OTHER
            else:
                self._known.add(field)
                logger.info(
                    "%s: the field %s has no effect here (said once; every answer to such a "
                    "request names it in %s)",
                    route,
                    field,
                    HEADER,
                )
        self._counter.labels(field).inc()


def note_ignored(request: Request, fields: Iterable[str]) -> None:
    """Say of fields that they have no effect, before the answer begins.

    Raises:
        BodyError: The server was told to be strict.
    """
    noted: dict[str, None] = request.scope.setdefault(_SCOPE_KEY, {})
    counts: IgnoredFields = request.app.state.ignored_fields
    for field in fields:
        if request.app.state.strict_fields:
            raise BodyError(f"{field} would have no effect on this server.", field)
        name = _printable(field)
        if name not in noted:
            noted[name] = None
            counts.count(request.url.path, name)


class IgnoredHeader:
    """ASGI middleware: names on every answer what of its request had no effect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_named(message: Message) -> None:
            noted = scope.get(_SCOPE_KEY)
            if noted and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER.encode(), _value(noted))]
            await send(message)

        await self._app(scope, receive, send_named)


def _printable(field: str) -> str:
    """A name as it may stand in a header and a log: clients choose it."""
    return "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in ", " else "?"
        for letter in field[:100]
    )


def _value(fields: Iterable[str]) -> bytes:
    text = ""
    for field in fields:
        if len(text) + len(field) > _MAX_HEADER:
            return f"{text}, …".encode("ascii", "replace")
        text += f", {field}" if text else field
    return text.encode("ascii")
