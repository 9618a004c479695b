"""What a request has of models: leases as long as it is answered, and comments while one is loaded.

A stream's status goes out with its first event, so that what is wrong with a request is said by a
status. Where its model takes long to load, the stream has to begin before anything is known of the
request's fate, or proxies would close it: then what is wrong comes as an event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.server.anthropic.errors import speaks_anthropic
from caudal.server.ignored import HEADER
from caudal.server.records import record_of
from caudal.server.request_ids import request_id
from caudal.server.streaming import (
    DONE,
    FILLER,
    PING,
    PING_INTERVAL,
    SERVER_SEND,
    encode_event,
    encode_typed_event,
)
from caudal.server.tenancy import tenant_of
from caudal.service.models import Found

T = TypeVar("T")

_SCOPE_KEY = "caudal.waiting"

RESPONSES = "/v1/responses"

MODEL_HEADER = "x-caudal-model"
"""Says which model answers where the name in the request is an alias or a route."""

_IN_HEADERS = "!#$&'()*+,/:;=?@[]{}^`|<>\"\\ "
"""What may stand in a header as it is, beside letters and digits; all else is percent-encoded."""


class RequestsModels:
    """The models of one request, and how its answer has begun.

    Args:
        scope: The request's.
        send: What its answer's begin goes through.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._found: list[Found] = []
        self.begun = False
        self._failure: bytearray | None = None

    def keep(self, found: Found) -> None:
        """Say who answers, where that isn't who was asked, and release it afterwards."""
        self._found.append(found)

    def release(self) -> None:
        """The request has been answered."""
        for found in self._found:
            found.lease.release()

    async def streaming_while(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Wait, and begin a stream of events where that takes long."""
        task = asyncio.ensure_future(waiting)
        try:
            while True:
                done, _ = await asyncio.wait((task,), timeout=PING_INTERVAL)
                if done:
                    return task.result()
                if not self.begun:
                    await self._begin()
                await self._send_body(PING)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _begin(self) -> None:
        self.begun = True
        record_of(self._scope).stream = True
        self._scope.setdefault("state", {})[FILLER] = PING
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        if speaks_anthropic(self._scope):
            headers["request-id"] = request_id(self._scope)
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": encoded})

    async def _send_body(self, data: bytes, *, more: bool = True) -> None:
        send: Send = self._scope.get(SERVER_SEND, self._send)
        await send({"type": "http.response.body", "body": data, "more_body": more})

    async def send(self, message: Message) -> None:
        """Send what a route does; where the stream has begun already, as a part of it."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *self._answered_by()]
        if not self.begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            for name in (HEADER, MODEL_HEADER):
                if (value := headers.get(name)) is not None:  # the headers have gone out
                    await self._send_body(f": {name}: {value}\n\n".encode())
            if message["status"] != 200:
                self._failure = bytearray()
        elif self._failure is None:
            await self._send(message)
        else:
            self._failure += message.get("body", b"")
            if not message.get("more_body", False):
                event = _failure_event(self._scope, json.loads(self._failure))
                await self._send_body(event, more=False)

    def _answered_by(self) -> list[tuple[bytes, bytes]]:
        """A header that says which model an alias or a route led to."""
        model = self._found[-1].model if self._found else None
        if model is None or not tenant_of(self._scope).rules.allows_model(model):
            return []
        return [(MODEL_HEADER.encode(), quote(model, safe=_IN_HEADERS).encode())]


class ModelsOfRequests:
    """ASGI middleware: gives each request a `RequestsModels`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        models = scope[_SCOPE_KEY] = RequestsModels(scope, send)
        try:
            await self._app(scope, receive, models.send)
        finally:
            models.release()


def models_of(scope: Scope) -> RequestsModels:
    """Those of a request."""
    models: RequestsModels = scope[_SCOPE_KEY]
    return models


def _failure_event(scope: Scope, body: dict[str, Any]) -> bytes:
    """How a stream ends that fails before its first event of its own, by its API's habits."""
    if speaks_anthropic(scope):
        return encode_typed_event(body)
    path: str = scope["path"]
    if path.startswith(RESPONSES):
        error = body["error"]
        return encode_typed_event(
            {
                "type": "error",
                "code": error["code"],
                "message": error["message"],
                "param": error["param"],
                "sequence_number": 0,
            }
        )
    return encode_event(body) + DONE
