"""Templates that requests bring, and a model's own that is hostile: the server goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from caudal.service.chats import REQUEST_TEMPLATES
from support.processes import children, wait_until_gone
from support.running_server import RunningServer, running_server
from support.template_server import serve_template

SLOW = (
    "{% set a = [1] %}{% set b = [1] %}"
    + "{% set a = [a, a] %}{% set b = [b, b] %}" * 45
    + "{{ a == b }}"
)
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(serve_template(tmp_path_factory.mktemp("vocabulary"))) as running:
        yield running


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **fields}


def error_of(response: httpx.Response, status: int = 400) -> tuple[str, str | None]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["message"], error["param"]


def test_they_need_an_option(tmp_path: Path):
    model = serve_template(tmp_path, allow_request_templates=False)
    with running_server(model) as server:
        for path in ("/v1/chat/completions", "/tokenize", "/v1/chat/completions/input_tokens"):
            message, param = error_of(server.http.post(path, json=body(chat_template="x")))
            assert "--allow-request-templates" in message
            assert param == "chat_template"
            for nothing in ("", None):
                answer = server.http.post(path, json=body(chat_template=nothing))
                assert answer.status_code == 200, answer.text


def test_the_empty_one_is_the_models(server: RunningServer):
    def count(**fields: Any) -> int:
        return server.http.post("/tokenize", json=body(**fields)).json()["count"]

    assert count(chat_template="") == count(chat_template=None) == count() != 3
    assert count(chat_template="abc") == 3


@pytest.mark.parametrize(
    ("template", "message", "param"),
    [
        ("x\n{% if %}", "chat_template is wrong in line 2: ", "chat_template"),
        ("{% if x %}" * 120 + "{% endif %}" * 120, "is nested too deeply", "chat_template"),
        ("{{ 1 + 'x' }}", "chat_template failed: unsupported operand", "chat_template"),
        (SLOW, "chat_template took longer than 0.5 s", "chat_template"),
        ("{{ (['x' * 9000000] * 1000) | join | length }}",
         "chat_template needs more memory than 512 MiB", "chat_template"),
        ("{{ 'x' * 30000000 }}", "maximum context length is 4096 tokens", "messages"),
        ("{{ raise_exception('Be nice') }}", "Be nice", "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_them_is_said(
    server: RunningServer, template: str, message: str, param: str
):
    response = server.http.post("/v1/chat/completions", json=body(chat_template=template))
    words, blamed = error_of(response)
    assert message in words
    assert blamed == param


def test_kwargs_are_bounded(server: RunningServer):
    started = time.monotonic()
    kwargs = {f"v{number}": ["x" * 1000] for number in range(4000)}
    response = server.http.post("/v1/chat/completions", json=body(chat_template_kwargs=kwargs))
    message, param = error_of(response)
    assert "at most 65536 characters" in message
    assert param == "chat_template_kwargs"
    assert time.monotonic() - started < 10


def test_slow_ones_delay_nobody_else(server: RunningServer):
    def attack(_: int) -> str:
        response = httpx.post(f"{server.url}/tokenize", json=body(chat_template=SLOW), timeout=60)
        return error_of(response)[0]

    with ThreadPoolExecutor(12) as clients:
        attacks = [clients.submit(attack, number) for number in range(12)]
        time.sleep(0.5)
        count, slowest = 0, 0.0
        while not all(each.done() for each in attacks):
            for ask in (
                lambda: server.http.get("/health"),
                lambda: server.http.post("/v1/chat/completions", json=body()),
                lambda: server.http.post("/tokenize", json={"model": "fake", "prompt": "x" * 9999}),
            ):
                started = time.monotonic()
                assert ask().status_code == 200
                slowest = max(slowest, time.monotonic() - started)
            count += 1
        assert count > 10
        assert slowest < 2
        for each in attacks:
            assert "took longer than" in each.result()


def test_too_many_at_once_are_asked_to_come_back(server: RunningServer):
    most, more = REQUEST_TEMPLATES + 2, 8
    # One client for all: they must arrive before the first of them has run out of time.
    limits = httpx.Limits(max_connections=most + more)
    with httpx.Client(timeout=120, limits=limits) as client:

        def attack(_: int) -> httpx.Response:
            return client.post(f"{server.url}/tokenize", json=body(chat_template=SLOW))

        with ThreadPoolExecutor(most + more) as threads:
            answers = list(threads.map(attack, range(most + more)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert 0 < len(refused) <= more
    for answer in refused:
        assert "requests that bring a chat_template" in error_of(answer, 429)[0]
        assert answer.headers["retry-after"] == "2"
    assert server.http.post("/tokenize", json=body(chat_template="x")).status_code == 200


def test_a_models_own_template_may_be_hostile_too(tmp_path: Path):
    with running_server(serve_template(tmp_path, SLOW)) as server:
        message, param = error_of(server.http.post("/v1/chat/completions", json=body()))
        assert message == "the model's chat template took longer than 2 s"
        assert param == "messages"
        completion = {"model": "fake", "prompt": "x"}
        assert server.http.post("/v1/completions", json=completion).status_code == 200


@contextlib.contextmanager
def server_process() -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """The server as a process, its address, and what runs templates for it."""
    process = subprocess.Popen(
        [sys.executable, "-W", "always::ResourceWarning", "-m", "support.fake_server", "templates"],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        assert process.stdout.readline() == "ready\n"
        for template in ("x", None):
            answer = httpx.post(f"{url}/tokenize", json=body(chat_template=template), timeout=30)
            assert answer.status_code == 200
        started = children(process.pid)
        assert len(started) == 4
        yield process, url, started
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_its_processes_during_an_attack(number: signal.Signals):
    def attack(url: str) -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"{url}/tokenize", json=body(chat_template=SLOW), timeout=60)

    with server_process() as (process, url, started), ThreadPoolExecutor(12) as clients:
        for _ in range(12):
            clients.submit(attack, url)
        time.sleep(1)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=20)
        if number is not signal.SIGKILL:
            assert process.returncode == 0
            assert errors == ""
        wait_until_gone(started)
