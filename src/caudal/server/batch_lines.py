"""A line of a batch, answered as a request is that comes over a socket: by the application itself.

So all that holds for requests holds for lines: routes, limits, fields, records. They differ in
some ways, for which their scope says that they are lines (`BATCH_LINE`): they are less urgent than
anything that somebody waits for, take as long as they do, and are not counted among what their
tenant may ask in a minute; and who that is is said, not shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from caudal.batches.answers import LineAnswer
from caudal.batches.lines import Line
from caudal.server.encoding import encode_json
from caudal.server.errors import LIMIT_HEADER, envelope
from caudal.server.request_ids import request_id
from caudal.service.context import BACKGROUND, RequestContext

BATCH_LINE = "caudal.batch_line"
"""Where a scope says that it is a line's."""

_MOST_PRIORITY = 2**30

_NO_HURRY = 31 * 24 * 3600.0
"""Seconds that a line has which doesn't say so, whatever requests have: batches end it sooner."""

_WAITING_CODES = frozenset(("model_loading", "model_unavailable"))
"""Of errors that are over once a model has its place, whichever line it is."""


def context_of_line(own: RequestContext, context: RequestContext) -> RequestContext:
    """What travels with a line.

    Args:
        own: What it says itself.
        context: As a request of the same tenant would have it.
    """
    asked = min(max(context.priority, 0), _MOST_PRIORITY)
    return replace(
        context,
        priority=BACKGROUND + asked,
        timeout=own.timeout or _NO_HURRY,
        first_token_timeout=own.first_token_timeout or _NO_HURRY,
    )


class LineCalls:
    """Answers lines: see `caudal.batches.answers.Answer`.

    Args:
        app: The application.
        scope_of: What a scope has besides, by the tenant's id; None where that tenant isn't there
            any more.
    """

    def __init__(
        self, app: ASGIApp, scope_of: Callable[[str | None], Mapping[str, Any] | None]
    ) -> None:
        self._app = app
        self._scope_of = scope_of

    async def __call__(self, line: Line, tenant: str | None, gone: asyncio.Event) -> LineAnswer:
        """See `Answer`."""
        more = self._scope_of(tenant)
        if more is None:
            error = envelope("The key that made this batch was revoked.", "authentication_error")
            return LineAnswer(401, "", encode_json(error))
        body = line.encoded()
        path = line.url.encode()
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": line.url,
            "raw_path": path,
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": None,
            "server": None,
            "state": {},
            BATCH_LINE: True,
            **more,
        }
        call = _Call(body, gone)
        await self._app(scope, call.receive, call.send)
        return call.answer(request_id(scope))


class _Call:
    """One request: what it sends, and what it is sent.

    Args:
        body: Its body.
        gone: Set once nobody waits any more.
    """

    def __init__(self, body: bytes, gone: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._gone = gone
        self._status = 500
        self._headers = Headers()
        self._received = bytearray()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = Headers(raw=message["headers"])
        elif message["type"] == "http.response.body":
            self._received += message.get("body", b"")

    def answer(self, identity: str) -> LineAnswer:
        retry_after = self._headers.get("retry-after", "")
        seconds = float(retry_after) if retry_after.isdigit() else None
        is_busy = self._status == 429 or LIMIT_HEADER in self._headers
        if self._status == 503 and not is_busy:
            is_busy = _code(bytes(self._received)) in _WAITING_CODES
        if self._status == 429 and seconds is None:
            seconds = 1.0
        return LineAnswer(self._status, identity, bytes(self._received), seconds, is_busy)


def _code(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""
