"""What an operator relies on: keys, health, metrics, and clients that go away."""

from __future__ import annotations

import threading
import time

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from caudal.backends.executor import Batch
from caudal.server.limits import ServerLimits
from caudal.server.serving import ListenError, listen
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, Serve, running_server

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
ENDLESS = {"ignore_eos": True, "max_tokens": 400}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/fake"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/no/such/route"),
    ],
)
def test_with_a_key_every_route_but_health_needs_it(serve: Serve, method: str, path: str):
    server = serve(ScriptedExecutor(), api_key="sesame")
    assert server.http.get("/health").status_code == 200
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sesame"}):
        response = server.http.request(method, path, headers=header)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    allowed = server.http.request(method, path, headers={"authorization": "Bearer sesame"})
    assert allowed.status_code != 401


def test_the_official_client_sends_the_key(serve: Serve):
    server = serve(ScriptedExecutor(script=b"ok"), api_key="sesame")
    answer = server.openai("sesame").completions.create(model="fake", prompt="x")
    assert answer.choices[0].text == "ok"
    with pytest.raises(openai.AuthenticationError):
        server.openai("guess").completions.create(model="fake", prompt="x")


def test_before_the_model_is_loaded_everything_is_503(hello: RunningServer):
    with running_server(None) as server:
        health = server.http.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "loading"}
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/x")):
            response = server.http.request(method, path)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "model_loading"
        server.registry.add(hello.model)
        assert server.http.get("/health").json() == {"status": "ok"}
        assert server.http.get("/v1/models").status_code == 200


def test_models_can_be_fetched_by_the_ids_they_are_listed_with():
    names = ["fake", "library/fake:270m-base", "org/team/fake"]
    with running_server(serve_fake(ScriptedExecutor(), names)) as server:
        client = server.openai()
        assert [model.id for model in client.models.list()] == names
        for name in names:
            assert client.models.retrieve(name).id == name
        assert server.http.get("/v1/models/library/fake:270m-base").json()["max_model_len"] == 512
        assert server.http.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_health_answers_at_once_during_a_long_iteration(serve: Serve):
    gate = threading.Event()
    executor = ScriptedExecutor(script=b"ok", gate=gate)
    server = serve(executor)
    with server.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
        assert executor.entered.wait(10)
        assert server.http.get("/health", timeout=2).status_code == 200
        assert server.http.get("/metrics", timeout=2).status_code == 200
        gate.set()
        stream.read()


def test_a_dead_engine_is_unhealthy_and_says_so(serve: Serve):
    import asyncio

    server = serve(ScriptedExecutor())
    asyncio.run(server.model.parts.engine.shutdown())
    assert server.http.get("/health").status_code == 503
    response = server.http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(serve: Serve, stream: bool):
    running = threading.Semaphore(0)

    def slowly(batch: Batch) -> None:
        running.release()
        time.sleep(0.01)

    server = serve(ScriptedExecutor(script=b"x" * 500, fail=slowly))
    body = CHAT | ENDLESS | {"stream": stream}

    if stream:
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_bytes())
    else:
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/chat/completions", json=body, timeout=0.3)
    assert running.acquire(timeout=5)
    server.wait_for_metric('caudal_requests_finished_total{reason="cancelled"}', 1)
    server.wait_for_metric("caudal_requests_running", 0)
    assert server.metric('caudal_kv_blocks{state="used"}') == 0
    assert server.metric("caudal_generation_tokens_total") < 300


def test_half_of_the_clients_leave_and_nobody_else_notices(serve: Serve):
    executor = ScriptedExecutor(script=bytes(range(65, 91)) * 10, fail=lambda _: time.sleep(0.002))
    server = serve(executor, max_num_seqs=16)
    expected = bytes(executor.script).decode()
    openai_client = server.openai()
    answers: dict[int, str] = {}

    def client(number: int) -> None:
        text = ""
        with openai_client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": f"I am {number}"}],
            stream=True,
        ) as stream:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if number % 2 and len(text) > 5:
                    return
        answers[number] = text

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(0, 16, 2), expected)
    server.wait_for_metric("caudal_requests_running", 0)
    assert server.metric('caudal_kv_blocks{state="used"}') == 0
    assert server.metric('caudal_requests_finished_total{reason="stop"}') == 8


