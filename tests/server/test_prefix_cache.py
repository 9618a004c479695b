"""What is in the prefix cache, who sees it, and who may empty it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from caudal.server.auth import Access
from caudal.tenants.keys import GivenKeys, Key, digest_of
from caudal.tenants.ring import KeyRing
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server

RESET = "/v1/prefix-cache/reset"


def ask(server: RunningServer, *, salt: str | None = None, key: str = "") -> int:
    """Have 64 tokens cached; returns how many were."""
    body = {"prompt": "x" * 64, "max_tokens": 1, "cache_salt": salt}
    answer = said(server, "/v1/completions", body, key=key)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def request(server: RunningServer, path: str, body: Any, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return server.http.request("GET" if body is None else "POST", path, json=body, headers=headers)


def said(server: RunningServer, path: str, body: Any = None, *, key: str = "") -> dict[str, Any]:
    response = request(server, path, body, key)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def until(holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it never was so")


def spaces(server: RunningServer, key: str = "") -> list[tuple[Any, ...]]:
    [model] = said(server, "/v1/prefix-cache", key=key)["data"]
    [tier] = model["tiers"]
    found = [tuple(space.values())[:3] for space in tier["spaces"]]
    assert tier["tokens"] == sum(space["tokens"] for space in tier["spaces"]) == 64 * len(found)
    return sorted(found, key=repr)


def test_what_it_holds_and_that_it_ends(serve: Any):
    server = serve(ScriptedExecutor(script=b"hello"))
    assert [ask(server), ask(server), ask(server, salt="a"), ask(server, salt="b")] == [0, 63, 0, 0]
    [model] = said(server, "/v1/prefix-cache")["data"]
    [tier] = model["tiers"]
    assert (model["model"], model["prompt_tokens"], model["cached_tokens"]) == ("fake", 256, 63)
    figures = [tier[name] for name in ("tier", "tokens", "hits", "misses", "hit_tokens")]
    assert figures == ["pool", 3 * 64, 1, 3, 63]
    names = [name for *_, name in spaces(server)]
    assert names.count(None) == 1
    assert all(name is None or len(name) == 16 for name in names)
    assert said(server, "/v1/prefix-cache?model=fake")["data"][0]["model"] == "fake"
    assert server.http.get("/v1/prefix-cache?model=other").status_code == 404
    of_model: dict[str, Any] = {"model": "fake", "tokens": {"pool": 64}, "kept_tokens": 0}
    done = {"object": "list", "data": [of_model]}
    assert said(server, RESET, {"salt": "a"}) == done
    pieces = {"content": iter([b'{"salt": ', b'"a"}'])}  # no length says that there is a body
    response = server.http.post(RESET, headers={"content-type": "application/json"}, **pieces)
    assert response.json()["data"][0]["tokens"] == {"pool": 0}
    assert len(spaces(server)) == 2
    assert [ask(server), ask(server, salt="a"), ask(server, salt="b")] == [63, 0, 63]
    of_model["tokens"] = {"pool": 3 * 64}
    for path in ("/reset_prefix_cache", "/flush_cache"):  # vLLM's, SGLang's: without a body
        response = server.http.post(path)
        assert (response.status_code, response.json()) == (200, done)
        of_model["tokens"] = {"pool": 0}
    assert spaces(server) == []
    assert ask(server) == 0


def test_what_lies_behind_the_pool_is_told_and_ends_too(serve: Any, tmp_path: Path):
    executor = ScriptedExecutor(script=b"hello", num_blocks=36)
    store = str(tmp_path / "store")
    server = serve(executor, max_model_len=512, prefix_memory=1 << 20, prefix_store=store)
    salts = [f"salt {number}" for number in range(12)]
    for salt in salts:
        ask(server, salt=salt)

    def told() -> dict[str, dict[str, Any]]:
        [model] = said(server, "/v1/prefix-cache")["data"]
        return {tier["tier"]: tier for tier in model["tiers"]}

    until(lambda: told()["disk"]["tokens"] == 12 * 64)  # it is written while nothing is computed
    tiers = told()
    assert list(tiers) == ["pool", "memory", "disk"]
    assert tiers["pool"]["tokens"] < 12 * 64
    assert tiers["memory"]["tokens"] >= 12 * 64 - tiers["pool"]["tokens"]
    assert len({space["salt"] for space in tiers["disk"]["spaces"]}) == 12
    cached = ask(server, salt=salts[0])
    assert cached in (0, 48)  # whole blocks; nothing where computing them is faster
    tiers = told()
    assert tiers["memory"]["hits"] + tiers["disk"]["hits"] == (cached > 0)
    assert tiers["memory"]["hit_tokens"] + tiers["disk"]["hit_tokens"] == cached
    assert tiers["disk"]["misses"] + tiers["disk"]["hits"] == 13
    for salt in salts[:2]:
        [done] = said(server, RESET, {"salt": salt})["data"]
        assert done["tokens"]["disk"] == 64
        assert ask(server, salt=salt) == 0
    [done] = said(server, RESET, {})["data"]
    assert min(done["tokens"].values()) > 64
    assert [tier["tokens"] for tier in told().values()] == [0, 0, 0]
    assert not list(Path(store).rglob("*.kv"))


@pytest.mark.parametrize(
    ("body", "headers", "status", "named"),
    [
        ({"model": "other"}, {}, 404, "other"),
        ({"model": ""}, {}, 400, "model"),
        ({"key": "alice"}, {}, 400, "no keys"),
        ({"share_prefixes": "x"}, {}, 400, "no keys"),
        ({"salt": 5}, {}, 400, "salt"),
        ({"cache_salt": "a"}, {}, 400, "cache_salt"),  # of all, it would be taken to mean
        (None, {"origin": "https://evil.example"}, 400, "JSON"),
    ],
)
def test_what_is_refused(
    serve: Any, body: Any, headers: dict[str, str], status: int, named: str
) -> None:
    server = serve(ScriptedExecutor(script=b"hello"))
    ask(server)
    response = server.http.post(RESET, json=body, headers=headers)
    if body is None:
        response = server.http.post(RESET, headers=headers)
    assert response.status_code in (status, 403)
    assert named in response.text or response.status_code == 403
    assert len(spaces(server)) == 1


def test_each_key_sees_its_own_and_admins_see_and_end_all():
    rules: dict[str, dict[str, Any]] = {
        "alice": {},
        "bob": {},
        "one": {"share_prefixes": "team"},
        "two": {"share_prefixes": "team"},
        "free": {"share_prefixes": ""},
        "root": {"admin": True},
    }
    keys = [Key(name=name, digest=digest_of(name.encode()), rules=of) for name, of in rules.items()]
    access = Access(keys=KeyRing([GivenKeys(keys)]))
    with running_server(serve_fake(ScriptedExecutor(script=b"hello")), access=access) as server:
        for key in ("alice", "bob", "one", "two", "free"):
            ask(server, key=key)
        for salt in ("short", "a salt of a customer " * 9):
            ask(server, key="alice", salt=salt)
        own = spaces(server, "alice")
        assert len(own) == 3
        [identity] = {key for key, _, _ in own}
        assert len(spaces(server, "bob")) == 1
        assert spaces(server, "one") == spaces(server, "two") == [(None, "team", None)]
        assert spaces(server, "free") == [(None, "", None)]
        assert spaces(server, "root") != own
        seen = said(server, "/v1/prefix-cache", key="bob")
        assert "prompt_tokens" not in seen["data"][0]
        assert "hits" not in seen["data"][0]["tiers"][0]
        [model] = said(server, "/v1/prefix-cache", key="root")["data"]
        assert model["tiers"][0]["misses"] == 6
        told = [tuple(space.values())[:3] for space in model["tiers"][0]["spaces"]]
        assert len(told) == 6
        assert set(own) <= set(told)
        assert "alice\n" not in str(model)
        # The end
        assert request(server, RESET, {}, "alice").status_code == 403
        for body in ({"salt": "short"}, {"key": identity, "share_prefixes": "team"}):
            assert request(server, RESET, body, "root").status_code == 400

        def reset(**body: Any) -> int:
            [done] = said(server, RESET, body, key="root")["data"]
            return int(done["tokens"]["pool"]) // 64

        assert reset(key=identity, salt="a salt of a customer " * 9) == 1
        assert reset(share_prefixes="team") == 1
        assert reset(key=identity) == 2
        assert spaces(server, "alice") == []
        assert len(spaces(server, "bob")) == 1
        assert reset() == 2


def test_who_shares_prefixes_learns_nothing_of_others_salts():
    rules: dict[str, dict[str, Any]] = {
        "one": {"share_prefixes": "team"},
        "two": {"share_prefixes": "team"},
        "root": {"admin": True},
    }
    keys = [Key(name=name, digest=digest_of(name.encode()), rules=of) for name, of in rules.items()]
    access = Access(keys=KeyRing([GivenKeys(keys)]))
    with running_server(serve_fake(ScriptedExecutor(script=b"hello")), access=access) as server:
        assert ask(server, key="one", salt="customer 7") == 0
        assert spaces(server, "two") == []
        assert ask(server, key="two") == 0
        assert spaces(server, "one") == spaces(server, "two") == [(None, "team", None)]
        assert [word for _, word, _ in spaces(server, "root")] == ["team", "team"]
