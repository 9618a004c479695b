"""Connections whose clients say nothing, too much or half of it, read nothing, or are old."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from caudal.server.limits import ServerLimits
from caudal.server.protocol import fill
from support.fake_model import ScriptedExecutor, serve_fake
from support.raw_client import GET_HEALTH, connect, exchange, parse_response, post, read_all
from support.running_server import RunningServer, running_server

LIMITS = ServerLimits(
    max_connections=8,
    keep_alive_seconds=0.4,
    header_seconds=0.4,
    header_bytes=4096,
    header_count=20,
    url_bytes=1000,
    pipelined_requests=4,
    body_seconds=0.4,
    body_bytes=2**20,
    unread_seconds=0.5,
    min_rate=2**20,
    linger_seconds=0.4,
)

COMPLETION = {"model": "fake", "prompt": "x"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server with short patience whose model always says `Hello!`."""
    model = serve_fake(ScriptedExecutor(script=b"Hello!"))
    with running_server(model, limits=LIMITS) as server:
        yield server


@contextlib.contextmanager
def slow_server(script: bytes, limits: ServerLimits = LIMITS) -> Iterator[RunningServer]:
    """A server that takes a hundredth of a second for each token."""
    executor = ScriptedExecutor(script=script, fail=lambda _: time.sleep(0.01))
    with running_server(serve_fake(executor), limits=limits) as server:
        yield server


def completion(**fields: object) -> bytes:
    return json.dumps(COMPLETION | fields).encode()


def error_of(data: bytes, status: int) -> str:
    """The message of an error in OpenAI's envelope, after which the server has closed."""
    response = parse_response(data)
    assert response.status_code == status, data
    assert response.headers["connection"] == "close"
    assert re.fullmatch(r"req_[0-9a-f]{24}", response.headers["x-request-id"])
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


# Clients that say nothing, or half of it


def test_a_silent_connection_is_closed(server: RunningServer):
    assert exchange(server.url) == b""
    assert exchange(server.url, b"\r\n\r\n") == b""


def test_an_idle_connection_is_closed(server: RunningServer):
    answer = exchange(server.url, GET_HEALTH)
    assert parse_response(answer).json() == {"status": "ok"}


def test_half_a_header_is_408(server: RunningServer):
    for start in (b"G", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: local"):
        assert "headers did not come in time" in error_of(exchange(server.url, start), 408)


def test_a_header_that_drips_is_408(server: RunningServer):
    with connect(server.url) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        with contextlib.suppress(OSError):
            for _ in range(100):
                sock.sendall(b"y")
                time.sleep(0.02)
        assert "headers did not come in time" in error_of(read_all(sock), 408)


def test_half_a_body_is_408_in_the_routes_own_envelope(server: RunningServer):
    request = post("/v1/completions", completion())
    assert "body did not come in time" in error_of(exchange(server.url, request[:-3]), 408)
    response = parse_response(exchange(server.url, post("/v1/messages", b"{ ")[:-1]))
    assert response.status_code == 408
    assert response.json()["type"] == "error"
    assert response.json()["request_id"] == response.headers["x-request-id"]


def test_a_body_slower_than_the_least_rate_is_408():
    limits = ServerLimits(body_seconds=0.4, min_rate=1000)
    with running_server(serve_fake(ScriptedExecutor()), limits=limits) as server:
        with connect(server.url) as sock:
            sock.sendall(post("/v1/completions", completion() + b" " * 5000)[:-5000])
            began = time.monotonic()
            with contextlib.suppress(OSError):
                while time.monotonic() - began < 5:
                    sock.sendall(b"  ")  # never pauses for long, but 100 bytes/s
                    time.sleep(0.02)
            assert "body did not come in time" in error_of(read_all(sock), 408)
        with connect(server.url) as sock:
            request = post("/v1/completions", completion() + b" " * 4000, "Connection: close")
            for start in range(0, len(request), 100):  # 5,000 bytes/s, for longer than a pause
                sock.sendall(request[start : start + 100])
                time.sleep(0.02)
            assert parse_response(read_all(sock)).status_code == 200


def test_health_answers_while_all_connections_are_silent(
    server: RunningServer, caplog: pytest.LogCaptureFixture
):
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING, "caudal.server"):
        silent = [stack.enter_context(connect(server.url)) for _ in range(20)]
        half = [stack.enter_context(connect(server.url)) for _ in range(20)]
        for sock in half:
            with contextlib.suppress(OSError):
                sock.sendall(post("/v1/completions", completion())[:-1])
        answer = httpx.get(f"{server.url}/health", timeout=5)
        assert answer.status_code == 200
        assert "--max-connections" in caplog.text
        assert len(caplog.records) == 1, "it is said once, not for each"
        assert read_all(silent[0]) == b""


