"""uvicorn, configured: what is served, within which limits, by which protocol."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp

from caudal.server.certificates import Certificates
from caudal.server.draining import Draining
from caudal.server.limits import ServerLimits
from caudal.server.protocol import Protocol
from caudal.server.proxies import TrustedProxies
from caudal.server.records import Records
from caudal.server.server_metrics import ServerMetrics
from caudal.server.starter import Starter
from caudal.server.tls_protocol import TLSProtocol
from caudal.server.waiting import ConnectionsByAddress, WaitingConnections


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, the limits, and what all connections share.

    Args:
        app: The application.
        limits: What clients may cost.
        certificates: What connections are encrypted with; None: they aren't.
        draining: How far the server is on its way out; the application's, so that both do alike.
        proxies: Whose connections are not those of one client.
        records: Told of requests that are refused before the application sees them.
        metrics: Told of limits that refuse what isn't a request yet, or no longer.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ServerLimits,
        certificates: Certificates | None = None,
        draining: Draining | None = None,
        proxies: TrustedProxies | None = None,
        *,
        records: Records | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        super().__init__(
            app,
            http=Protocol if certificates is None else TLSProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,  # `Proxied` says who the client is
        )
        self.limits = limits
        self.certificates = certificates
        self.records = Records() if records is None else records
        self.draining = Draining() if draining is None else draining
        self.metrics = ServerMetrics() if metrics is None else metrics
        if certificates is not None:
            self.metrics.registry.register(certificates)
        self.starter = Starter()
        self.waiting = WaitingConnections(limits.max_connections)
        self.addresses = ConnectionsByAddress(limits.connections_per_address, proxies)

    def change_limits(self, limits: ServerLimits) -> None:
        """Have others for connections that come from now on."""
        self.limits = limits
        self.waiting.max_connections = limits.max_connections
        self.addresses.most = limits.connections_per_address
