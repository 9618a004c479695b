"""What a client really sent, and what it was answered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECRET_HEADERS = ("authorization", "x-api-key")


@dataclass(kw_only=True)
class Exchange:
    """A request and its answer.

    Attributes:
        method: As sent.
        path: With the query.
        headers: Names in lower case; of a repeated one the last.
        body: The JSON, or None where there was none.
        status: Of the answer.
        answer_headers: Of the answer.
        answer: The answer's body as text.
        time: When it came, Unix time in seconds.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: str = ""
    time: float = field(default_factory=time.time)

    @property
    def has_key(self) -> bool:
        """Whether the client showed a key."""
        return any(name in self.headers for name in _SECRET_HEADERS)

    def __str__(self) -> str:
        return f"{self.method} {self.path} -> {self.status} {self.answer[:500]}"


class Recorder:
    """Keeps what applications are asked, and answer.

    Attributes:
        exchanges: In the order in which they came.
    """

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def listen_to(self, app: ASGIApp) -> ASGIApp:
        """The same application, with an ear at its door."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            await self._record(app, scope, receive, send)

        return recorded

    async def _record(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        query = scope["query_string"].decode()
        exchange = Exchange(
            method=scope["method"],
            path=scope["path"] + (f"?{query}" if query else ""),
            headers=_headers(scope["headers"]),
        )
        self.exchanges.append(exchange)
        received, answered = bytearray(), bytearray()

        async def receive_and_keep() -> Message:
            message = await receive()
            received.extend(message.get("body", b""))
            return message

        async def send_and_keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.answer_headers = _headers(message["headers"])
            answered.extend(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive_and_keep, send_and_keep)
        finally:
            exchange.body = _json(bytes(received))
            exchange.answer = answered.decode(errors="replace")

    def of(self, method: str, path: str) -> list[Exchange]:
        """The exchanges of one route."""
        return [e for e in self.exchanges if (e.method, e.path.split("?")[0]) == (method, path)]

    def refused(self) -> Iterator[Exchange]:
        """Those that were answered with an error."""
        return (exchange for exchange in self.exchanges if exchange.status >= 400)

    def save(self, folder: Path, name: str) -> None:
        """Write each exchange to `NAME-N.json`, without keys."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, exchange in enumerate(self.exchanges, 1):
            (folder / f"{name}-{number}.json").write_text(json.dumps(asdict(exchange), indent=1))


def _headers(pairs: Any) -> dict[str, str]:
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in pairs}
    return {name: "…" if name in _SECRET_HEADERS else text for name, text in headers.items()}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")