def test_where_every_connection_is_at_work_one_more_is_503():
    gate = threading.Event()
    model = serve_fake(ScriptedExecutor(script=b"ok", gate=gate))
    with running_server(model, limits=LIMITS) as server, contextlib.ExitStack() as stack:
        working = [stack.enter_context(connect(server.url)) for _ in range(LIMITS.max_connections)]
        for sock in working:
            sock.sendall(post("/v1/completions", completion(), "Connection: close"))
        time.sleep(0.3)
        for _ in range(3):
            message = error_of(exchange(server.url, GET_HEALTH), 503)
            assert "too many connections" in message
        gate.set()
        for sock in working:
            assert parse_response(read_all(sock)).status_code == 200


# Clients that say too much


@pytest.mark.parametrize(
    ("start", "status", "words"),
    [
        (b"GET /" + b"x" * 1100 + b" HTTP/1.1\r\n", 414, "limit of 1000 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 22, 431, "limit of 20"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 5000 + b"\r\n", 431, "limit of 4096 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"y" * 5000 + b": x\r\n", 431, "limit of 4096 bytes"),
    ],
)
def test_a_request_head_has_bounds(server: RunningServer, start: bytes, status: int, words: str):
    assert words in error_of(exchange(server.url, start), status)
    assert words in error_of(exchange(server.url, start[:10], start[10:]), status)


def test_a_header_without_an_end_is_not_kept(server: RunningServer):
    with connect(server.url) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nX: ")
        sent = 0
        with contextlib.suppress(OSError):
            for _ in range(3000):
                sock.sendall(b"y" * 2**15)
                sent += 2**15
        assert sent < 20 * 2**20


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"1\r\n \r\n" * 5000, "chunks are too small"),
        (b"1;" + b"x" * 300_000 + b"\r\n \r\n", "headers are larger"),
        (b"1\r\n \r\n0\r\nX: " + b"y" * 300_000, "headers are larger"),
        (b"1\r\n \r\n0\r\n" + b"X: y\r\n" * 5000, "headers are larger"),
        (b"zz\r\n", "not HTTP/1.1"),
    ],
)
def test_what_goes_with_chunks_has_bounds(server: RunningServer, body: bytes, words: str):
    head = post("/v1/completions", b"", "Transfer-Encoding: chunked")
    with connect(server.url) as sock:
        with contextlib.suppress(OSError):
            for start in range(0, len(body), 10_000):
                sock.sendall((head if start == 0 else b"") + body[start : start + 10_000])
                time.sleep(0.002)
        message = error_of(read_all(sock), 431 if "larger" in words else 400)
        assert words in message


def test_trailers_are_no_headers(server: RunningServer):
    body = completion()
    chunks = b"%x\r\n%b\r\n0\r\nx-request-id: from-a-trailer\r\n\r\n" % (len(body), body)
    head = post("/v1/completions", b"", "Transfer-Encoding: chunked", "Connection: close")
    response = parse_response(exchange(server.url, head + chunks))
    assert response.status_code == 200
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "not HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not HTTP/1.1"),
        (b"GET /\r\n\r\n", 505, "HTTP/1.1"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "one Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "one Host"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 400, "no proxy"),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not "),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
            "not",
        ),
    ],
)
def test_what_is_no_request_is_said(
    server: RunningServer, request_bytes: bytes, status: int, words: str
):
    assert words in error_of(exchange(server.url, request_bytes), status)


def test_a_body_that_nobody_reads_ends_the_connection():
    model = serve_fake(ScriptedExecutor())
    with running_server(model, api_key="sesame", limits=LIMITS) as server:
        head = post("/v1/completions", b" " * 900_000)[:-900_000]
        with connect(server.url) as sock:
            sock.sendall(head)
            answer = sock.recv(65536)
            assert parse_response(answer).status_code == 401
            assert parse_response(answer).headers["connection"] == "close"
            with contextlib.suppress(OSError):
                for _ in range(200):
                    sock.sendall(b" " * 100)
                    time.sleep(0.01)
                pytest.fail("the server still takes it")


# Requests sent ahead


def test_pipelined_requests_are_answered_in_order(server: RunningServer):
    last = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = exchange(server.url, GET_HEALTH * 3 + last)
    assert answers.count(b'{"status":"ok"}') == 3
    assert answers.index(b'"list"') > answers.rindex(b'"ok"')


def test_too_many_pipelined_requests_are_not_kept(server: RunningServer):
    answers = exchange(server.url, GET_HEALTH * 3000)
    assert 1 <= answers.count(b'{"status":"ok"}') <= 1 + LIMITS.pipelined_requests


def test_answers_that_nobody_reads_are_not_piled_up(server: RunningServer):
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(server.url, receive_buffer=4096) as sock:
        sock.settimeout(3)
        with pytest.raises(OSError):
            for _ in range(1000):
                sock.sendall(ask * 1000)


# Clients that read slowly, or no more


