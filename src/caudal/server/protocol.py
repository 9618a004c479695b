"""HTTP/1 on one connection: uvicorn's protocol, held to `ServerLimits`.

uvicorn parses and frames; it waits for its clients for ever, though, keeps whatever they send
ahead, and takes a client that has finished sending for one that has gone. So this class adds

- a deadline wherever the next move is the client's: headers, a body, reading an answer;
- bounds on headers, chunks (`request_size.py`), pipelined requests and connections, and an envelope
  for refusals;
- answers for half-closed clients, for HTTP/1.0, and for clients that offer to upgrade.
"""

from __future__ import annotations

import asyncio
import math
import urllib.parse
from typing import TYPE_CHECKING, Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from caudal.server.cycle import Cycle
from caudal.server.errors import error_response
from caudal.server.request_ids import HEADER, request_id
from caudal.server.request_size import RefusedError, RequestSize
from caudal.server.streaming import FILLER
from caudal.server.unframed import UnframedCycle

if TYPE_CHECKING:
    from caudal.server.server_config import ServerConfig

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

PROBES = (0.05, 0.1, 0.85, 10.0)
"""Seconds between the writes that show whether a half-closed client still reads; the last again."""

MOST_CHECKED_EVERY = 1.0
"""Seconds between two looks at a connection's deadlines, where none of them is shorter."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    config: ServerConfig

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits = config.limits
        self._waiting = config.waiting
        self._addresses = config.addresses
        self._starter = config.starter
        self._draining = config.draining
        self._check_every = min(
            MOST_CHECKED_EVERY,
            limits.header_seconds / 4,
            limits.body_seconds / 4,
            limits.unread_seconds / 4,
            limits.linger_seconds / 4,
        )
        self._checking: asyncio.TimerHandle | None = None
        # The request that is being read
        self._reading = False
        self._finished = False  # by the piece of data that is being parsed
        self._in_body = False
        self._deadline = math.inf
        self._size = RequestSize(limits)
        self._keep_alive = True
        self._closes_after_answer = False
        self._not_upgraded = b""
        # The request that is being answered
        self._answering: RequestResponseCycle | None = None
        self._unread_deadline = math.inf
        # The end
        self._last_request = False
        self._deaf = False
        self._ending = False
        self._half_closed = False
        self._ignored_bytes = 0
        self._closer = _Closer(self)

    # What the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; where there are too many, it or another has to go."""
        super().connection_made(transport)
        self._deadline = self.loop.time() + self._limits.header_seconds
        self._checking = self.loop.call_later(self._check_every, self._check)
        if self._addresses.enter(self._address):
            message = (
                f"There are {self._addresses.most} connections from your address already, as many "
                "as may be. Use those, or close some."
            )
            self._refuse(RefusedError(429, message, "max_connections_per_address", 1))
        elif len(self.connections) > self._limits.max_connections:
            oldest = self._waiting.make_room()
            if oldest is not None:
                oldest.abort()
            if len(self.connections) > self._limits.max_connections:
                message = "The server has too many connections. Retry in a moment."
                self._refuse(RefusedError(503, message, "max_connections", 1))
        self._waiting.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever works for this client learns that it has gone, pipelined or not."""
        super().connection_lost(exc)
        self._addresses.leave(self._address)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()
        if self._checking is not None:
            self._checking.cancel()
        self._waiting.remove(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came, as far as the limits go."""
        if self._deaf:
            self._ignored_bytes += len(data)
            if self._ignored_bytes > self._limits.body_bytes:
                self.abort()
            return
        self._finished = False
        body_bytes = self._size.body_bytes if self._reading else 0
        try:
            self._parse(data)
            if self._reading and not self._finished:  # all of the data is this request's
                self._size.count_unparsed(len(data) - (self._size.body_bytes - body_bytes))
        except RefusedError as error:
            self._refuse(error)
            return
        if self._in_body:
            self._answer_ends_connection()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Nothing to upgrade to. The parser has given up on the body, so a new one reads the
            # request without the offer, which a server is free to overlook.
            head = self._not_upgraded
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, RefusedError):
                raise error.__context__ from None
            raise RefusedError(400, "The request's target is not a URL's path.") from error
        except httptools.HttpParserError as error:
            raise RefusedError(400, f"This is not HTTP/1.1: {error}.") from error

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks whether to stay open
        """The client sends no more. One that waits for an answer may still read it.

        Or it has gone: that shows when it is written to, so it is.
        """
        answering = self._is_answering()
        if self.transport.is_closing() or self._ending or not answering or self._in_body:
            return False
        if self._half_closed:
            return True
        self._last_request = self._half_closed = True
        self._probe(0)
        return True

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        super().pause_writing()
        self._waiting.add(self)

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self._unread_deadline = math.inf
        self._note_whose_move()

    @property
    def _address(self) -> str | None:
        return None if self.client is None else self.client[0]

    # What the parser tells

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= self._limits.pipelined_requests:
            message = "Too many requests were sent ahead on one connection."
            raise RefusedError(429, message, "max_pipelined_requests", 1)
        super().on_message_begin()
        self._reading = True
        self._deadline = self.loop.time() + self._limits.header_seconds
        self._size.begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        super().on_url(url)
        self._size.count_url(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer, of which nothing is asked here."""
        if self._in_body:
            self._size.count_trailer(name, value)
        else:
            self._size.count_header(name, value)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer, or queue the request behind the one that is being answered."""
        scope = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RefusedError(505, "This server speaks HTTP/1.1 and HTTP/1.0.")
        scope["http_version"] = version
        if scope["method"] == "CONNECT":
            raise RefusedError(400, "This server is no proxy.")
        url = httptools.parse_url(self.url)
        raw_path = url.path or b""
        scope["path"] = urllib.parse.unquote(raw_path.decode("ascii"))
        scope["raw_path"] = raw_path
        scope["query_string"] = url.query or b""
        if self.parser.should_upgrade():
            self._not_upgraded = self._head_without_upgrade()
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise RefusedError(400, "A request needs one Host header.")
        self._keep_alive = version == "1.1" and self.parser.should_keep_alive()
        cycle = (Cycle if version == "1.1" else UnframedCycle)(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self._keep_alive and not self._ends_with_answer(),
            on_response=self.on_response_complete,
        )
        self.cycle = cycle
        self._in_body = True
        self._closes_after_answer = False
        self._size.begin_body()
        self._deadline = self.loop.time() + self._limits.body_seconds
        if self._is_answering():
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._start(cycle)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._size.count_body(len(body))
        limits = self._limits
        self._deadline = min(
            self._deadline + len(body) / limits.min_rate, self.loop.time() + limits.body_seconds
        )
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is there: the next move is the server's."""
        self._finished = True
        if not self._in_body:  # an offer to upgrade
            return
        super().on_message_complete()
        self._reading = self._in_body = False
        self._deadline = math.inf
        self._note_whose_move()
        if self._closes_after_answer and not self.cycle.response_started:
            self.cycle.transport = self.transport
            self.cycle.keep_alive = self._keep_alive and not self._ends_with_answer()

    # Answers

    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _ends_with_answer(self) -> bool:
        return self._last_request or self._draining.refuses

    def _note_whose_move(self) -> None:
        if self._reading or self.flow.write_paused or not self._is_answering():
            self._waiting.add(self)
        else:
            self._waiting.remove(self)

    def _start(self, cycle: RequestResponseCycle) -> None:
        self._answering = cycle
        self._starter.start(cycle, lambda: self._start_asgi_task(cycle, self.app))

    def on_response_complete(self) -> None:
        """Answer the next request, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._ending:
            return
        if self.pipeline:
            # Reading stays paused: what has been sent ahead is answered first.
            self._start(self.pipeline.pop()[0])
        elif self._ends_with_answer():
            self.close_gently()
        else:
            self.flow.resume_reading()
            self._note_whose_move()
            if not self._reading:
                self._deadline = self.loop.time() + self._limits.keep_alive_seconds

    def _answer_ends_connection(self) -> None:
        """An answer that does not wait for the request's body is the connection's last.

        Nobody would want to read the rest for nothing, and the next request is behind it.
        """
        self._closes_after_answer = True
        self.cycle.keep_alive = False
        self.cycle.transport = cast("asyncio.Transport", self._closer)

    def _refuse(self, error: RefusedError) -> None:
        """Say what is wrong with what is being read, if an answer can be said, and close."""
        if self._ending:
            return
        cycle, answering = self.cycle, self._answering
        if self._in_body:  # an application waits for the rest of it, or will
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle is not answering and self.pipeline:
                self.pipeline.popleft()
        if self._is_answering() and not (self._in_body and cycle is answering):
            self._deaf = self._last_request = True  # earlier requests still get their answers
            return
        if not (self._in_body and cycle.response_started):
            self.transport.write(self._response(error))
        self.close_gently()

    def _response(self, error: RefusedError) -> bytes:
        scope: Scope = {"path": "", **(self.scope if self._reading else {})}
        response = error_response(
            scope,
            error.status,
            str(error),
            limit=error.limit,
            retry_after=error.retry_after,
        )
        self._note_refusal(scope, error)
        headers = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (HEADER, request_id(scope).encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        is_head = scope.get("method") == "HEAD"
        return (
            STATUS_LINE[response.status_code]
            + lines
            + b"\r\n"
            + (b"" if is_head else bytes(response.body))
        )

    def _note_refusal(self, scope: Scope, error: RefusedError) -> None:
        """Count what the application doesn't, for it knows nothing of it."""
        config = self.config
        if self._in_body:  # it knows the request, and ends its record
            return
        if self._reading:
            scope["client"] = self.client
            record = config.records.begin(scope)
            record.status = error.status
            record.release()
        elif error.limit is not None:
            config.metrics.note_rejected(error.limit)

    def _head_without_upgrade(self) -> bytes:
        lines = [self.scope["method"].encode() + b" " + self.url + b" HTTP/1.1"]
        lines += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    # Deadlines and the end

    def _check(self) -> None:
        """End the connection where the client has missed a deadline."""
        now = self.loop.time()
        if self.flow.read_paused and self._in_body:
            self._deadline = now + self._limits.body_seconds  # it is the server that does not read
        if self.flow.write_paused or self.transport.is_closing():
            if self._unread_deadline == math.inf:
                unread = self.transport.get_write_buffer_size()
                patience = self._limits.unread_seconds + unread / self._limits.min_rate
                self._unread_deadline = now + patience
            elif now >= self._unread_deadline:
                self.config.metrics.note_rejected("unread_timeout")
                self.abort()
                return
        if now >= self._deadline:
            self._deadline = math.inf
            if self._ending:
                self.abort()
                return
            if self._reading:
                what = "body" if self._in_body else "headers"
                limit = "body_timeout" if self._in_body else "header_timeout"
                message = f"The request's {what} did not come in time."
                self._refuse(RefusedError(408, message, limit))
            else:
                self.transport.close()  # nobody asked for anything
        self._checking = self.loop.call_later(self._check_every, self._check)

    def _probe(self, step: int) -> None:
        """Write to a half-closed client something that changes nothing.

        One that has gone answers with a reset, which fails the next write.
        """
        cycle = self._answering
        if cycle is None or self.transport.is_closing() or cycle.response_complete:
            return
        if step > 0:
            filler = cycle.scope["state"].get(FILLER)
            if not cycle.response_started and cycle.scope["http_version"] == "1.1":
                self.transport.write(CONTINUE)
            elif cycle.response_started and filler is not None and not self.flow.write_paused:
                sending = self.loop.create_task(fill(cycle, filler))
                self.tasks.add(sending)
                sending.add_done_callback(self.tasks.discard)
        self.loop.call_later(PROBES[min(step, len(PROBES) - 1)], self._probe, step + 1)

    def close_gently(self) -> None:
        """Close, but leave a client that is still sending the time to read what it was told.

        Closed at once, its kernel would throw away what came in before the reset.
        """
        if self._ending or self.transport.is_closing():
            return
        self._ending = self._deaf = True
        if self._half_closed:
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.time() + self._limits.linger_seconds
        self._waiting.add(self)

    def abort(self) -> None:
        """End the connection now, with whatever is unsent."""
        self._ending = self._deaf = True
        self.connections.discard(self)
        self.transport.abort()

    def end_with_answer(self) -> None:
        """The answer that is under way is the last; where there is none, the next."""
        if self._is_answering():
            self._last_request = True
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """The server is stopping: take no further request."""
        self._last_request = True
        if self._is_answering():
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        """Uvicorn's timer for idle connections is never set: see `_check`."""


async def fill(cycle: RequestResponseCycle, filler: bytes) -> None:
    """Send filler, unless the answer has ended since that was decided: it may end at any time."""
    if not cycle.response_complete:
        await cycle.send({"type": "http.response.body", "body": filler, "more_body": True})


class _Closer:
    """What an answer that came before its request's end is written through.

    A stand-in for the transport: it closes gently.
    """

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_gently()
