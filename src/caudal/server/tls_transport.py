"""TLS on one connection, between its transport and its protocol.

asyncio's own puts itself in the place of the transport only once hands are shaken: until then a
connection is in nobody's count, no deadline of ours holds for it, and what speaks no TLS gets no
answer. Here it is a connection like any other from its first byte on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

_RECORD = 64 * 2**10
"""Bytes that are decrypted at a time: several records."""

HANDSHAKE = 0x16
"""How every TLS connection begins; no request of HTTP does."""


class TLSTransport(asyncio.Transport):
    """Encrypts what is written; `receive` decrypts what comes.

    Args:
        transport: The connection's.
        context: What it is encrypted with.

    Attributes:
        begun: Whether anything has come.
        ended: Whether the client has said that it sends no more.
    """

    def __init__(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self.begun = self.ended = False
        self._transport = transport
        self._context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_plain = self._shaken = self._told_end = False
        self._early = bytearray()  # what is to be said once hands are shaken

    @property
    def shaken(self) -> bool:
        """Whether both sides have agreed on keys."""
        return self._shaken

    def be_plain(self) -> None:
        """The client speaks no TLS: what is written from here on is sent as it is."""
        self._is_plain = True

    def receive(self, data: bytes) -> bytes:
        """What the client says with what has come; empty where it takes more to know.

        Raises:
            ssl.SSLError: This is no TLS, or none that we speak; it has been told so.
        """
        self.begun = True
        self._incoming.write(data)
        pieces = []
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                if self._early:
                    self._encrypt(bytes(self._early))
                    self._early.clear()
            while piece := self._tls.read(_RECORD):
                pieces.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        finally:
            self._flush()
        return b"".join(pieces)

    def _encrypt(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    # What protocols ask of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        match name:
            case "sslcontext":
                return self._context
            case "ssl_object":
                return self._tls
            case _:
                return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        """See `asyncio.WriteTransport`."""
        if self._is_plain:
            self._transport.write(data)
        elif not self._shaken:
            self._early += data
        elif not self._told_end:
            try:
                self._encrypt(bytes(data))
            except ssl.SSLError:
                self.abort()
            else:
                self._flush()

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`; tells the client, by TLS and by TCP, that no more comes."""
        self._tell_end()
        self._transport.write_eof()

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if not self._transport.is_closing():
            self._tell_end()
        self._transport.close()

    def _tell_end(self) -> None:
        if self._told_end or not self._shaken or self._is_plain:
            return
        self._told_end = True
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()  # which then waits for the client to say the same
        self._flush()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._transport.is_reading()
