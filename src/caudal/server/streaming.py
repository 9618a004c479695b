"""Server-sent events and JSON lines, and noticing that a client has gone.

Starlette's own streaming response learns of a disconnect only when it next sends, which during a
long prefill is late; these listen all the time. Among events, silence is bridged with comments,
which proxies and clients count as life and event parsers skip; JSON lines have none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from caudal.server.encoding import encode_json_text, json_text
from caudal.server.errors import ClientDisconnectedError
from caudal.server.records import record_of

T = TypeVar("T")

PING_INTERVAL = 10.0
"""Seconds of silence after which a comment is sent."""

SERVER_SEND = "caudal.server_send"
"""Where a scope has the `send` that the server called the application with."""

FILLER = "filler"
"""Where a scope's state has what the server may send at any time while the body is being sent."""

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


def encode_event(data: dict[str, Any]) -> bytes:
    """One event."""
    return encode_event_text(json_text(data))


def encode_event_text(data: str) -> bytes:
    """One event whose JSON is written already."""
    try:
        return f"data: {data}\n\n".encode()
    except UnicodeEncodeError:
        return b"data: %b\n\n" % encode_json_text(data)


def encode_typed_event(data: dict[str, Any]) -> bytes:
    """One event that carries its type as its name too, for APIs with events of many types."""
    name: str = data["type"]
    return b"event: " + name.encode() + b"\n" + encode_event(data)


def encode_line(data: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return encode_json_text(json_text(data)) + b"\n"


class AnswerStream(Response):
    """Sends encoded pieces until they end or the client goes.

    The layers between the server and a route only watch for a response's begin. So it begins
    through them, and what follows, a token at a time, goes straight to the server.

    Args:
        events: The pieces; closed in either case.
        close: Gives up the work behind them. Called in either case, even where the client
            went before the first piece was asked for and `events` never ran.

    Attributes:
        filler: What may be sent at any time between two pieces, and means nothing; None where
            there is no such thing.
    """

    filler: ClassVar[bytes | None] = None

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record_of(scope).stream = True
        clock = asyncio.get_running_loop().time
        send_body: Send = scope.get(SERVER_SEND, send)
        filler = self.filler
        if filler is not None:
            scope.setdefault("state", {})[FILLER] = filler
        last_sent = clock()

        async def write() -> None:
            nonlocal last_sent
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with contextlib.aclosing(self._events):
                async for event in self._events:
                    await send_body(
                        {"type": "http.response.body", "body": event, "more_body": True}
                    )
                    last_sent = clock()
            await send_body({"type": "http.response.body", "body": b"", "more_body": False})

        async def ping(comment: bytes) -> None:
            nonlocal last_sent
            while True:
                await asyncio.sleep(last_sent + PING_INTERVAL - clock())
                if clock() - last_sent >= PING_INTERVAL:
                    await send_body(
                        {"type": "http.response.body", "body": comment, "more_body": True}
                    )
                    last_sent = clock()

        writing = asyncio.ensure_future(write())
        others = [asyncio.ensure_future(_wait_for_disconnect(receive))]
        if filler is not None:
            others.append(asyncio.ensure_future(ping(filler)))
        try:
            await asyncio.wait({writing, others[0]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(*others, writing)
            await self._close()
        if not writing.cancelled():
            writing.result()


class EventStream(AnswerStream):
    """Server-sent events."""

    media_type = "text/event-stream"
    filler = PING


class JSONLines(AnswerStream):
    """Objects, each a line of JSON."""

    media_type = "application/x-ndjson"


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, cancelling it if the client goes first.

    Raises:
        ClientDisconnectedError: The client went; `work` has been cancelled and has cleaned up.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnectedError
        return working.result()
    finally:
        await _cancel(working, watching)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