def test_a_failure_half_way_is_an_event_and_then_the_end(serve: Serve):
    batches = 0

    def fail(batch: Batch) -> None:
        nonlocal batches
        batches += 1
        if batches == 4:
            raise RuntimeError("the tensor caught fire")

    server = serve(ScriptedExecutor(script=b"x" * 50, fail=fail))
    response = server.http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.status_code == 200
    *_, failure, done, rest = response.text.split("\n\n")
    assert "the tensor caught fire" in failure
    assert failure.startswith('data: {"error":')
    assert (done, rest) == ("data: [DONE]", "")
    batches = 0
    with pytest.raises(openai.APIError, match="caught fire"):
        list(
            server.openai().chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "x"}], stream=True
            )
        )
    batches = 0
    response = server.http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert server.http.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_silence_is_bridged_by_comments(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("caudal.server.streaming.PING_INTERVAL", 0.05)
    gate = threading.Event()
    server = serve(ScriptedExecutor(script=b"ok", gate=gate))
    with server.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": ping"
        assert next(lines) == ""
        assert next(lines) == ": ping"
        gate.set()
        assert "data: [DONE]" in list(lines)


def test_prompts_that_break_their_own_prefix_are_counted_and_logged_once_for_each_place(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = serve(ScriptedExecutor(script=b"hello"))
    for number in range(3):
        prompt = f"{'x' * 20}{number}{'secret ' * 20}"
        server.openai().completions.create(model="fake", prompt=prompt)
    lost = 'caudal_prefix_lost_tokens_total{position="%d"}'
    assert server.metric(lost % 0) == 2 * 139
    assert server.metric(lost % 64) == 0
    [line] = [text for text in caplog.messages if "breaks its own prefix" in text]
    assert "at token 20 it has 1 tokens where one before it had 1 others, so that 139" in line
    assert "secret" not in caplog.text


def test_metrics_are_prometheus_text(serve: Serve):
    server = serve(ScriptedExecutor(script=b"hello"))
    prompt = "x" * 64
    for _ in range(2):
        server.openai().completions.create(model="fake", prompt=prompt)
    response = server.http.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert all(name.startswith(("caudal_", "process_")) for name in families)
    counts = {
        "caudal_prompt_tokens_total": 128,
        "caudal_prefix_cache_hit_tokens_total": 63,
        "caudal_generation_tokens_total": 12,
        "caudal_requests_waiting": 0,
        "caudal_requests_running": 0,
        "caudal_preemptions_total": 0,
        'caudal_requests_finished_total{reason="stop"}': 2,
    }
    for sample, expected in counts.items():
        assert server.metric(sample) == expected, sample
    blocks = sum(
        server.metric(f'caudal_kv_blocks{{state="{s}"}}') for s in ("used", "cached", "free")
    )
    assert blocks == 512
    for name in (
        "caudal_time_to_first_token_seconds",
        "caudal_request_queue_time_seconds",
        "caudal_e2e_request_latency_seconds",
    ):
        assert families[name].type == "histogram"
        assert server.metric(f"{name}_count") == 2
    assert server.metric("caudal_inter_token_latency_seconds_count") == 10


def test_nothing_is_fetched_from_elsewhere(hello: RunningServer):
    assert hello.http.get("/docs").status_code == 404
    assert hello.http.get("/redoc").status_code == 404
    assert "/v1/chat/completions" in hello.http.get("/openapi.json").json()["paths"]


def test_connections_stay_open_for_clients_that_think():
    assert ServerLimits().keep_alive_seconds >= 75


def test_a_port_in_use_and_an_address_that_is_not_ours():
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    with sock, pytest.raises(ListenError, match=f"127.0.0.1:{port}: another program.*--port"):
        listen("127.0.0.1", port)
    with pytest.raises(ListenError, match="--host"):
        listen("192.0.2.1", 0)


def test_models_have_what_clients_of_other_servers_read(hello: RunningServer):
    card = hello.http.get("/v1/models/fake").json()
    assert card["max_model_len"] == card["context_length"] == card["meta"]["n_ctx"] == 512
    assert card["meta"]["n_vocab"] == hello.model.parts.tokenizer.vocab_size
    assert card["aliases"] == ["fake"]
    assert card["parent"] is None
