"""Many models behind one address: found, loaded and unloaded as requests want, over HTTP."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import ollama
import pytest

from caudal.errors import ModelLoadError
from caudal.server import waiting_for_models
from support.fake_model import ScriptedExecutor, serve_fake
from support.made_up_models import says, serving
from support.running_server import RunningServer

HI = [{"role": "user", "content": "Hi"}]


def test_every_api_answers_for_any_model_by_its_name():
    with serving(a=says("from a"), b=says("from b"), c=says("from c")) as (server, launcher):
        for name in "abca":
            chat = server.openai().chat.completions.create(model=name, messages=HI)  # type: ignore[arg-type]
            assert chat.choices[0].message.content == f"from {name}"
            assert chat.model == name
            message = server.anthropic().messages.create(
                model=name,
                messages=HI,  # type: ignore[arg-type]
                max_tokens=10,
            )
            assert message.content[0].text == f"from {name}"
            body = {"model": name, "prompt": "x", "keep_alive": "1h"}
            answer = server.http.post("/completion", json=body).json()
            assert answer["content"] == f"from {name}"
            parts = ollama.Client(server.url).generate(name, "x", stream=True)
            assert "".join(part.response or "" for part in parts) == f"from {name}"
            stream = server.openai().responses.create(model=name, input="x", stream=True)
            assert "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert len(launcher.started) == 4
        unknown = server.http.post("/v1/completions", json={"model": "z", "prompt": "x"})
        assert unknown.status_code == 404
        assert "serves: a, b, c" in unknown.json()["error"]["message"]
        unnamed = server.http.post("/v1/completions", json={"prompt": "x"})
        assert unnamed.status_code == 400
        assert unnamed.json()["error"]["param"] == "model"


def test_ollamas_clients_load_and_unload_models_by_asking_nothing():
    with serving(a=says("a"), b=says("b")) as (server, launcher):
        client = ollama.Client(server.url)

        def loaded() -> list[str]:
            return [each["name"] for each in server.http.get("/ps").json()["models"]]

        assert client.chat("a", keep_alive=-1).done_reason == "load"
        assert (loaded(), launcher.started) == (["a"], ["a"])
        assert client.generate("b", keep_alive=0).done_reason == "unload"  # it wasn't loaded
        assert launcher.started == ["a"]
        assert client.generate("a", keep_alive="0s").done_reason == "unload"
        assert loaded() == []
        with pytest.raises(ollama.ResponseError, match="model 'z' not found"):
            client.chat("z", keep_alive=0)


def test_models_are_listed_loaded_and_unloaded():
    with serving(a=says("a"), b=says("b")) as (server, _):
        assert server.http.get("/ready").json() == {"status": "ok"}

        def states() -> dict[str, str]:
            cards = server.http.get("/v1/models").json()["data"]
            return {card["id"]: card["status"]["value"] for card in cards}

        assert states() == {"a": "unloaded", "b": "unloaded"}
        assert server.http.get("/v1/models/a").json()["max_model_len"] is None
        assert server.http.get("/props?model=a&autoload=false").status_code == 503
        assert states() == {"a": "unloaded", "b": "unloaded"}
        for path in ("/models/load", "/v1/models/load"):
            loaded = server.http.post(path, json={"model": "b"})
            assert (loaded.status_code, loaded.json()) == (200, {"success": True})
        assert states() == {"a": "unloaded", "b": "loaded"}
        assert server.http.get("/v1/models/b").json()["max_model_len"] == 512
        assert server.http.get("/server_info?model=a").json()["served_model_name"] == "a"
        listed = server.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
        assert [model["id"] for model in listed["data"]] == ["a", "b"]
        shown = server.http.get("/ps").json()
        assert (shown["memory"], shown["memory_used"]) == (30, 28)
        assert [(each["name"], each["running"]) for each in shown["models"]] == [("a", 0), ("b", 0)]
        assert 290 < shown["models"][0]["expires_in"] <= 300
        metrics = server.http.get("/metrics").text
        assert 'caudal_kv_blocks{model="a",state="used"} 0.0' in metrics
        assert 'caudal_model_memory_bytes{model="b"} 14.0' in metrics
        assert metrics.count("# TYPE caudal_kv_blocks gauge") == 1
        only = server.http.get("/metrics?model=a").text
        assert 'caudal_kv_blocks{model="a",state="used"} 0.0' in only
        assert 'model="b"' not in only
        assert server.http.post("/models/unload", json={"model": "b"}).json() == {"success": True}
        assert states() == {"a": "loaded", "b": "unloaded"}
        missing = server.http.post("/models/unload", json={"model": "z"})
        assert missing.json()["error"]["code"] == "model_not_found"
        body = {"model": "a", "prompt": "x", "keep_alive": 0}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        deadline = time.monotonic() + 10
        while states()["a"] != "unloaded":
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("value", ["soon", "", True, [], "5 m"])
def test_what_is_no_duration_is_refused_by_name(hello: RunningServer, value: object):
    body = {"model": "fake", "prompt": "x", "keep_alive": value}
    response = hello.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert "keep_alive" in response.json()["error"]["message"]


def test_a_stream_that_waits_for_its_model_gets_comments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting_for_models, "PING_INTERVAL", 0.05)
    slow, broken, quick = says("at last"), says(""), says("no hurry")
    slow.open_seconds = broken.open_seconds = 0.3
    broken.open_error = ModelLoadError("broken", "tensor x is missing")
    with serving(slow=slow, broken=broken, quick=quick) as (server, _):

        def stream(path: str, **body: Any) -> tuple[int, str]:
            answer = server.http.post(path, json={"stream": True, "messages": HI} | body)
            return answer.status_code, answer.text

        status, text = stream("/v1/chat/completions", model="slow", zeal=1)
        assert status == 200
        assert text.startswith(": ping\n\n")
        assert ": x-caudal-ignored: zeal\n\n" in text
        assert "".join(re.findall('"content":"([^"]*)"', text)) == "at last"
        assert text.endswith("data: [DONE]\n\n")
        status, text = stream("/v1/chat/completions", model="broken")
        assert status == 200
        assert text.startswith(": ping\n\n")
        assert "tensor x is missing" in text
        assert text.endswith("data: [DONE]\n\n")
        status, text = stream("/v1/chat/completions", model="broken")  # known by now
        assert status == 500
        status, text = stream("/v1/chat/completions", model="quick")
        assert (status, text.count("ping")) == (200, 0)
        broken.open_error = ModelLoadError("broken", "another is")
        time.sleep(1)
        status, text = stream("/v1/messages", model="broken", max_tokens=5)
        assert status == 200
        assert "event: error\ndata: " in text
        assert "another is" in text


def test_a_client_that_leaves_while_its_model_is_loaded_waits_no_more():
    slow = says("at last")
    slow.open_seconds = 0.5
    with serving(slow=slow) as (server, _):
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/v1/completions", json={"model": "slow", "prompt": "x"}, timeout=0.2)
        deadline = time.monotonic() + 10
        while server.http.get("/ps").json()["models"][0]["waiting"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        body = {"model": "slow", "prompt": "x", "timeout": 0.01}
        late = server.http.post("/v1/completions", json=body)
        assert late.status_code in (504, 200)


def test_a_background_answer_keeps_its_model():
    endless = says("x" * 300)
    executor = ScriptedExecutor(script=b"x" * 300, fail=lambda _: time.sleep(0.005))
    endless.make_service = lambda name: serve_fake(executor, (name,))
    with serving(a=endless, b=says("b", fixed=20)) as (server, launcher):
        client = server.openai()
        made = client.responses.create(model="a", input="x", background=True)
        assert client.completions.create(model="b", prompt="x").choices[0].text == "b"
        assert client.responses.retrieve(made.id).status == "completed"
        assert launcher.started == ["a", "b"]
