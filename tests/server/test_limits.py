"""What is said of limits: by each API in its own words, always with the limit's name."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from caudal.configuration.server_settings import LimitsTable
from caudal.errors import CaudalError, LimitError, QueueFullError, RequestTimeoutError
from caudal.server.errors import caudal_error_response
from caudal.server.limits import ServerLimits
from caudal.server.proxies import TrustedProxies, checked_proxy
from caudal.server.server_config import ServerConfig
from caudal.service.context import RequestContext
from caudal.tenants.rules import KeyRules, Tenant
from support.fake_model import ScriptedExecutor, serve_fake
from support.raw_client import GET_HEALTH, connect, exchange, parse_response
from support.running_server import RunningServer, running_server

ROOT = Path(__file__).parents[2]
CLOSE = b"\r\nConnection: close\r\n\r\n"

RATE = LimitError("requests_per_minute", "Too many requests.", retry_after=7)
OVERLOADED = LimitError("max_bodies", "Too much at once.", status=503, retry_after=1)
LATE = RequestTimeoutError("Too late.", "first_token_timeout", 3)
FULL = QueueFullError(3, 2)
OPENAI = {
    RATE: (429, "rate_limit_error", "rate_limit_exceeded"),
    FULL: (429, "rate_limit_error", "queue_full"),
    OVERLOADED: (503, "server_error", "max_bodies"),
    LATE: (504, "server_error", "timeout"),
}
ANTHROPIC = {
    RATE: (429, "rate_limit_error"),
    FULL: (429, "rate_limit_error"),
    OVERLOADED: (529, "overloaded_error"),
    LATE: (504, "timeout_error"),
}
OLLAMA = {RATE: 429, FULL: 503, OVERLOADED: 503, LATE: 504}


def told(path: str, error: CaudalError) -> tuple[int, Any, dict[str, str]]:
    response = caudal_error_response({"type": "http", "path": path, "headers": []}, error)
    headers = {name: response.headers[name] for name in ("retry-after", "x-caudal-limit")}
    return response.status_code, json.loads(response.body), headers


@pytest.mark.parametrize("error", OPENAI, ids=lambda error: error.limit)
def test_a_limit_is_named_with_a_time_to_retry(error: LimitError) -> None:
    said = {"retry-after": str(error.retry_after), "x-caudal-limit": error.limit}
    for path in ("/v1/chat/completions", "/v1/embeddings", "/completion"):
        status, body, headers = told(path, error)
        assert (status, body["error"]["type"], body["error"]["code"]) == OPENAI[error]
        assert headers == said
    status, body, headers = told("/v1/messages", error)
    assert (status, body["error"]["type"]) == ANTHROPIC[error]
    assert headers == said
    status, body, headers = told("/api/chat", error)
    assert status == OLLAMA[error]
    assert body["error"]
    assert headers == said


ANSWER = ScriptedExecutor(script=b"x" * 400)
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
LONG_CHAT = {"messages": [{"role": "user", "content": "x" * 40}]}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    limits = ServerLimits(
        max_prompt_tokens=30, max_n=3, max_output_tokens=7, connections_per_address=3
    )
    with running_server(serve_fake(ANSWER), limits=limits) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", LONG_CHAT, "messages"),
        ("/v1/completions", {"prompt": "x" * 31}, "prompt"),
        ("/v1/completions", {"prompt": ["x" * 16, "y" * 15]}, "prompt"),
        ("/v1/responses", {"input": "x" * 40}, "input"),
        ("/v1/embeddings", {"input": ["x" * 16, "y" * 15]}, "input"),
    ],
)
def test_prompts_that_are_too_long_together(
    server: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    refused = server.http.post(path, json=body)
    assert refused.status_code == 400
    assert refused.headers["x-caudal-limit"] == "max_prompt_tokens"
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "maximum context length" in error["message"]


def test_a_prompt_that_is_too_long_in_anthropics_words(server: RunningServer) -> None:
    refused = server.http.post("/v1/messages", json=LONG_CHAT | {"max_tokens": 5})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("prompt is too long: ")
    assert "> 30 maximum" in refused.json()["error"]["message"]


def test_what_the_model_has_no_room_for_is_said_by_the_same_names() -> None:
    with running_server(serve_fake(ScriptedExecutor())) as unlimited:
        for limit, body in (
            ("max_prompt_tokens", {"prompt": "x" * 5000}),
            ("max_n", {"prompt": "x", "n": 100}),
        ):
            refused = unlimited.http.post("/v1/completions", json=body)
            assert (refused.status_code, refused.headers["x-caudal-limit"]) == (400, limit)


def test_too_many_answers_and_tokens(server: RunningServer) -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT | {"n": 4}),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    ):
        refused = server.http.post(path, json=body)
        assert (refused.status_code, refused.headers["x-caudal-limit"]) == (400, "max_n")
        assert refused.json()["error"]["param"] == "n"
    for asked in ({}, {"max_tokens": 100}):
        choice = server.http.post("/v1/completions", json={"prompt": "a"} | asked).json()
        assert choice["choices"][0]["text"] == "x" * 7
        assert choice["choices"][0]["finish_reason"] == "length"
    short = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).json()
    assert short["choices"][0]["text"] == "xx"


def test_what_a_key_may_holds_beside_what_all_may() -> None:
    tenant = Tenant("key", "key", KeyRules(max_n=5, max_output_tokens=4))
    limits = ServerLimits(max_n=3, max_output_tokens=7, max_prompt_tokens=9)
    context = limits.applied(tenant.applied(RequestContext()))
    assert (context.max_n, context.max_output_tokens, context.max_prompt_tokens) == (3, 4, 9)


def test_connections_from_one_address(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):  # the client of other tests may have one already
            stack.enter_context(connect(server.url))
        time.sleep(0.1)
        refused = parse_response(exchange(server.url))
        assert refused.status_code == 429
        assert refused.headers["x-caudal-limit"] == "max_connections_per_address"
        assert refused.headers["retry-after"] == "1"
    deadline = time.monotonic() + 10
    while b"200 OK" not in exchange(server.url, GET_HEALTH.replace(b"\r\n\r\n", CLOSE)):
        assert time.monotonic() < deadline


def test_trusted_proxies_are_not_one_client() -> None:
    proxies = TrustedProxies([checked_proxy("10.0.0.0/8")])
    config = ServerConfig(Starlette(), ServerLimits(), proxies=proxies)
    addresses = config.addresses
    assert not any(addresses.enter("192.0.2.9") for _ in range(5))
    config.change_limits(ServerLimits(connections_per_address=1))  # while the server runs
    assert addresses.enter("192.0.2.9")
    assert not any(addresses.enter("10.1.2.3") for _ in range(5))
    assert [addresses.enter("192.0.2.1") for _ in range(2)] == [False, True]
    for _ in range(2):
        addresses.leave("192.0.2.1")
    addresses.leave("10.1.2.3")
    assert not addresses.enter("192.0.2.1")


def test_all_limits_are_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/limits.md").read_text()))
    options = set(re.findall(r"`--([a-z-]+)`", (ROOT / "docs/limits.md").read_text()))
    said = set[str]()
    for path in (ROOT / "src/caudal").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "id", getattr(call.func, "attr", ""))
                place = {"LimitError": 0, "RefusedError": 2, "OverLimitError": 2}.get(name)
                given = call.args[place : place + 1] if place is not None else []
                given += [each.value for each in call.keywords if each.arg == "limit"]
                said |= {each.value for each in given if isinstance(each, ast.Constant)}
    names = {each for each in said if isinstance(each, str)}
    assert {"max_waiting", "max_headers", "max_n", "max_bodies"} <= names
    assert names - documented == set()
    table = {name.replace("_", "-") for name in LimitsTable.__annotations__ if name != "table"}
    assert table - options - {"max-upload-size", "max-files-size"} == set()
