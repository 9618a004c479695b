"""Whom a request comes from, where proxies say so, and who is believed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from caudal.server.auth import Access
from caudal.server.batch_state import BatchHome
from caudal.server.proxies import TrustedProxies, checked_proxy
from support.fake_model import ScriptedExecutor, serve_fake
from support.record_list import RecordList
from support.running_server import Serve, running_server

CLIENT = "203.0.113.9"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Forwarded-For": CLIENT}, CLIENT),
        ({"X-Forwarded-For": f"1.2.3.4, {CLIENT}, 10.1.2.3"}, CLIENT),
        ({"X-Forwarded-For": f"{CLIENT}:1234"}, CLIENT),
        ({"X-Forwarded-For": "[2001:db8::1]:80, 10.0.0.1"}, "2001:db8::1"),
        ({"X-Forwarded-For": "::ffff:203.0.113.9"}, CLIENT),
        ({"X-Forwarded-For": f"{CLIENT}, unknown, 10.0.0.1"}, "10.0.0.1"),
        ({"X-Forwarded-For": "10.0.0.1, 10.0.0.2"}, "10.0.0.1"),
        ({"Forwarded": f'for=1.2.3.4, for="{CLIENT}:80";proto=https;by=10.0.0.1'}, CLIENT),
        ({"Forwarded": "for=1.2.3.4", "X-Forwarded-For": CLIENT}, CLIENT),
        ({"Forwarded": "proto=https;for=_hidden"}, "127.0.0.1"),
        ({"X-Forwarded-For": ""}, "127.0.0.1"),
        ({}, "127.0.0.1"),
    ],
)
def test_a_trusted_proxy_is_believed(serve: Serve, headers: dict[str, str], expected: str) -> None:
    records = RecordList()
    proxies = TrustedProxies([checked_proxy("127.0.0.1"), checked_proxy("10.0.0.0/8")])
    server = serve(ScriptedExecutor(), access=Access(proxies=proxies), sinks=[records])
    server.http.get("/health", headers=headers)
    assert records.next().client == expected


def test_nobody_else_is(serve: Serve) -> None:
    records = RecordList()
    for more in ({}, {"access": Access(proxies=TrustedProxies([checked_proxy("10.0.0.1")]))}):
        given: dict[str, Any] = more
        server = serve(ScriptedExecutor(), sinks=[records], **given)
        server.http.get("/health", headers={"X-Forwarded-For": CLIENT})
        assert records.next().client == "127.0.0.1"
    with pytest.raises(ValueError, match="no address and no network"):
        checked_proxy("proxy.example.org")


def test_a_foreign_page_has_no_models_loaded(hello: Any) -> None:
    page = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert hello.http.get("/props?model=fake", headers=page).status_code == 200, "it is there"
    assert hello.http.get("/props?model=other", headers=page).status_code == 503
    assert hello.http.get("/props?model=other").status_code == 404


def test_urls_lead_through_the_proxy(tmp_path: Path) -> None:
    proxies = TrustedProxies([checked_proxy("127.0.0.1")])
    model = serve_fake(ScriptedExecutor(script=b"Hello!"))
    with running_server(
        model, access=Access(proxies=proxies), root_path="/llm", batch_home=BatchHome(tmp_path)
    ) as server:
        params = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        body = {"requests": [{"custom_id": "a", "params": params}]}
        forwarded = {"X-Forwarded-Proto": "https", "Host": "localhost"}
        identity = server.http.post("/v1/messages/batches", json=body).json()["id"]
        deadline = time.monotonic() + 20
        url = None
        while url is None and time.monotonic() < deadline:
            path = f"/v1/messages/batches/{identity}"
            url = server.http.get(path, headers=forwarded).json()["results_url"]
            time.sleep(0.02)
    assert url == f"https://localhost/llm/v1/messages/batches/{identity}/results"
