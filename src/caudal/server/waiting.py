"""Which connections there are: those that wait for their client, and can be closed to make room for
others; and how many come from one address.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from caudal.server.proxies import TrustedProxies, read_address

if TYPE_CHECKING:
    from caudal.server.protocol import Protocol

logger = logging.getLogger("caudal.server")

LOG_INTERVAL = 10.0
"""Seconds between two words in the log about too many connections."""


class ConnectionsByAddress:
    """How many connections come from where.

    Args:
        most: How many may come from one address; None for any number.
        proxies: Whose connections don't count.

    Attributes:
        most: The same; it may change.
    """

    def __init__(self, most: int | None, proxies: TrustedProxies | None) -> None:
        self.most = most
        self._proxies = proxies
        self._counts: dict[str, int] = {}

    def enter(self, address: str | None) -> bool:
        """A connection has come; returns whether there were as many already as may be."""
        if address is None or self._is_proxy(address):
            return False
        count = self._counts[address] = self._counts.get(address, 0) + 1
        return self.most is not None and count > self.most

    def leave(self, address: str | None) -> None:
        """A connection has gone."""
        if address not in self._counts:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def _is_proxy(self, address: str) -> bool:
        return self._proxies is not None and self._proxies.trusts(read_address(address))


class WaitingConnections:
    """Oldest first. Connections whose request is being computed aren't among them.

    Args:
        max_connections: How many connections there may be, waiting or not; for the log.

    Attributes:
        max_connections: The same; it may change.
    """

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
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
                self.max_connections,
                self._closed,
                self._refused,
            )
        return oldest
