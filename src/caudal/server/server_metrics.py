"""What the server itself counts, whichever models it has: requests, tenants, refusals, connections.

What a model counts is in its process (`caudal.service.metrics`), and `GET /metrics` puts both
together. Names follow Prometheus' rules; docs/metrics.md has them all.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sized
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from caudal import __version__
from caudal.server.bounded_label import OTHER, BoundedLabel
from caudal.server.draining import Draining
from caudal.server.records import RequestRecord
from caudal.server.request_counts import Counts, Histograms
from caudal.service.engine_collector import NOBODY

_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Sockets(Protocol):
    """What is open, as uvicorn keeps it."""

    @property
    def connections(self) -> Sized:
        """Connections of clients."""

    @property
    def tasks(self) -> Sized:
        """Requests that are being answered."""


class ServerMetrics:
    """Counts what reaches the server, and is told of each request's end.

    Args:
        is_model: Whether there is a model of a name; requests may name anything.

    Attributes:
        registry: What is scraped; others add collectors of their own.
    """

    def __init__(self, is_model: Callable[[str], bool] = lambda name: True) -> None:
        self.registry = registry = CollectorRegistry()
        self._models = BoundedLabel(is_model)
        self._tenants = BoundedLabel()
        self._limits = BoundedLabel()
        build = Gauge(
            "caudal_build_info",
            "What runs; always 1.",
            ["version", "python"],
            registry=registry,
        )
        build.labels(__version__, platform.python_version()).set(1)
        started = Gauge(
            "caudal_start_time_seconds", "When the server began, in Unix time.", registry=registry
        )
        started.set_to_current_time()
        self._requests = Counts(
            "caudal_http_requests",
            "Requests that have been answered, by route, method and status.",
            ["route", "method", "status"],
            registry,
        )
        self._seconds = Histograms(
            "caudal_http_request_duration_seconds",
            "From a request's arrival to the last byte of its answer.",
            "route",
            _SECONDS,
            registry,
        )
        self._connections = Gauge(
            "caudal_http_connections", "Connections that are open.", registry=registry
        )
        self._in_progress = Gauge(
            "caudal_http_requests_in_progress",
            "Requests that are being answered.",
            registry=registry,
        )
        self._draining = Gauge(
            "caudal_draining",
            "1 where the server has been told to end; else 0.",
            registry=registry,
        )
        self._rejected = Counts(
            "caudal_rejected_requests",
            "Requests and connections that a limit refused, by the limit's name.",
            ["limit"],
            registry,
        )
        who = ["tenant", "model"]
        self._of_tenants = Counts(
            "caudal_tenant_requests",
            "Requests for models, by tenant, model and how they ended.",
            [*who, "outcome"],
            registry,
        )
        self._prompt_tokens = Counts(
            "caudal_tenant_prompt_tokens", "Prompt tokens, by tenant.", who, registry
        )
        self._cached_tokens = Counts(
            "caudal_tenant_cached_tokens",
            "Prompt tokens that were taken from the prefix cache, by tenant.",
            who,
            registry,
        )
        self._output_tokens = Counts(
            "caudal_tenant_output_tokens", "Generated tokens, by tenant.", who, registry
        )
        ProcessCollector(registry=registry)

    def follow(self, sockets: Sockets, draining: Draining) -> None:
        """Show what is open while the server runs, and whether it drains."""
        self._connections.set_function(lambda: len(sockets.connections))
        self._in_progress.set_function(lambda: len(sockets.tasks))
        self._draining.set_function(lambda: draining.begun)

    def note_rejected(self, limit: str) -> None:
        """Count what a limit refused before there was a request to record: see `ended`.

        Args:
            limit: The limit's documented name.
        """
        self._rejected.add(1, self._limits.of(limit))

    def ended(self, record: RequestRecord) -> None:
        """Count a request that has been answered, and what refused it."""
        route = record.route or OTHER
        status = "none" if record.status is None else str(record.status)
        self._requests.add(1, route, _method(record.method), status)
        self._seconds.observe(record.seconds, route)
        if record.limit is not None:
            self.note_rejected(record.limit)
        elif record.model is None:  # nobody's tokens: a look at how things are, or a mistake
            return
        tenant = self._tenants.of(record.tenant or NOBODY)
        model = self._models.of(record.model) if record.model else ""
        self._of_tenants.add(1, tenant, model, record.outcome or "")
        for counter, tokens in (
            (self._prompt_tokens, record.prompt_tokens + record.unused_prompt_tokens),
            (self._cached_tokens, record.cached_tokens),
            (self._output_tokens, record.output_tokens + record.unused_output_tokens),
        ):
            if tokens:
                counter.add(tokens, tenant, model)


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _method(method: str) -> str:
    return method if method in _METHODS else OTHER