def test_a_stream_that_nobody_reads_is_cancelled():
    with slow_server(b"x" * 500) as server:
        # 500 tokens with their log-probabilities are more than a kernel keeps for this client.
        body = completion(stream=True, max_tokens=400, ignore_eos=True, logprobs=20, n=8)
        with connect(server.url, receive_buffer=2048) as sock:
            sock.sendall(post("/v1/completions", body))
            server.wait_for_metric('caudal_requests_finished_total{reason="cancelled"}', 1)
            assert server.metric("caudal_generation_tokens_total") < 8 * 400
            assert server.metric('caudal_rejected_requests_total{limit="unread_timeout"}') == 1


def test_a_slow_reader_gets_all_of_it():
    limits = ServerLimits(unread_seconds=1, min_rate=2**14)
    with running_server(serve_fake(ScriptedExecutor(script=b"x" * 300)), limits=limits) as server:
        body = completion(stream=True, max_tokens=300, logprobs=20, n=8)
        with connect(server.url, receive_buffer=2048) as sock:
            sock.sendall(post("/v1/completions", body, "Connection: close"))
            received = b""
            began = time.monotonic()
            while data := sock.recv(65536):
                received += data
                if time.monotonic() - began < 2:
                    time.sleep(0.01)
        assert b"data: [DONE]" in received


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_half_closed_client_gets_its_answer(stream: bool, version: str):
    with slow_server(b"Hello, world! " * 3) as server, connect(server.url) as sock:
        body = completion(stream=stream, max_tokens=100)
        sock.sendall(post("/v1/completions", body, version=version))
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
        while answer.startswith(b"HTTP/1.1 100 "):
            assert version == "1.1"
            answer = answer.partition(b"\r\n\r\n")[2]
        assert parse_response(answer).status_code == 200
        assert (b"data: [DONE]" if stream else b"Hello, world! Hello") in answer


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_has_gone_is_told_from_one_that_is_half_closed(stream: bool):
    with slow_server(b"x" * 500) as server:
        sock = connect(server.url)
        body = completion(stream=stream, max_tokens=400, ignore_eos=True)
        sock.sendall(post("/v1/completions", body))
        sock.close()
        server.wait_for_metric('caudal_requests_finished_total{reason="cancelled"}', 1)
        assert server.metric("caudal_generation_tokens_total") < 200


def test_an_answer_may_end_between_the_decision_to_probe_and_the_probe():
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    cycle = cast(RequestResponseCycle, SimpleNamespace(response_complete=False, send=send))
    asyncio.run(fill(cycle, b": ping\n\n"))
    cycle.response_complete = True
    asyncio.run(fill(cycle, b": ping\n\n"))
    assert [message["body"] for message in sent] == [b": ping\n\n"]


def test_a_client_that_goes_ends_what_it_sent_ahead_of_too():
    with slow_server(b"x" * 500) as server:
        body = completion(stream=True, max_tokens=400, ignore_eos=True)
        with connect(server.url) as sock:
            sock.sendall(post("/v1/completions", body) * 2)
            sock.recv(1000)
        server.wait_for_metric("caudal_requests_running", 0)
        assert server.metric("caudal_generation_tokens_total") < 300


# Old clients, and clients that offer more


def test_http_1_0_gets_no_chunks(server: RunningServer):
    body = completion(stream=True)
    answer = exchange(server.url, post("/v1/completions", body, version="1.0"))
    response = parse_response(answer)
    assert response.headers["connection"] == "close"
    assert "transfer-encoding" not in response.headers
    assert response.text.startswith("data: {")
    assert response.text.endswith("data: [DONE]\n\n")
    whole = parse_response(
        exchange(server.url, post("/v1/completions", completion(), version="1.0"))
    )
    assert whole.json()["choices"][0]["text"] == "Hello!"
    head = exchange(server.url, b"HEAD /health HTTP/1.0\r\n\r\n")
    assert parse_response(head).content == b""
    assert parse_response(head).headers["content-length"] == "15"


def test_an_offer_to_upgrade_is_overlooked(server: RunningServer):
    # What Java's client sends with its first request.
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAI")
    request = post("/v1/completions", completion(), *offer)
    for pieces in ([request], [request[:-20], request[-20:]]):
        answers = exchange(server.url, *pieces, GET_HEALTH)
        assert parse_response(answers).status_code == 200
        assert b"Hello!" in answers
        assert b'{"status":"ok"}' in answers


def test_a_body_may_wait_for_leave(server: RunningServer):
    request = post("/v1/completions", completion(), "Expect: 100-continue", "Connection: close")
    head, body = request[: -len(completion())], completion()
    with connect(server.url) as sock:
        sock.sendall(head)
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert parse_response(read_all(sock)).status_code == 200


def test_a_broken_request_behind_a_good_one_lets_it_finish():
    with slow_server(b"Hello, world!") as server:
        body = completion(stream=True)
        answer = exchange(server.url, post("/v1/completions", body) + b"\x00garbage\r\n\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"data: [DONE]" in answer
