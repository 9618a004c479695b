"""Spans of requests, as a collector gets them."""

from __future__ import annotations

import gzip
import itertools
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from caudal.server.traces import Traces, TracesError, traces_to
from support.fake_model import ScriptedExecutor
from support.running_server import Serve

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARTS = ["template", "queue", "prefill", "decode"]


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    data = gzip.decompress(data)
                outer.paths.add(self.path)
                outer.requests.append(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> dict[str, Any]:
        return values(self.requests[0].resource_spans[0].resource.attributes)


def values(attributes: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [plain(each) for each in found.values] if kind == "array_value" else found

    return {each.key: plain(each.value) for each in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def traces(collector: Collector, **environment: str) -> Traces:
    made = traces_to(collector.url, environment)
    assert made is not None
    return made


def test_a_request_is_a_span_with_its_parts(serve: Serve, collector: Collector) -> None:
    sink = traces(collector)
    server = serve(ScriptedExecutor(script=b"Hello!"), sinks=[sink])
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1,b=2"}
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5, "n": 2}
    server.http.post("/v1/chat/completions", json=body, headers=parent)
    server.http.get("/health")
    sink.close()
    assert collector.paths == {"/v1/traces"}
    assert collector.resource()["service.name"] == "caudal"
    [root] = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert root.name == "chat fake"
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert root.trace_state == "a=1,b=2"
    said = values(root.attributes)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "caudal",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": len("user:Hi\nassistant:"),
        "gen_ai.usage.output_tokens": 14,
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert {name: said.get(name) for name in expected} == expected
    assert root.status.code == Status.STATUS_CODE_UNSET
    children = [span for span in collector.spans if span.parent_span_id == root.span_id]
    assert [span.name for span in children] == PARTS
    moments = [root.start_time_unix_nano]
    for child in children:
        assert child.trace_id == root.trace_id
        moments += [child.start_time_unix_nano, child.end_time_unix_nano]
    moments.append(root.end_time_unix_nano)
    assert moments == sorted(moments)
    assert all(
        child.end_time_unix_nano == after.start_time_unix_nano
        for child, after in itertools.pairwise(children)
    )


def test_failures_refusals_and_what_asks_no_model(serve: Serve, collector: Collector) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("out of luck")

    sink = traces(collector, OTEL_SERVICE_NAME="mine")
    server = serve(ScriptedExecutor(script=b"x", fail=fail), sinks=[sink])
    server.http.post("/v1/completions", json={"prompt": "x"})
    server.http.post("/v1/completions", json={"prompt": 1})
    server.http.get("/v1/models")
    server = serve(ScriptedExecutor(), sinks=[sink])
    server.http.post("/v1/embeddings", json={"input": ["ab", "c"]})
    server.http.get("/health")
    sink.close()
    failed, refused, listed, embedded = (
        span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER
    )
    assert (failed.name, failed.status.code) == ("text_completion fake", Status.STATUS_CODE_ERROR)
    assert values(failed.attributes)["error.type"] == "server_error"
    assert refused.name == "POST /v1/completions"
    assert refused.status.code == Status.STATUS_CODE_UNSET
    assert values(refused.attributes)["error.type"] == "invalid_request_error"
    assert "gen_ai.operation.name" not in values(listed.attributes)
    assert listed.name == "GET /v1/models"
    assert embedded.name == "embeddings fake"
    assert values(embedded.attributes)["gen_ai.usage.input_tokens"] == 3
    children = [span.name for span in collector.spans if span.parent_span_id == embedded.span_id]
    assert children == ["template", "queue", "prefill"]


def test_who_samples_decides(serve: Serve, collector: Collector) -> None:
    sink = traces(collector)
    server = serve(ScriptedExecutor(script=b"x"), sinks=[sink])
    for flags in ("00", "01"):
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
        server.http.post("/v1/completions", json={"prompt": flags}, headers=parent)
    for nonsense in ("", "00-0", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"):
        headers = {"traceparent": nonsense}
        server.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    server.http.get("/health")
    sink.close()
    roots = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert len(roots) == 5
    assert [span.trace_id.hex() for span in roots].count(TRACE) == 1


def test_where_nobody_wants_them_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces_to(None, {}) is None
    assert (
        traces_to(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"})
        is None
    )
    with pytest.raises(TracesError, match="no collector's address"):
        traces_to("localhost:4318", {})
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracesError, match=r"pip install 'caudal\[otel\]'"):
        traces_to("http://127.0.0.1:4318", {})
    assert traces_to(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) is None
