"""Bodies that are made to cost more than they weigh."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.server import json_bounds
from caudal.server.json_bounds import JSONSize, find_excess, json_size, memory_of
from caudal.server.limits import ServerLimits
from support.fake_model import ScriptedExecutor
from support.raw_client import connect, parse_response, post, read_all
from support.running_server import RunningServer, Serve

MANY = 20_000
TEXT = [{"role": "user", "content": "x"}]


def counted(value: Any, depth: int = 0) -> JSONSize:
    """What `json_size` has to say of a value's text."""
    if not isinstance(value, dict | list):
        return JSONSize(0, 0, 0, depth)
    inner = list(value.values()) if isinstance(value, dict) else value
    parts = [counted(each, depth + 1) for each in inner]
    return JSONSize(
        items=sum(part.items for part in parts) + max(0, len(inner) - 1),
        keys=sum(part.keys for part in parts) + (len(inner) if isinstance(value, dict) else 0),
        containers=sum(part.containers for part in parts) + 1,
        depth=max((part.depth for part in parts), default=depth + 1),
    )


texts = st.text(alphabet='ab\\"[]{},:é\n', max_size=12)
values = st.recursive(
    st.one_of(texts, st.integers(), st.none()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans(), st.integers(1, 40))
def test_what_is_in_strings_does_not_count(value: Any, ascii_only: bool, block: int):
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "_BLOCK", block)
        assert json_size(data) == counted(value)


def test_each_bound_is_one():
    def text(begin: str, item: str, count: int, end: str) -> bytes:
        return (begin + ",".join([item] * count) + end).encode()

    assert find_excess(text("[", "1", json_bounds.MAX_ITEMS, "]")) is None
    assert "values" in str(find_excess(text("[", "1", json_bounds.MAX_ITEMS + 1, "]")))
    assert find_excess(text("{", '"a":1', json_bounds.MAX_KEYS, "}")) is None
    assert "keys" in str(find_excess(text("{", '"a":1', json_bounds.MAX_KEYS + 1, "}")))
    assert find_excess(text("[", "[]", json_bounds.MAX_CONTAINERS - 1, "]")) is None
    assert "objects" in str(find_excess(text("[", "[]", json_bounds.MAX_CONTAINERS, "]")))
    depth = json_bounds.MAX_DEPTH
    assert find_excess(b"[" * depth + b"]" * depth) is None
    assert "nesting" in str(find_excess(b"[" * (depth + 1) + b"]" * (depth + 1)))
    prose = json.dumps(['{"a": [1, 2, 3]}, ' * 2**18]).encode()
    assert find_excess(prose) is None


