"""HTTP over TLS on one connection, held to the same limits as without."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from caudal.server.protocol import Protocol
from caudal.server.request_size import RefusedError
from caudal.server.tls_transport import HANDSHAKE, TLSTransport

if TYPE_CHECKING:
    from caudal.server.server_config import ServerConfig

logger = logging.getLogger("caudal.server")

_PLAIN = "This port speaks HTTPS, and this is no TLS: use a URL that begins with https://."


class TLSProtocol(Protocol):
    """One connection. The time for headers is that for the handshake, too."""

    config: ServerConfig
    _tls: TLSTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        assert self.config.certificates is not None
        self._tls = TLSTransport(transport, self.config.certificates.context)
        super().connection_made(self._tls)

    def data_received(self, data: bytes) -> None:
        """Decrypt what came, and go on with that."""
        tls = self._tls
        if self._deaf:  # and doesn't care what it says
            super().data_received(data)
            return
        if not tls.begun and data[0] != HANDSHAKE:
            tls.be_plain()
            self._refuse(RefusedError(400, _PLAIN))
            return
        try:
            said = tls.receive(data)
        except ssl.SSLError as error:
            logger.debug("a client's TLS failed: %s", error.reason or "no reason given")
            if tls.shaken:
                self.abort()
            else:
                self.close_gently()  # it has been told why
            return
        if said:
            super().data_received(said)
        if tls.ended and not self.eof_received():
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, as TCP or TLS has it."""
        return self._tls.shaken and super().eof_received()
