"""Just enough of HTTP to ask for streamed answers, and cheap.

The load shares its machine with the server that it measures, so what a client takes of the
processors is missing from the result. A client for all purposes takes 150 µs for each token that
comes; this one notes when bytes came and leaves the rest for when the answer is complete.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from caudal.errors import ParameterError

READ_SECONDS = 300.0
"""A server that sends nothing for so long has failed the request, unless told otherwise."""

LONGEST = 12
"""An answer that goes on for so many times that long has failed, too, whatever comes of it."""

MOST_BYTES = 64 * 2**20
"""An answer that is longer has failed: it is kept in memory, and some have no end."""

REUSE_SECONDS = 1.0
"""A connection that has been idle for longer isn't used again: the server may be closing it."""


class ConnectionClosedError(ConnectionError):
    """The server closed the connection before its answer was complete."""


class EndlessAnswerError(ConnectionError):
    """The server's answer went on and on."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """What a server answered.

    Attributes:
        status: HTTP status.
        pieces: All of the body, each piece with when it came, on `time.perf_counter`.
    """

    status: int
    pieces: Sequence[tuple[float, bytes]]

    @property
    def body(self) -> bytes:
        """All of the body."""
        return b"".join(piece for _, piece in self.pieces)


class StreamClient:
    """Posts JSON to one server and reads the answers, on as many connections as it takes.

    Args:
        url: The server.
        api_key: Sent as a bearer token.
        read_seconds: A server that sends nothing for so long has failed the request; see `LONGEST`,
            too.

    Raises:
        ParameterError: `url` is not one, or `api_key` can't stand in a header.
    """

    def __init__(
        self, url: str, api_key: str | None = None, read_seconds: float = READ_SECONDS
    ) -> None:
        wrong = ParameterError("url", f"{url!r} is not a server's address: http://HOST:PORT.")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise wrong from error
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise wrong
        if not _is_visible(url):
            raise wrong
        if api_key is not None and not _is_visible(api_key):
            raise ParameterError("api_key", "An API key has no spaces, line ends or accents.")
        secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port or (443 if secure else 80)
        self._tls = ssl.create_default_context() if secure else None
        self._path = parts.path
        self._headers = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if api_key is not None:
            self._headers += f"Authorization: Bearer {api_key}\r\n"
        self._read_seconds = read_seconds
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes) -> StreamedAnswer:
        """Send a request and read all of its answer.

        Raises:
            OSError: There is no connection, or it broke; a `TimeoutError` after `read_seconds`, an
                `EndlessAnswerError` where more comes than an answer may have.
            httptools.HttpParserError: The answer isn't HTTP.
        """
        return await self._ask("POST", path, body)

    async def get(self, path: str) -> StreamedAnswer:
        """Ask for what is at a path; raises what `post` raises."""
        return await self._ask("GET", path, b"")

    async def _ask(self, method: str, path: str, body: bytes) -> StreamedAnswer:
        length = f"Content-Length: {len(body)}\r\n\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}{length}"
        connection = self._take_idle()
        if connection is not None:
            try:
                return await self._exchange(connection, head.encode() + body)
            except ConnectionError:
                # The server closed an idle connection while the request was on its way. It is the
                # server's right, and nothing of an answer has come: ask again.
                if connection.heard_answer:
                    raise
        return await self._exchange(await self._connect(), head.encode() + body)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, connection: _Connection, request: bytes) -> StreamedAnswer:
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.idle_seconds < REUSE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._read_seconds):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._read_seconds), self._host, self._port, ssl=self._tls
            )
        return connection


class _Connection(asyncio.Protocol):
    """One connection. What `httptools` finds in the bytes, it reports by calling `on_…`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_seconds: float) -> None:
        self._loop = loop
        self._read_seconds = read_seconds
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._heard = time.perf_counter()  # uvloop's own clock counts in milliseconds
        self.reusable = True
        self._done: asyncio.Future[None] = loop.create_future()
        self._pieces: list[tuple[float, bytes]] = []
        self._left = MOST_BYTES
        self._ends_with_connection = False
        self.heard_answer = False  # to the latest request, any of it

    @property
    def idle_seconds(self) -> float:
        """Since something came."""
        return time.perf_counter() - self._heard

    async def exchange(self, request: bytes) -> StreamedAnswer:
        """See `StreamClient.post`."""
        assert self._transport is not None
        self._done = self._loop.create_future()
        self._pieces = []
        self.heard_answer = False
        self._ends_with_connection = True
        self._left = MOST_BYTES
        begun = self._heard = time.perf_counter()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        while not self._done.done():
            left = self._read_seconds - self.idle_seconds
            if left <= 0:
                raise TimeoutError(f"nothing came for {self._read_seconds:g} s")
            most = begun + LONGEST * self._read_seconds - time.perf_counter()
            if most <= 0:
                raise EndlessAnswerError(f"no end in {LONGEST * self._read_seconds:g} s")
            await asyncio.wait([self._done], timeout=min(left, most))
        self._done.result()
        return StreamedAnswer(self._parser.get_status_code(), self._pieces)

    def close(self) -> None:
        """Close it, whatever it is doing."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._heard = time.perf_counter()
        self.heard_answer = True
        self._left -= len(data)
        if self._left < 0:
            self._fail(EndlessAnswerError(f"no end in {MOST_BYTES >> 20} MiB"))
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
        except httptools.HttpParserUpgrade:
            self._fail(httptools.HttpParserError("the server goes on in another protocol"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.reusable = False
        if exc is None and self._ends_with_connection and self._pieces:
            self._succeed()
        else:
            self._fail(exc or ConnectionClosedError("the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Without either of these, a body goes on until the connection ends."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append((self._heard, body))

    def on_message_complete(self) -> None:
        """The answer has come to its end, or what says that there will be one (100, 103)."""
        if 100 <= self._parser.get_status_code() < 200:
            self._ends_with_connection = True
            return
        self.reusable = self._parser.should_keep_alive()
        self._succeed()

    def _succeed(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # it is no fault if nobody asks for an answer any more


def _is_visible(text: str) -> bool:
    """Whether it can stand in the head of a request as it is."""
    return text.isascii() and text.isprintable() and " " not in text
