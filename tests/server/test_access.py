"""Who may use the server: host names, web pages, keys; and ids that say which request it was."""

from __future__ import annotations

import re

import pytest

from caudal.server.auth import Access
from caudal.server.cors import checked_origin
from caudal.server.hosts import checked_name, own_names, reaches_this_machine_only
from caudal.tenants.keys import checked_key
from support.fake_model import ScriptedExecutor
from support.raw_client import exchange, parse_response
from support.running_server import RunningServer, Serve

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
PAGE = "https://page.example"


# Host names


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "localhost.", "app.localhost:1", "127.0.0.1:8000"),
        *("127.9.9.9", "[::1]:8000", "[::1]", "192.168.1.5:80", "host.docker.internal:8000"),
        *("here.example", "Here.Example:8000"),
    ],
)
def test_a_host_name_of_this_machine_is_answered(serve: Serve, host: str):
    server = serve(ScriptedExecutor(), access=Access(host_names=("localhost", "Here.example")))
    assert server.http.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("localhost:x", "localhost:8000:9000", "evil.example#localhost", "[localhost]", "[]"),
        *("nas", "nas.local", "127.0.0.1@evil.example", ""),
    ],
)
def test_a_host_name_that_is_not_ours_is_refused(hello: RunningServer, host: str):
    request = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    response = parse_response(exchange(hello.url, request.encode()))
    assert response.status_code == 403
    error = response.json()["error"]
    assert error["code"] == "host_not_allowed"
    assert "--allowed-host" in error["message"]


def test_where_others_reach_the_server_it_goes_by_their_names_for_it(serve: Serve):
    server = serve(ScriptedExecutor(), access=Access(local_only=False))
    for host, status in (("nas:8000", 200), ("nas.local", 200), ("evil.example", 403)):
        assert server.http.get("/v1/models", headers={"host": host}).status_code == status


def test_with_a_key_the_host_does_not_matter(serve: Serve):
    server = serve(ScriptedExecutor(), api_key="sesame")
    headers = {"host": "proxy.example", "x-api-key": "sesame"}
    assert server.http.get("/v1/models", headers=headers).status_code == 200


def test_names_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Nas.home")
    assert own_names("Server.example") == {"localhost", "server.example", "nas.home", "nas"}
    assert checked_name("Example.org.:8000") == "example.org"
    for text in ("http://example.org", "example.org/v1", "", "*", "a b"):
        with pytest.raises(ValueError, match="no host name"):
            checked_name(text)
    local = {host: reaches_this_machine_only(host) for host in ("127.0.0.1", "::1", "localhost")}
    assert all(local.values())
    assert not any(map(reaches_this_machine_only, ("0.0.0.0", "::", "192.168.1.5", "nas")))


def test_nothing_redirects_to_the_host_of_the_request(hello: RunningServer):
    response = hello.http.get("/metrics/")
    assert response.status_code == 404
    assert "location" not in response.headers


# Web pages


@pytest.fixture
def paged(serve: Serve) -> RunningServer:
    """Needs a key, and lets one web page in."""
    executor = ScriptedExecutor(script=b"ok")
    return serve(executor, access=Access(api_key="sesame", origins=(PAGE,)))


def preflight(server: RunningServer, origin: str, headers: str, method: str = "POST") -> object:
    return server.http.options(
        "/v1/chat/completions",
        headers={
            "origin": origin,
            "access-control-request-method": method,
            "access-control-request-headers": headers,
        },
    )


