"""Connections that wait for their client: those that can be closed to make room for others."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.server.protocol import Protocol

logger = logging.getLogger("caudal.server")

LOG_INTERVAL = 10.0
"""Seconds between two words in the log about too many connections."""


class WaitingConnections:
    """Oldest first. Connections whose request is being computed aren't among them.

    Args:
        max_connections: How many connections there may be, waiting or not; for the log.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._connections: dict[Protocol, None] = {}  # in the order in which they began to wait
        self._closed = self._refused = 0
        self._last_logged = -LOG_INTERVAL

    def add(self, connection: Protocol) -> None:
        """The connection's next move is its client's. One that waits already keeps its place."""
        self._connections.setdefault(connection)

    def remove(self, connection: Protocol) -> None:
        """The next move is the server's, or the connection is closed."""
        self._connections.pop(connection, None)

    def make_room(self) -> Protocol | None:
        """Returns the connection to be closed for a new one; None where no connection waits."""
        oldest = next(iter(self._connections), None)
        if oldest is None:
            self._refused += 1
        else:
            self._closed += 1
            self.remove(oldest)
        if time.monotonic() - self._last_logged >= LOG_INTERVAL:
            self._last_logged = time.monotonic()
            logger.warning(
                "all %d connections are taken (--max-connections): closed %d that waited for "
                "their clients, refused %d",
                self._max_connections,
                self._closed,
                self._refused,
            )
        return oldest
