"""Messages over a socket: each is its length, in four bytes, little-endian, and its bytes.

What is sent in one go of the event loop is written in one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from caudal.engine.wire import pack, unpack

logger = logging.getLogger(__name__)

MAX_MESSAGE = 2**30
"""Most bytes of a message: more than any request's body, or its answer, comes to."""

_LENGTH = struct.Struct("<I")


class Channel(asyncio.Protocol):
    """One end of a socket.

    Args:
        kind: What comes in: a type that `unpack` takes.
        on_message: Called with what comes in.
        on_end: Called once, when nothing comes in any more: with what was wrong where it was the
            other end's fault, with None where that has just closed.
    """

    def __init__(
        self,
        kind: Any,
        on_message: Callable[[Any], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._kind = kind
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._incoming = bytearray()
        self._outgoing: list[bytes] = []
        self._ended = False
        self._writable = asyncio.Event()
        self._writable.set()

    async def open(self, sock: socket.socket) -> None:
        """Begin, over one end of a socket pair, which is its own from here on."""
        sock.setblocking(False)
        await self._loop.create_unix_connection(lambda: self, sock=sock)

    @property
    def ended(self) -> bool:
        """Whether nothing comes in any more."""
        return self._ended

    def send(self, message: object) -> None:
        """Send a message; nothing happens once the channel has ended.

        Raises:
            TypeError: It is not plain data.
            ValueError: It is too large.
        """
        self.send_packed(pack(message))

    def send_packed(self, data: bytes) -> None:
        """Send what is packed already.

        Raises:
            ValueError: It is too large.
        """
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(data)} bytes")
        if self._ended:
            return
        if not self._outgoing:
            self._loop.call_soon(self._write)
        self._outgoing += (_LENGTH.pack(len(data)), data)

    async def wait_writable(self) -> None:
        """Wait while the other end reads too slowly for more to be sent."""
        await self._writable.wait()

    def close(self) -> None:
        """Send what is to be sent, and end. Safe to call twice."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def _write(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(outgoing))

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ready."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's isn't one by class

    def data_received(self, data: bytes) -> None:
        """Bytes have come in."""
        incoming = self._incoming
        incoming += data
        begin, size = 0, len(incoming)
        while not self._ended and size - begin >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(incoming, begin)
            end = begin + _LENGTH.size + length
            if length > MAX_MESSAGE:
                self._end(ValueError(f"a message of {length} bytes"))
            elif end > size:
                break
            else:
                message = bytes(memoryview(incoming)[begin + _LENGTH.size : end])
                begin = end
                self._take(message)
        del incoming[:begin]

    def pause_writing(self) -> None:
        """The other end reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """The other end has closed, or this one."""
        self._end(None)

    def _take(self, data: bytes) -> None:
        try:
            self._on_message(unpack(data, self._kind))
        except Exception as error:  # whatever strange bytes lead to
            logger.debug("a message can't be taken", exc_info=True)
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._writable.set()
        self._incoming.clear()
        if self._transport is not None:
            self._transport.abort()
        self._on_end(error)