def test_a_page_is_told_what_it_may_send_without_a_key(paged: RunningServer):
    asked = (
        "authorization,Content-Type, x-api-key,anthropic-version,"
        "anthropic-dangerous-direct-browser-access,x-stainless-os,x-evil"
    )
    response = preflight(paged, PAGE, asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"
    assert response.headers["access-control-allow-methods"] == "GET, POST"
    allowed = response.headers["access-control-allow-headers"].split(", ")
    assert allowed == [name.strip() for name in asked.split(",")][:-1]
    assert "access-control-allow-credentials" not in response.headers
    response = preflight(paged, PAGE, "", "DELETE")
    assert "DELETE" in response.headers["access-control-allow-methods"]


def test_other_pages_are_not(paged: RunningServer):
    for origin in ("https://evil.example", "null", f"{PAGE}.evil.example", f"{PAGE}:444"):
        response = preflight(paged, origin, "authorization")
        assert response.status_code == 403
        assert "--allow-origin" in response.json()["error"]["message"]
        assert "access-control-allow-origin" not in response.headers
        key = {"x-api-key": "sesame"}
        answer = paged.http.post(
            "/v1/chat/completions", json=CHAT, headers=key | {"origin": origin}
        )
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin"


def test_pages_can_read_answers_failures_and_streams(paged: RunningServer):
    requests = [
        ("sesame", CHAT, 200),
        ("sesame", CHAT | {"stream": True}, 200),
        ("sesame", {"model": "fake"}, 400),
        ("sesame", CHAT | {"model": "other"}, 404),
        ("wrong", CHAT, 401),
    ]
    for key, body, status in requests:
        response = paged.http.post(
            "/v1/chat/completions", json=body, headers={"origin": PAGE, "x-api-key": key}
        )
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE
        exposed = response.headers["access-control-expose-headers"]
        ours = {"x-caudal-ignored", "x-caudal-normalised", "x-caudal-model", "x-caudal-limit"}
        assert {"x-request-id", "request-id", "retry-after", *ours} <= set(exposed.split(", "))


def test_a_page_can_read_that_something_unforeseen_went_wrong(
    paged: RunningServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(type(paged.model), "chat", None)
    response = paged.http.post(
        "/v1/chat/completions", json=CHAT, headers={"origin": PAGE, "x-api-key": "sesame"}
    )
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "Internal server error."
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["x-request-id"].startswith("req_")


def test_all_pages_may_be_let_in(serve: Serve):
    server = serve(ScriptedExecutor(), access=Access(origins=("*",)))
    for origin in ("localhost", "web.mydomain.fr", "null", "http://localhost:3000"):
        response = preflight(server, origin, "Authorization")
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == origin
        assert response.headers["access-control-allow-headers"] == "Authorization"


def test_by_default_pages_are_told_nothing(hello: RunningServer):
    response = hello.http.get("/v1/models", headers={"origin": PAGE})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert preflight(hello, PAGE, "authorization").status_code == 405


def test_origins_are_read_as_browsers_write_them():
    assert checked_origin("*") == "*"
    assert checked_origin("HTTP://Localhost:3000/") == "http://localhost:3000"
    assert checked_origin("app://obsidian.md") == "app://obsidian.md"
    for text in ("localhost", "http://localhost/path", "http://", "", "null", "http://a b"):
        with pytest.raises(ValueError, match="no origin"):
            checked_origin(text)


# Keys


@pytest.mark.parametrize("key", ["päss", "pass€", "密码"])
def test_a_key_need_not_be_ascii(serve: Serve, key: str):
    server = serve(ScriptedExecutor(), api_key=key)
    models = (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: %b\r\n\r\n"
    )
    assert parse_response(exchange(server.url, models % key.encode())).status_code == 200
    for wrong in (b"", b"pass?", b"??", b"\xff\xfe", key.encode()[:-1]):
        assert parse_response(exchange(server.url, models % wrong)).status_code == 401
    if key == "päss":
        latin = models % key.encode("latin-1")
        assert parse_response(exchange(server.url, latin)).status_code == 200


@pytest.mark.parametrize("key", ["", " ", "\t\n", " key", "key ", "k\ney", "k\x00"])
def test_a_key_that_no_client_can_send_is_refused(key: str):
    with pytest.raises(ValueError, match="must not"):
        checked_key(key)


# Which request it was


def test_every_response_says_which_request_it_answers(paged: RunningServer):
    key = {"x-api-key": "sesame"}
    for method, path, headers in (
        ("GET", "/health", {}),
        ("GET", "/", {}),
        ("GET", "/v1/models", {}),
        ("GET", "/v1/models", key),
        ("GET", "/nothing", key),
        ("DELETE", "/metrics", key),
        ("POST", "/v1/chat/completions", key),
        ("POST", "/v1/messages", key),
    ):
        response = paged.http.request(method, path, headers=headers)
        assert re.fullmatch(r"req_[0-9a-f]{24}", response.headers["x-request-id"])
        named = paged.http.request(method, path, headers=headers | {"x-request-id": "mine 1"})
        assert named.headers["x-request-id"] == "mine 1"
        assert named.headers.get_list("x-request-id") == ["mine 1"]


@pytest.mark.parametrize("identity", ["", "x" * 129, "é", "\x7f"])
def test_an_id_that_could_do_harm_is_not_taken(hello: RunningServer, identity: str):
    response = hello.http.get("/health", headers={"x-request-id": identity.encode()})
    assert response.headers["x-request-id"].startswith("req_")


def test_anthropics_routes_have_one_id_under_both_names(hello: RunningServer):
    message = CHAT | {"max_tokens": 5}
    for body in (message, message | {"stream": True}, {"model": "fake"}):
        response = hello.http.post("/v1/messages", json=body, headers={"x-request-id": "abc"})
        assert response.headers["x-request-id"] == response.headers["request-id"] == "abc"
    assert response.json()["request_id"] == "abc"


def test_the_root_says_that_there_is_a_server(paged: RunningServer):
    response = paged.http.get("/")
    assert response.status_code == 200
    assert "Caudal" in response.text
    head = paged.http.head("/")
    assert (head.status_code, head.content) == (200, b"")
