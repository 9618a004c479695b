"""What the server counts of requests, tenants and refusals, and that nobody can make it grow."""

from __future__ import annotations

from typing import Any

from caudal.server.bounded_label import MAX_VALUES
from caudal.server.limits import ServerLimits
from caudal.server.records import RequestRecord
from caudal.server.server_metrics import ServerMetrics
from support.fake_model import ScriptedExecutor
from support.running_server import Serve


def ended(**known: Any) -> RequestRecord:
    facts = {
        "id": "req_1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "tenant": "team",
        "model": "fake",
        "outcome": "stop",
        "seconds": 0.3,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
    }
    return RequestRecord(**facts | known)


def value(metrics: ServerMetrics, name: str, **labels: Any) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_requests_are_counted_by_route_and_by_tenant():
    metrics = ServerMetrics()
    metrics.ended(ended())
    metrics.ended(ended(status=429, outcome="rejected", limit="tokens_per_minute"))
    metrics.ended(ended(method="GET", route="/health", tenant=None, model=None, outcome="ok"))
    route = {"route": "/v1/chat/completions", "method": "POST"}
    assert value(metrics, "caudal_http_requests_total", **route, status="200") == 1
    assert value(metrics, "caudal_http_requests_total", **route, status="429") == 1
    assert value(metrics, "caudal_rejected_requests_total", limit="tokens_per_minute") == 1
    who = {"tenant": "team", "model": "fake"}
    assert value(metrics, "caudal_tenant_requests_total", **who, outcome="stop") == 1
    assert value(metrics, "caudal_tenant_prompt_tokens_total", **who) == 20
    assert value(metrics, "caudal_tenant_cached_tokens_total", **who) == 8
    assert value(metrics, "caudal_tenant_output_tokens_total", **who) == 10
    seconds = "caudal_http_request_duration_seconds"
    assert value(metrics, f"{seconds}_count", route="/v1/chat/completions") == 2
    assert value(metrics, f"{seconds}_bucket", route="/health", le="0.5") == 1


def test_what_clients_make_up_adds_no_series():
    metrics = ServerMetrics(lambda name: name == "fake")
    for number in range(3 * MAX_VALUES):
        metrics.ended(
            ended(
                method=f"M{number}",
                route="",
                tenant=f"t{number}",
                model=f"m{number}",
                limit=f"l{number}",
            )
        )
    metrics.ended(ended(tenant="t0"))
    families = {family.name: family.samples for family in metrics.registry.collect()}
    [counted] = [each for each in families["caudal_http_requests"] if each.value == 3 * MAX_VALUES]
    assert counted.labels == {"route": "other", "method": "other", "status": "200"}
    models = {each.labels["model"] for each in families["caudal_tenant_requests"]}
    assert models == {"other", "fake"}
    for name, label in (("tenant_prompt_tokens", "tenant"), ("rejected_requests", "limit")):
        values = {each.labels[label] for each in families[f"caudal_{name}"]}
        assert len(values) == MAX_VALUES + 1


def test_what_is_refused_before_it_is_a_request_is_counted_by_its_limit(serve: Serve):
    server = serve(ScriptedExecutor(script=b"ok"), limits=ServerLimits(header_bytes=2000))
    refused = server.http.get("/health", headers={"x-long": "x" * 3000})
    assert refused.status_code == 431
    limit = refused.headers["x-caudal-limit"]
    assert server.metric(f'caudal_rejected_requests_total{{limit="{limit}"}}') == 1
