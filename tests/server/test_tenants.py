"""Several keys at one server: who may do what, who sees what, and how much of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from caudal.server.app import _ROUTERS, create_app
from caudal.server.auth import Access
from caudal.service.registry import ModelRegistry
from caudal.tenants.keys import GivenKeys, Key, digest_of
from caudal.tenants.ring import KeyRing
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import AnyServer, RunningServer, running_server

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}


def ring(**rules: Mapping[str, Any]) -> KeyRing:
    """Keys that are their names."""
    keys = [Key(name=name, digest=digest_of(name.encode()), rules=of) for name, of in rules.items()]
    return KeyRing([GivenKeys(keys)])


def serving(keys: KeyRing, script: bytes = b"Hello", **options: Any) -> Any:
    model = serve_fake(ScriptedExecutor(script=script))
    return running_server(model, access=Access(keys=keys), **options)


def asked_by(server: AnyServer, key: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    method = "GET" if body is None else "POST"
    return server.http.request(method, path, json=body, headers=headers)


# Keys


def test_no_route_is_forgotten_when_a_key_is_set():
    app = create_app(ModelRegistry(), access=Access(api_key="sesame"))
    paths = {
        (route.path, method)
        for routes in (app.routes, *(router.routes for router, _ in _ROUTERS))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert len(paths) > 50
    document = app.openapi()
    assert len(document["security"]) == 2
    without = {
        path
        for path, of in document["paths"].items()
        if any(operation.get("security") == [] for operation in of.values())
    }
    assert without == {"/", "/health", "/ready"}
    assert "security" not in create_app(ModelRegistry()).openapi()
    with running_server(None, access=Access(api_key="sesame")) as server:
        open_ = {
            path
            for path, method in paths | {("/nowhere", "GET"), ("/v1/nowhere", "POST")}
            if server.http.request(method, re.sub(r"{[^}]*}", "x", path)).status_code != 401
        }
    assert open_ <= {"/", "/health", "/ready"}


def test_keys_come_in_any_of_the_headers_that_clients_have_for_them():
    with serving(ring(alice={})) as server:
        for headers, status in (
            ({"authorization": "Bearer alice"}, 200),
            ({"authorization": "bearer  alice"}, 200),
            ({"x-api-key": "alice"}, 200),
            ({"api-key": "alice"}, 200),
            ({"authorization": "Bearer none", "x-api-key": "alice"}, 200),
            ({"authorization": "Basic alice"}, 401),
            ({"authorization": "alice"}, 401),
            ({"x-api-key": "ALICE"}, 401),
            ({"cookie": "x-api-key=alice"}, 401),
        ):
            answer = server.http.get("/v1/models", headers=headers)
            assert answer.status_code == status, headers
            if status == 401:
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert "alice" not in answer.text


def test_metrics_are_for_admins_unless_they_are_open():
    keys = ring(alice={}, root={"admin": True})
    model = serve_fake(ScriptedExecutor(script=b"x"))
    with running_server(model, access=Access(keys=keys)) as server:
        assert server.http.get("/metrics").status_code == 401
        assert asked_by(server, "alice", "/metrics").status_code == 403
        assert asked_by(server, "root", "/metrics").status_code == 200
    model = serve_fake(ScriptedExecutor(script=b"x"))
    with running_server(model, access=Access(keys=keys, open_metrics=True)) as server:
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/v1/models").status_code == 401


# What a key may


@pytest.fixture
def several(tmp_path: Path) -> Iterator[RunningServer]:
    keys = ring(
        narrow={"models": ("fake",)},
        poet={"models": ("po*",)},
        none={"models": ("other",)},
        root={"admin": True},
    )
    executor = ScriptedExecutor(script=b"base", by_adapter={"poet": b"poem", "sql": b"SELECT"})
    options: dict[str, Any] = {"allow_runtime_lora": True}
    with running_server(serve_fake(executor), access=Access(keys=keys), **options) as server:
        for name in ("poet", "sql"):
            body = {"lora_name": name, "lora_path": f"/adapters/{name}.gguf"}
            assert asked_by(server, "narrow", "/v1/load_lora_adapter", body).status_code == 403
            assert asked_by(server, "root", "/v1/load_lora_adapter", body).status_code == 200
        yield server


def test_models_that_a_key_may_not_use_are_not_there(several: RunningServer):
    def listed(key: str, path: str = "/v1/models") -> list[str]:
        return [card["id"] for card in asked_by(several, key, path).json()["data"]]

    assert listed("root") == ["fake", "poet", "sql"]
    assert listed("narrow") == ["fake"]
    assert listed("poet") == ["poet"]
    assert listed("none") == []
    for key, model, status in (
        ("narrow", "fake", 200),
        ("narrow", "sql", 404),
        ("poet", "poet", 200),
        ("poet", "fake", 404),
        ("none", "fake", 404),
        ("none", "nothing", 404),
    ):
        answers = [
            asked_by(several, key, "/v1/chat/completions", CHAT | {"model": model}),
            asked_by(several, key, "/v1/messages", CHAT | {"model": model, "max_tokens": 5}),
            asked_by(several, key, "/tokenize", {"model": model, "prompt": "x"}),
            asked_by(several, key, f"/v1/models/{model}"),
        ]
        assert [answer.status_code for answer in answers] == [status] * 4, (key, model)
        if key == "none":
            assert "There are none" in answers[0].json()["error"]["message"]
    ps = [asked_by(several, key, "/ps").json()["models"] for key in ("narrow", "none")]
    assert [len(models) for models in ps] == [1, 0]
    # By a field beside the model, too; and where no model is named.
    hidden = asked_by(several, "narrow", "/v1/chat/completions", CHAT | {"lora": "sql"})
    assert hidden.status_code == 400
    assert "poet" not in hidden.json()["error"]["message"]
    unnamed = {"prompt": "x", "max_tokens": 3}
    assert asked_by(several, "narrow", "/v1/completions", unnamed).status_code == 200
    assert asked_by(several, "none", "/v1/completions", unnamed).status_code == 404
    assert asked_by(several, "none", "/props").status_code == 404


def test_what_changes_the_server_is_for_admins(several: RunningServer):
    for path, body, status in (
        ("/v1/models/unload", {"model": "fake"}, 400),  # it stays
        ("/api/pull", {"model": "x"}, 403),  # there is no store
        ("/api/generate", {"model": "fake", "keep_alive": 0}, 400),
        ("/v1/unload_lora_adapter", {"lora_name": "sql"}, 200),
    ):
        refused = asked_by(several, "narrow", path, body)
        assert refused.status_code == 403
        assert "admin" in refused.text
        allowed = asked_by(several, "root", path, body)
        assert allowed.status_code == status
        assert "admin" not in allowed.text
    # To load a model is no more than to ask it something.
    for model, status in (("fake", 200), ("sql", 404)):
        loaded = asked_by(several, "narrow", "/v1/models/load", {"model": model})
        assert loaded.status_code == status
    kept = asked_by(several, "narrow", "/v1/chat/completions", CHAT | {"keep_alive": "1h"})
    assert kept.headers["x-caudal-ignored"] == "keep_alive"
    urgent = asked_by(several, "narrow", "/v1/chat/completions", CHAT | {"priority": -1})
    assert urgent.headers["x-caudal-ignored"] == "priority"


# What a key sees


def test_what_is_kept_for_one_key_is_not_there_to_others():
    with serving(ring(alice={}, bob={})) as server:

        def post(key: str, path: str, **body: Any) -> httpx.Response:
            return asked_by(server, key, path, body)

        ask: dict[str, Any] = {"model": "fake", "input": "Hi"}
        made = post("alice", "/v1/responses", **ask).json()
        run = post("alice", "/v1/responses", **ask, background=True).json()
        talk = post("alice", "/v1/conversations", items=[{"role": "user", "content": "x"}]).json()
        item = asked_by(server, "alice", f"/v1/conversations/{talk['id']}/items").json()["data"][0]
        for key, status in (("bob", 404), ("alice", 200)):
            answers = [
                asked_by(server, key, f"/v1/responses/{made['id']}"),
                asked_by(server, key, f"/v1/responses/{made['id']}/input_items"),
                asked_by(server, key, f"/v1/responses/{run['id']}"),
                asked_by(server, key, f"/v1/responses/{run['id']}?stream=true"),
                post(key, f"/v1/responses/{run['id']}/cancel"),
                asked_by(server, key, f"/v1/conversations/{talk['id']}"),
                asked_by(server, key, f"/v1/conversations/{talk['id']}/items/{item['id']}"),
                post(key, f"/v1/conversations/{talk['id']}", metadata={}),
                post(key, "/v1/responses", **ask, conversation=talk["id"]),
            ]
            assert {answer.status_code for answer in answers} == {status}
            gone = post(key, "/v1/responses", **ask, previous_response_id=made["id"])
            assert gone.status_code == (400 if status == 404 else 200)
            reference = {"type": "item_reference", "id": made["output"][0]["id"]}
            again = post(key, "/v1/responses", model="fake", input=[reference])
            assert again.status_code == status
            headers = {"x-api-key": key}
            deleted = [
                server.http.delete(path, headers=headers).status_code
                for path in (f"/v1/responses/{made['id']}", f"/v1/conversations/{talk['id']}")
            ]
            assert deleted == [status] * 2


def test_prefixes_are_cached_for_each_key_apart():
    team = {"share_prefixes": "team"}
    with serving(ring(alice={}, bob={}, one=team, two=team)) as server:

        def cached(key: str) -> int:
            body = {"model": "fake", "prompt": "The same long prompt. " * 20, "max_tokens": 2}
            usage = asked_by(server, key, "/v1/completions", body).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [cached(key) > 0 for key in ("alice", "bob", "alice", "one", "two")] == [
            *(False, False, True, False, True)
        ]


# How much


def test_quotas_hold_to_the_request_under_concurrency():
    keys = ring(alice={"requests_per_minute": 7}, bob={"requests_per_minute": 3})
    with serving(keys) as server, ThreadPoolExecutor(16) as threads:

        def ask(number: int) -> tuple[str, int]:
            key = ("alice", "bob")[number % 2]
            path = ("/v1/chat/completions", "/v1/messages")[number // 2 % 2]
            return key, asked_by(server, key, path, CHAT | {"max_tokens": 5}).status_code

        answers = list(threads.map(ask, range(40)))
        for key, limit in (("alice", 7), ("bob", 3)):
            statuses = sorted(status for by, status in answers if by == key)
            assert statuses == [200] * limit + [429] * (20 - limit)
        # What asks nothing of a model isn't counted, or refused.
        assert asked_by(server, "bob", "/v1/models").status_code == 200


def test_answers_say_how_the_limits_stand_as_their_apis_do():
    rules = {"requests_per_minute": 2, "tokens_per_minute": 10_000}
    with serving(ring(alice=rules, bob=rules, eve={})) as server:
        chats, messages = (
            [asked_by(server, key, path, CHAT | {"max_tokens": 5}) for _ in range(3)]
            for key, path in (("alice", "/v1/chat/completions"), ("bob", "/v1/messages"))
        )
        assert [answer.status_code for answer in (*chats, *messages)] == [200, 200, 429] * 2
        for place, answer in enumerate(chats):
            said = answer.headers
            assert said["x-ratelimit-limit-requests"] == "2"
            assert said["x-ratelimit-remaining-requests"] == ("1", "0", "0")[place]
            assert re.fullmatch(r"1m0s|5\d(\.\d+)?s", said["x-ratelimit-reset-requests"])
            assert said["x-ratelimit-limit-tokens"] == "10000"
            assert 9900 < int(said["x-ratelimit-remaining-tokens"]) < 10_000
            assert "anthropic-ratelimit-requests-limit" not in said
        for place, answer in enumerate(messages):
            said = answer.headers
            assert said["anthropic-ratelimit-requests-limit"] == "2"
            assert said["anthropic-ratelimit-requests-remaining"] == ("1", "0", "0")[place]
            for what in ("requests", "tokens"):
                reset = said[f"anthropic-ratelimit-{what}-reset"]
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reset)
                left = datetime.fromisoformat(reset) - datetime.now(UTC)
                assert timedelta(seconds=50) < left < timedelta(seconds=62)
            assert "x-ratelimit-limit-requests" not in said
        for refused in (chats[2], messages[2]):
            assert refused.headers["x-caudal-limit"] == "requests_per_minute"
            assert 50 < int(refused.headers["retry-after"]) <= 60
        assert chats[2].json()["error"]["code"] == "rate_limit_exceeded"
        assert messages[2].json()["error"]["type"] == "rate_limit_error"
        free = asked_by(server, "eve", "/v1/chat/completions", CHAT)
        assert not [name for name in free.headers if "ratelimit" in name]


def test_tokens_are_settled_with_what_was_used():
    with serving(ring(alice={"tokens_per_minute": 5000}), b"Hello there") as server:

        def left(stream: bool) -> int:
            body = {"model": "fake", "prompt": "x" * 100, "max_tokens": 10, "stream": stream}
            answer = asked_by(server, "alice", "/v1/completions", body)
            return int(answer.headers["x-ratelimit-remaining-tokens"])

        assert left(stream=False) == 5000 - 25 - 10  # as estimated
        # Now 101 tokens of the prompt, for the fake's are bytes, and 10 of the answer.
        used = 5000 - left(stream=True) - 35
        assert used in (110, 111)
        again = 5000 - left(stream=False) - 35
        assert used < again < 2 * used  # the second's prompt was in the cache
        too_long = {"model": "fake", "prompt": "x" * 30_000}
        refused = asked_by(server, "alice", "/v1/completions", too_long)
        assert refused.headers["x-caudal-limit"] == "tokens_per_minute"
        assert "retry-after" not in refused.headers


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_official_clients_wait_as_long_as_they_are_told_to(
    api: str, monkeypatch: pytest.MonkeyPatch
):
    waited: list[float] = []
    sleep = time.sleep

    def sleep_no_minute(seconds: float) -> None:
        if seconds < 30:
            sleep(seconds)
        else:
            waited.append(seconds)
            monkeypatch.setattr("caudal.tenants.quotas.WINDOW", 0.0)  # it is over

    with serving(ring(alice={"requests_per_minute": 1})) as server:
        messages: Any = CHAT["messages"]
        chats = server.openai("alice").with_options(max_retries=1).chat.completions
        texts = server.anthropic("alice").with_options(max_retries=1).messages
        monkeypatch.setattr(time, "sleep", sleep_no_minute)
        for _ in range(2):
            if api == "openai":
                chats.create(model="fake", messages=messages)
            else:
                texts.create(model="fake", messages=messages, max_tokens=5)
    assert len(waited) == 1
    assert 30 < waited[0] <= 60
