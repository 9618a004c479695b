"""Requests that take too long are given up, wherever they are, and told so."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

import pytest

from caudal.engine.async_engine import RequestStream
from caudal.engine.request import Request
from caudal.grammars.requests import RequestGrammars
from caudal.server.body import BodyReader
from support.fake_model import RoleTemplate, ScriptedExecutor
from support.running_server import RunningServer, Serve

MESSAGES = [{"role": "user", "content": "Hi"}]
ROUTES = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 400},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 400},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 400},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 400},
    "/completion": {"prompt": "Hi", "n_predict": 400},
}
TIMEOUTS = 'caudal_requests_finished_total{reason="timeout"}'


def slow(seconds: float = 0.01) -> ScriptedExecutor:
    return ScriptedExecutor(script=b"x" * 450, fail=lambda _: time.sleep(seconds))


def assert_told(path: str, body: dict[str, Any], words: str) -> None:
    error = body["error"]
    if path == "/v1/messages":
        assert body["type"] == "error"
        assert error["type"] == "timeout_error"
    else:
        assert (error["type"], error["code"]) == ("server_error", "timeout")
    assert words in error["message"]


def assert_all_is_free(server: RunningServer, timeouts: int) -> None:
    server.wait_for_metric("caudal_requests_running", 0)
    server.wait_for_metric("caudal_requests_waiting", 0)
    assert server.metric('caudal_kv_blocks{state="used"}') == 0
    assert server.metric(TIMEOUTS) == timeouts


@pytest.mark.parametrize("path", ROUTES)
def test_an_answer_that_takes_too_long(
    serve: Serve, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO, logger="caudal.server")
    server = serve(slow())
    response = server.http.post(path, json=ROUTES[path] | {"timeout": 0.08})
    assert response.status_code == 504
    assert response.headers["x-caudal-limit"] == "timeout"
    assert int(response.headers["retry-after"]) >= 1
    assert_told(path, response.json(), "timed out: the answer was not complete after ")
    assert_all_is_free(server, timeouts=1)
    assert server.metric("caudal_generation_tokens_total") < 100
    assert "timeout: prompt" in caplog.text


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_that_takes_too_long_ends_with_an_error(
    serve: Serve, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    server = serve(slow())
    body = ROUTES[path] | {"timeout": 0.4, "stream": True}
    response = server.http.post(path, json=body)
    assert response.status_code == 200
    events = [
        json.loads(line.removeprefix("data: "))
        for line in response.text.splitlines()
        if line.startswith("data: {")
    ]
    assert len(events) > 1, "it had begun"
    last = events[-1]
    if path == "/v1/responses":
        assert last["type"] == "response.failed"
        assert "timed out: the answer was not complete" in last["response"]["error"]["message"]
    else:
        assert_told(path, last, "timed out: the answer was not complete after ")
    assert_all_is_free(server, timeouts=1)
    assert "Traceback" not in caplog.text, "it is no fault of the server's"


@pytest.mark.parametrize("own", [True, False])
def test_an_answer_that_has_not_begun_in_time(serve: Serve, own: bool) -> None:
    limit = {"first_token_timeout": 0.06}
    server = serve(slow(), max_num_seqs=1, **({} if own else limit))
    path = "/v1/chat/completions"
    running = ROUTES[path] | {"stream": True, "first_token_timeout": 10}
    with server.http.stream("POST", path, json=running) as stream:
        lines = filter(None, stream.iter_lines())
        next(lines)
        time.sleep(0.08)  # it has begun, so that it may go on
        response = server.http.post(path, json=ROUTES[path] | (limit if own else {}))
        assert response.status_code == 504
        assert_told(path, response.json(), "timed out: no token after 0.")
        waiting = server.http.post(
            path, json=ROUTES[path] | {"stream": True} | (limit if own else {})
        )
        assert "no token after 0." in waiting.text
        assert next(lines).startswith("data: {")
    server.wait_for_metric('caudal_requests_finished_total{reason="cancelled"}', 1)
    assert_all_is_free(server, timeouts=2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("what", ["template", "tokens", "grammar"])
def test_time_before_the_engine_counts(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    stream: bool,
) -> None:
    caplog.set_level(logging.INFO, logger="caudal.server")
    server = serve(ScriptedExecutor(script=b"ok"))
    path = "/v1/chat/completions"
    body: dict[str, Any] = ROUTES[path]
    if what == "template":
        monkeypatch.setattr(RoleTemplate, "encode", lambda *_, **__: time.sleep(0.15))
    elif what == "tokens":
        path, body = "/v1/completions", {"prompt": "x" * 5000}  # so long that a thread does it
        monkeypatch.setattr(
            server.model.parts.tokenizer, "encode", lambda *_, **__: time.sleep(0.15)
        )
    else:

        async def compile_slowly(*_: object) -> None:
            await asyncio.sleep(60)

        monkeypatch.setattr(RequestGrammars, "compile", compile_slowly)
        body = body | {"structured_outputs": {"regex": "ok"}}
    began = time.monotonic()
    limit = "first_token_timeout" if stream else "timeout"
    response = server.http.post(path, json=body | {"stream": stream, limit: 0.05})
    assert time.monotonic() - began < 5
    assert response.status_code == 504, "nothing has been sent, so that a stream can be refused too"
    assert_told(path, response.json(), "timed out: it was still being prepared after 0.1 s")
    assert_all_is_free(server, timeouts=1)
    assert server.metric("caudal_prompt_tokens_total") == 0
    assert "timeout: still being prepared" in caplog.text


POOLING = {
    "/v1/embeddings": {"input": ["a", "b", "c"]},
    "/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
}


@pytest.mark.parametrize("path", POOLING)
@pytest.mark.parametrize("where", ["queue", "tokens", "default"])
def test_embeddings_that_take_too_long(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, where: str
) -> None:
    options = {"request_timeout": 0.05} if where == "default" else {}
    limit = {} if where == "default" else {"timeout": 0.05}
    server = serve(slow(0.03), max_num_seqs=1, **options)
    if where == "tokens":
        monkeypatch.setattr(
            server.model.parts.tokenizer, "encode", lambda *_, **__: time.sleep(0.15)
        )
    response = server.http.post(path, json=POOLING[path] | limit)
    assert response.status_code == 504
    assert_told(path, response.json(), "timed out: ")
    assert_all_is_free(server, timeouts=1)
    if where == "default":
        longer = server.http.post(path, json=POOLING[path] | {"timeout": 10})
        assert longer.status_code == 200, "a request's own is what counts"


def test_the_servers_limit_is_for_those_that_set_none(serve: Serve) -> None:
    server = serve(slow(), request_timeout=0.08)
    path = "/v1/completions"
    assert server.http.post(path, json=ROUTES[path]).status_code == 504
    longer = server.http.post(path, json=ROUTES[path] | {"max_tokens": 20, "timeout": 10})
    assert longer.json()["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("value", ["0", "-1", '"5"', "true", "NaN", "Infinity", "1e400", "[1]"])
@pytest.mark.parametrize("path", [*ROUTES, *POOLING])
def test_what_is_no_time_is_refused_by_name(hello: RunningServer, path: str, value: str) -> None:
    fields = ["timeout"] if path in POOLING else ["timeout", "first_token_timeout"]
    for field in fields:
        body = json.dumps((ROUTES | POOLING)[path])[:-1] + f', "{field}": {value}}}'
        headers = {"content-type": "application/json"}
        response = hello.http.post(path, content=body, headers=headers)
        assert response.status_code == 400, response.text
        assert field in response.json()["error"]["message"]


def test_the_engine_counts_from_when_the_request_arrived(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(ScriptedExecutor(script=b"ok"))
    engine = server.model.parts.engine
    submit, read = engine.submit, BodyReader._read
    submitted: list[Request] = []
    read_at: list[float] = []

    async def note(request: Request) -> RequestStream:
        submitted.append(request)
        return await submit(request)

    def note_read(*args: Any) -> Any:
        read_at.append(time.monotonic())
        return read(*args)

    monkeypatch.setattr(engine, "submit", note)
    monkeypatch.setattr(BodyReader, "_read", note_read)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": MESSAGES},
        "/v1/completions": {"prompt": "Hi"},
        "/v1/embeddings": {"input": "Hi"},
        "/v1/score": {"text_1": "a", "text_2": "a"},
    }
    for path, body in bodies.items():
        submitted.clear()
        read_at.clear()
        before = time.monotonic()
        assert server.http.post(path, json=body | {"timeout": 20}).status_code == 200
        [request], [began] = submitted, read_at
        assert request.timeout == 20
        assert request.arrived is not None
        assert before <= request.arrived <= began, "all that is done with it counts"
