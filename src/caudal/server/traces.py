"""Spans of requests for OpenTelemetry, sent by OTLP: `pip install caudal[otel]`, `--otlp-endpoint`.

A request's span and those of its parts are made when it has ended, of what its record knows by
then, with the times at which they began and ended. So tracing costs nothing while it is answered.

Names are those of the semantic conventions for HTTP servers and for generative AI:
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from caudal import __version__
from caudal.errors import CaudalError
from caudal.server.records import RequestRecord
from caudal.server.request_log import is_probe

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger("caudal.server")

PROVIDER = "caudal"
"""`gen_ai.provider.name`."""

TRACES_PATH = "/v1/traces"
"""Where a collector takes spans, below its address."""

CLOSE_SECONDS = 0.5
"""How long the last spans may take once the server ends."""

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_MISSING = "traces need the packages of OpenTelemetry: pip install 'caudal[otel]'"


class TracesError(CaudalError):
    """Spans can't be sent."""


class Traces:
    """A `RecordSink` that sends spans.

    Args:
        provider: Makes them, and sends them in a thread of its own.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace

        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer("caudal", __version__)

    def ended(self, record: RequestRecord) -> None:
        """See `RecordSink`."""
        if is_probe(record):
            return
        trace = self._api
        span = self._tracer.start_span(
            _name(record),
            context=self._parent(record),
            kind=trace.SpanKind.SERVER,
            attributes={name: value for name, value in attributes(record) if value is not None},
            start_time=_unix(record, record.arrived),
        )
        if span.is_recording():
            within = trace.set_span_in_context(span)
            for part, begin, end in parts(record):
                child = self._tracer.start_span(
                    part, context=within, start_time=_unix(record, begin)
                )
                child.end(_unix(record, end))
            if record.outcome in ("failed", "timeout"):
                span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end(_unix(record, record.arrived + record.seconds))

    def _parent(self, record: RequestRecord) -> Context | None:
        parent, trace = record.traceparent, self._api
        if parent is None:
            return None
        context = trace.SpanContext(
            trace_id=int(parent.trace_id, 16),
            span_id=int(parent.parent_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(parent.flags),
            trace_state=trace.TraceState.from_header([parent.state] if parent.state else []),
        )
        within: Context = trace.set_span_in_context(trace.NonRecordingSpan(context))
        return within

    def close(self) -> None:
        """Send what waits, as far as that takes no time."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def traces_to(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> Traces | None:
    """What sends spans, where anybody wants them.

    Args:
        endpoint: A collector's address; None: as the environment says (`OTEL_…`), if it does.
        environment: It; what it says besides, such as headers and the share of requests that are
            traced, OpenTelemetry's packages read themselves.

    Raises:
        TracesError: They aren't installed, or the address is none.
    """
    if endpoint is None and not any(environment.get(name) for name in _VARIABLES):
        return None
    if endpoint is None and environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    url = None if endpoint is None else _traces_url(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        if endpoint is not None:
            raise TracesError(_MISSING) from error
        logger.warning("%s is set, but %s", " or ".join(_VARIABLES), _MISSING)
        return None
    given = {"service.name": "caudal", "service.version": __version__}
    if environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        del given["service.name"]
    provider = TracerProvider(resource=Resource.create(given))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return Traces(provider)


def attributes(record: RequestRecord) -> Iterator[tuple[str, Any]]:
    """What a request's span says of it; None for what isn't known."""
    yield "http.request.method", record.method
    yield "http.route", record.route or None
    yield "http.response.status_code", record.status
    yield "client.address", record.client
    yield "caudal.request_id", record.id
    yield "caudal.tenant", record.tenant
    yield "caudal.outcome", record.outcome
    yield "caudal.limit", record.limit
    if record.outcome in ("failed", "timeout", "rejected"):
        yield "error.type", record.error or str(record.status)
    if record.operation is None:
        return
    yield "gen_ai.operation.name", record.operation
    yield "gen_ai.provider.name", PROVIDER
    yield "gen_ai.request.model", record.asked_model or record.model
    yield "gen_ai.response.model", record.model
    yield "gen_ai.request.stream", record.stream or None
    params = record.params
    if params is not None:
        yield "gen_ai.request.max_tokens", params.max_tokens
        yield "gen_ai.request.temperature", params.temperature
        yield "gen_ai.request.top_p", params.top_p
        yield "gen_ai.request.seed", params.seed
        yield "gen_ai.request.choice.count", params.n if params.n != 1 else None
    yield "gen_ai.usage.input_tokens", record.prompt_tokens
    if record.operation == "embeddings":
        return
    yield "gen_ai.usage.output_tokens", record.output_tokens
    yield "gen_ai.usage.cache_read.input_tokens", record.cached_tokens
    yield "gen_ai.usage.reasoning.output_tokens", record.reasoning_tokens or None
    yield "gen_ai.response.finish_reasons", record.finish_reasons or None
    if record.stream:
        yield "gen_ai.response.time_to_first_chunk", record.first_token


def parts(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """What a request's time went to, in order: the name, and when it began and ended, on the
    monotonic clock. What was begun and not completed ended with the request.
    """
    times = record.times
    if times is None:
        return
    last = record.arrived + record.seconds
    begins = (times.begun, times.submitted, times.scheduled, times.first_token)
    ends = (*begins[1:], times.last_token)
    for name, begin, end in zip(
        ("template", "queue", "prefill", "decode"), begins, ends, strict=True
    ):
        if begin is None or (name == "decode" and not record.output_tokens):
            return
        begin = min(max(begin, record.arrived), last)
        yield name, begin, last if end is None else min(max(end, begin), last)


def _name(record: RequestRecord) -> str:
    if record.operation is not None:
        return f"{record.operation} {record.model}"
    return f"{record.method} {record.route}" if record.route else record.method


def _unix(record: RequestRecord, moment: float) -> int:
    """Nanoseconds of Unix time of a moment on the monotonic clock."""
    return int((record.arrived_at + (moment - record.arrived)) * 1e9)


def _traces_url(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        fits = False
    if not fits:
        raise TracesError(f"{endpoint!r} is no collector's address: http://HOST:4318")
    path = parts.path.rstrip("/")
    return endpoint if path.endswith(TRACES_PATH) else f"{endpoint.rstrip('/')}{TRACES_PATH}"
