"""What is known of a request when it has ended: one record each, whatever became of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from caudal.server.limits import ServerLimits
from caudal.server.records import RequestRecord
from support.fake_model import ScriptedExecutor
from support.gate import Gate
from support.raw_client import connect, post
from support.record_list import RecordList
from support.running_server import RunningServer, Serve

MESSAGES = [{"role": "user", "content": "Hi"}]
PROMPT = len("user:Hi\nassistant:")
ANSWER = b"Hello!"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "n": 2},
    "/v1/completions": {"prompt": ["user:Hi\nassistant:", "x"]},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 100},
    "/api/chat": {"model": "fake", "messages": MESSAGES},
    "/completion": {"prompt": "user:Hi\nassistant:"},
}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def records() -> RecordList:
    return RecordList()


@pytest.fixture
def server(serve: Serve, records: RecordList) -> RunningServer:
    return serve(ScriptedExecutor(script=ANSWER), sinks=[records])


def assert_in_order(record: RequestRecord) -> None:
    times, timings = record.times, record.timings
    assert times is not None
    assert times.scheduled is not None
    assert times.first_token is not None
    assert times.last_token is not None
    end = record.arrived + record.seconds
    in_order = [
        record.arrived,
        times.begun,
        times.submitted,
        times.scheduled,
        times.first_token,
        times.last_token,
        end,
    ]
    assert in_order == sorted(in_order)
    spans = (timings.template, timings.queue, timings.prefill, timings.decode)
    assert all(span is not None for span in spans)
    assert record.first_token == times.first_token - record.arrived


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_answer_took(server: RunningServer, records: RecordList, stream: bool) -> None:
    for path, body in ROUTES.items():
        answer = server.http.post(
            path,
            json=body | {"stream": stream},
            headers={"X-Request-Id": "mine", "traceparent": f"00-{TRACE}-{PARENT}-01"},
        )
        assert answer.status_code == 200
        record = records.only()
        assert (record.id, record.method, record.route) == ("mine", "POST", path)
        assert record.traceparent is not None
        assert (record.traceparent.trace_id, record.traceparent.parent_id) == (TRACE, PARENT)
        assert (record.status, record.outcome, record.model) == (200, "stop", "fake")
        assert (record.stream, record.client, record.error) == (stream, "127.0.0.1", None)
        n = body.get("n", 1)
        prompts = [PROMPT, 1] if path == "/v1/completions" else [PROMPT]
        sequences = n * len(prompts)
        assert record.prompt_tokens == sum(prompts)
        assert record.output_tokens == sequences * (len(ANSWER) + 1)
        assert record.finish_reasons == ["stop"] * sequences
        assert_in_order(record)


def test_tokens_from_the_cache_and_an_answer_that_is_cut(
    server: RunningServer, records: RecordList
) -> None:
    for cached in (0, 39):
        body = {"prompt": "x" * 40, "max_tokens": 3}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        record = records.only()
        assert (record.outcome, record.output_tokens) == ("length", 3)
        assert (record.prompt_tokens, record.cached_tokens) == (40, cached)


def test_what_generates_nothing(server: RunningServer, records: RecordList) -> None:
    def asked(method: str, path: str, **body: Any) -> tuple[int | None, str | None, str, int]:
        server.http.request(method, path, **({"json": body} if body else {}))
        record = records.only()
        assert record.method == method
        return record.status, record.outcome, record.route, record.prompt_tokens

    assert asked("GET", "/health") == (200, "ok", "/health", 0)
    assert asked("HEAD", "/v1/models/fake") == (200, "ok", "/v1/models/{name:path}", 0)
    assert asked("GET", "/nowhere") == (404, "rejected", "", 0)
    assert asked("GET", "/v1/completions") == (405, "rejected", "/v1/completions", 0)
    assert asked("POST", "/v1/embeddings", input=["ab", "c"]) == (200, "ok", "/v1/embeddings", 3)
    assert asked("POST", "/tokenize", content="ab") == (200, "ok", "/tokenize", 0)
    assert asked("POST", "/v1/chat/completions", messages=1)[:2] == (400, "rejected")


def test_who_is_refused_has_a_record_too(serve: Serve, records: RecordList) -> None:
    limits = ServerLimits(body_bytes=100)
    server = serve(ScriptedExecutor(), sinks=[records], limits=limits, api_key="k")
    body = {"model": "other", "prompt": "x"}
    path = "/v1/completions"
    key = {"Authorization": "Bearer k"}
    refusals: list[tuple[dict[str, Any], int, str]] = [
        ({"json": body}, 401, "invalid_api_key"),
        ({"json": {"prompt": "x" * 200}, "headers": key}, 413, "invalid_request_error"),
        ({"json": body, "headers": key}, 404, "model_not_found"),
    ]
    for request, status, error in refusals:
        assert server.http.post(path, **request).status_code == status
        record = records.only()
        assert (record.status, record.error, record.outcome) == (status, error, "rejected")
        assert (record.route, record.model, record.output_tokens) == (path, None, 0)
    assert record.asked_model == "other"
    chunks = server.http.post(
        path, content=iter([b" " * 60] * 2), headers={**key, "Content-Type": "application/json"}
    )
    record = records.only()
    assert (chunks.status_code, record.error) == (413, "invalid_request_error")
    assert record.limit == chunks.headers["x-caudal-limit"] == "max_body"


def test_so_has_what_is_refused_before_it_is_a_whole_request(
    serve: Serve, records: RecordList
) -> None:
    limits = ServerLimits(header_bytes=500, body_seconds=0.2, header_seconds=0.2, min_rate=2**30)
    server = serve(ScriptedExecutor(), sinks=[records], limits=limits)

    def refused(data: bytes) -> RequestRecord:
        with connect(server.url) as sock:
            sock.sendall(data)
            sock.recv(1000)
        return records.only()

    amid = refused(post("/v1/completions", b"x" * 100)[:-50])
    assert (amid.route, amid.outcome, amid.limit) == ("/v1/completions", "rejected", "body_timeout")
    large = refused(b"GET / HTTP/1.1\r\nX: " + b"x" * 1000)
    assert (large.status, large.outcome) == (431, "rejected")
    slow = refused(b"GET / HTTP/1.1\r\nX: ")
    assert (slow.status, slow.limit, slow.client) == (408, "header_timeout", "127.0.0.1")


def slow() -> ScriptedExecutor:
    return ScriptedExecutor(script=b"x" * 450, fail=lambda _: time.sleep(0.005))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away(serve: Serve, records: RecordList, stream: bool) -> None:
    server = serve(slow(), sinks=[records])
    sock = connect(server.url)
    body = b'{"prompt": "Hi", "max_tokens": 400, "stream": %s}' % str(stream).lower().encode()
    sock.sendall(
        post(
            "/v1/chat/completions",
            body.replace(b'"prompt": "Hi"', b'"messages": [{"role": "user", "content": "Hi"}]'),
        )
    )
    server.wait_for_metric("caudal_requests_running", 1)
    time.sleep(0.2)
    sock.close()
    while (record := records.next()).route == "/metrics":
        pass
    assert record.route == "/v1/chat/completions"
    assert (record.outcome, record.prompt_tokens) == ("cancelled", PROMPT)
    assert 0 < record.output_tokens < 400
    assert record.first_token is not None


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_and_one_that_fails(
    serve: Serve, records: RecordList, stream: bool
) -> None:
    server = serve(slow(), sinks=[records])
    body = {"messages": MESSAGES, "max_tokens": 400, "stream": stream}
    server.http.post("/v1/chat/completions", json=body | {"timeout": 0.3})
    record = records.only()
    assert (record.outcome, record.status) == ("timeout", 200 if stream else 504)
    assert 0 < record.output_tokens < 400

    def fail(_: object) -> None:
        raise RuntimeError("out of luck")

    server = serve(ScriptedExecutor(script=b"x", fail=fail), sinks=[records])
    server.http.post("/v1/chat/completions", json=body)
    record = records.only()
    assert (record.outcome, record.output_tokens) == ("failed", 0)
    assert record.error in ("server_error", "RequestFailedError")


def test_what_goes_on_behind_its_response(serve: Serve, records: RecordList, gate: Gate) -> None:
    server = serve(ScriptedExecutor(script=ANSWER, fail=gate), sinks=[records])
    body = {"input": "Hi", "background": True}
    identity = server.http.post("/v1/responses", json=body).json()["id"]
    server.http.get(f"/v1/responses/{identity}")
    assert records.only().route == "/v1/responses/{identity}", "the other hasn't ended"
    gate.open()
    record = records.only()
    assert (record.route, record.outcome) == ("/v1/responses", "stop")
    assert record.output_tokens == len(ANSWER) + 1


def test_who_cannot_count_keeps_nobody_from_it(serve: Serve, records: RecordList) -> None:
    class Broken:
        def ended(self, record: RequestRecord) -> None:
            raise OSError("no space left")

    server = serve(ScriptedExecutor(), sinks=[Broken(), records])
    assert server.http.get("/health").status_code == 200
    assert records.only().outcome == "ok"