@pytest.mark.parametrize(
    "value",
    [
        [10**6 + each for each in range(1000)],
        [[] for _ in range(1000)],
        [{} for _ in range(1000)],
        [{f"key{each}": str(each), "z": None} for each in range(1000)],
        {f"key{each}": 0.5 + each for each in range(1000)},
    ],
)
def test_what_a_text_takes_in_memory(value: Any):
    data = json.dumps(value, separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        parsed = json.loads(data)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parsed == value
    assert 0.8 * taken < memory_of(data) < 4 * taken


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": TEXT, "max_tokens": 1} | fields


def message(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"model": "fake", "messages": TEXT, "max_tokens": 1} | fields


@pytest.mark.parametrize(
    ("path", "body"),
    [
        chat(messages=[1] * MANY),
        chat(messages=[{}] * MANY),
        chat(messages=[1] * (MANY // 2)),
        chat(messages=[{}] * (MANY // 2)),
        chat(messages=TEXT * MANY),
        chat(messages=[{"role": "user", "content": [1] * MANY}]),
        chat(messages=[{"role": "user", "content": [{}] * (MANY // 2)}]),
        chat(stop=[1] * MANY),
        chat(tools=[1] * MANY),
        chat(tools=[{}] * (MANY // 2)),
        chat(logit_bias={str(each): "x" for each in range(MANY)}),
        chat(metadata={str(each): 1 for each in range(MANY)}),
        chat(**{f"x{each}": 1 for each in range(MANY)}),
        message(messages=[1] * MANY),
        message(messages=[{"role": "user", "content": [1] * (MANY // 2)}]),
        message(system=[1] * MANY),
        message(tools=[{}] * (MANY // 2)),
        ("/v1/responses", {"input": [1] * MANY}),
        ("/v1/responses", {"input": [{}] * (MANY // 2)}),
        ("/v1/responses", {"input": "x", "include": [1] * MANY}),
        ("/v1/rerank", {"query": "x", "documents": [1] * MANY}),
        ("/detokenize", {"tokens": ["x"] * MANY}),
    ],
)
def test_the_first_wrong_element_is_enough(
    hello: RunningServer, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    explained: list[int] = []

    def count(errors: list[Any]) -> tuple[str, str | None]:
        explained.append(len(errors))
        return "counted", None

    monkeypatch.setattr("caudal.server.body.explain_errors", count)
    response = hello.http.post(path, json=body)
    assert response.status_code == 400
    assert explained
    assert explained[0] < 100


def test_too_many_elements_are_said(hello: RunningServer):
    response = hello.http.post("/v1/chat/completions", json=chat(messages=TEXT * MANY)[1])
    error = response.json()["error"]
    assert error["param"] == "messages"
    assert "20000" in error["message"]
    assert "16384" in error["message"]
    response = hello.http.post("/v1/completions", content=b"[" * 300, headers=JSON)
    assert "300 levels of nesting" in response.json()["error"]["message"]


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"max_tokens":' + b"1" * 10**6 + b"}",
        b'{"temperature":0.' + b"1" * 10**6 + b"}",
        b'{"temperature":1e' + b"9" * 10**6 + b"}",
        b'{"messages":' + b"[" * 10**6,
        b'{"messages":"' + b"\xff" * 10**6 + b'"}',
        b'{"messages":"' + b"\\u0041" * 10**5,
        b" " * 10**6,
    ],
)
def test_odd_texts_are_refused(hello: RunningServer, body: bytes):
    response = hello.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_of_another_type_is_refused_before_it_has_come(hello: RunningServer):
    request = post("/v1/completions", b" " * 1000).replace(b"application/json", b"text/plain")
    with connect(hello.url) as sock:
        sock.sendall(request[:-1000])
        response = parse_response(sock.recv(65536))
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


def test_all_bodies_together_are_bounded(serve: Serve):
    gate = threading.Event()
    limits = ServerLimits(all_bodies_bytes=100_000)
    server = serve(ScriptedExecutor(script=b"ok", gate=gate), limits=limits)
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode() + b" " * 40_000
    request = post("/v1/completions", body, "Connection: close")
    with contextlib.ExitStack() as stack:
        working = [stack.enter_context(connect(server.url)) for _ in range(2)]
        for sock in working:
            sock.sendall(request)
        for sock in working:
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            sock.settimeout(10)
        refused = server.http.post("/v1/completions", content=body, headers=JSON)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        gate.set()
        for sock in working:
            assert parse_response(read_all(sock)).status_code == 200
    assert server.http.post("/v1/completions", content=body, headers=JSON).status_code == 200


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        chat(model=LONG),
        chat(logit_bias={LONG: "x"}),
        chat(**{"messages": [{"role": "user", "content": "x", "tool_calls": [{LONG: 1}]}]}),
        message(model="fake", messages=[{"role": "user", "content": [{"type": LONG}]}]),
        message(thinking={"type": LONG}),
        ("/v1/responses", {"input": "x", "previous_response_id": LONG}),
        ("/v1/responses", {"input": "x", "model": LONG}),
    ],
)
def test_an_error_does_not_repeat_what_is_long(
    hello: RunningServer, path: str, body: dict[str, Any]
):
    response = hello.http.post(path, json=body)
    assert 400 <= response.status_code < 500
    assert response.json()["error"]["message"]
    assert len(response.content) < 10_000


def test_the_log_does_not_repeat_a_long_user(
    hello: RunningServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="caudal.server")
    assert hello.http.post("/v1/chat/completions", json=chat(user=LONG)[1]).status_code == 200
    hello.http.get("/health")  # by when the other has ended
    assert f"user '{LONG[:3]}" in caplog.text
    assert len(caplog.text) < 5000


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", ["x" * 1000] * 20),
        ("/completion", ["x" * 1000] * 20),
        ("/completion", ["x", 7] * 500),
    ],
)
def test_many_short_texts_are_tokenised_beside_the_event_loop(
    hello: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, prompt: list[Any]
):
    tokenizer = hello.model.parts.tokenizer
    encode = tokenizer.encode
    in_loop: list[bool] = []

    def watched(*args: Any, **options: Any) -> list[int]:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            in_loop.append(True)
        in_loop.append(False)
        return encode(*args, **options)

    monkeypatch.setattr(tokenizer, "encode", watched)
    hello.http.post(path, json={"prompt": prompt, "max_tokens": 1})
    assert len(in_loop) >= 20
    assert sum(in_loop) <= 1  # the first of the pieces, by itself
