"""Adapters over HTTP: named by requests, loaded and unloaded while others are answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

LONG = b"base " * 40


def executor() -> ScriptedExecutor:
    return ScriptedExecutor(
        script=LONG,
        by_adapter={"sql": b"SELECT " * 30, "poet": "¡Oh! ".encode() * 30, "new": b"INSERT"},
        num_blocks=2048,
    )


@pytest.fixture
def served(serve: Serve) -> RunningServer:
    return serve(executor(), allow_runtime_lora=True)


def load(server: RunningServer, name: str, **fields: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": f"/adapters/{name}.gguf"} | fields
    return server.http.post("/v1/load_lora_adapter", json=body)


def unload(server: RunningServer, name: str) -> httpx.Response:
    return server.http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def said(server: RunningServer, model: str, **fields: Any) -> tuple[str, str]:
    """What is answered to a prompt that is the same for all, and under which name."""
    body = {"model": model, "prompt": "Who are you?", "max_tokens": 20} | fields
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"][:6], answer.json()["model"]


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["message"]


def test_adapters_are_models_of_their_own_to_every_api(served: RunningServer):
    assert load(served, "sql").text == "Success: LoRA adapter 'sql' added successfully."
    assert load(served, "poet").status_code == 200
    for _ in range(2):  # cold, and warm
        assert said(served, "fake") == ("base b", "fake")
        assert said(served, "sql") == ("SELECT", "sql")
        assert said(served, "poet") == ("¡Oh! ¡", "poet")
    cards = {card["id"]: card for card in served.http.get("/v1/models").json()["data"]}
    assert list(cards) == ["fake", "sql", "poet"]
    assert (cards["fake"]["root"], cards["fake"]["parent"]) == ("fake", None)
    assert (cards["sql"]["root"], cards["sql"]["parent"]) == ("/adapters/sql.gguf", "fake")
    assert served.openai().models.retrieve("poet").id == "poet"
    messages: Any = [{"role": "user", "content": "Who?"}]
    chat = served.openai().chat.completions.create(model="sql", messages=messages, max_tokens=9)
    assert (chat.model, chat.choices[0].message.content) == ("sql", "SELECT SE")
    plain = served.openai().chat.completions.create(model="fake", messages=messages, max_tokens=9)
    assert chat.system_fingerprint != plain.system_fingerprint
    message = served.anthropic().messages.create(model="sql", messages=messages, max_tokens=6)
    assert (message.model, message.content[0].text) == ("sql", "SELECT")
    response = served.openai().responses.create(model="poet", input="Who?", max_output_tokens=16)
    assert (response.model, response.output_text[:5]) == ("poet", "¡Oh! ")
    vectors = [
        served.openai().embeddings.create(model=name, input="text").data[0].embedding
        for name in ("fake", "sql", "poet", "sql")
    ]
    assert vectors[1] == vectors[3]
    assert len({each[0] for each in vectors}) == 3


def test_a_field_names_an_adapter_too_and_as_llama_cpp_does(served: RunningServer):
    load(served, "sql")
    load(served, "poet")
    [sql, poet] = served.http.get("/lora-adapters").json()
    assert (sql["id"], sql["path"], sql["scale"]) == (0, "/adapters/sql.gguf", 0.0)
    assert said(served, "fake", lora="poet") == ("¡Oh! ¡", "poet")
    scales = [{"id": poet["id"], "scale": 0.0}, {"id": sql["id"], "scale": 1}]
    assert said(served, "fake", lora=scales) == ("SELECT", "sql")
    assert said(served, "fake", lora=scales[:1]) == said(served, "fake", lora=[])
    native = served.http.post("/completion", json={"prompt": "?", "n_predict": 6, "lora": scales})
    assert native.json()["content"] == "SELECT"
    for path, body in (
        ("/v1/embeddings", {"input": "text"}),
        ("/v1/responses", {"input": "Who?", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 6}),
    ):
        by_field = served.http.post(path, json={"model": "fake", "lora": "sql", **body})
        by_name = served.http.post(path, json={"model": "sql", **body})
        for key in ("model", "data", "content"):
            assert by_field.json().get(key) == by_name.json().get(key), by_field.text
    for wrong, why in (
        ("nobody", "no adapter 'nobody'; there are: 0 (sql), 1 (poet)"),
        ([{"id": 7, "scale": 1.0}], r"no adapter 7; there are: 0 (sql), 1 (poet)"),
        ([{"id": 0, "scale": 0.5}], "scale must be 0 or 1, but is 0.5"),
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": 1}], "one adapter at most"),
    ):
        body = {"model": "fake", "prompt": "?", "lora": wrong}
        answer = served.http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora")
        assert why in answer.json()["error"]["message"]
    assert served.http.post("/lora-adapters", json=scales[:1]).json() == {"success": True}
    for wrong in (scales, scales[:1] * 2000 + scales):
        assert served.http.post("/lora-adapters", json=wrong).status_code == 400


def test_what_can_not_be_loaded_or_unloaded_is_told_as_vllm_does(served: RunningServer):
    load(served, "sql")
    for answer, status, kind, message in (
        (load(served, "sql"), 400, "InvalidUserInput", "has already been loaded"),
        (load(served, "fake"), 400, "InvalidUserInput", "needs a name of its own"),
        (load(served, "x", lora_path="/missing"), 404, "NotFoundError", "No adapter found for"),
        (load(served, "x", lora_path="/broken"), 400, "invalid_request_error", "it is broken"),
        (load(served, ""), 400, "invalid_request_error", "must be provided"),
        (load(served, "x", model="nobody"), 404, "invalid_request_error", "does not exist"),
        (unload(served, "nobody"), 404, "NotFoundError", "'nobody' cannot be found"),
        (unload(served, ""), 400, "invalid_request_error", "needs to be provided"),
    ):
        assert refusal(answer)[:2] == (status, kind), answer.text
        assert message in refusal(answer)[2]
    assert load(served, "sql", lora_path="/b/new", load_inplace=True).status_code == 200
    assert said(served, "sql") == ("INSERT", "sql")
    assert unload(served, "sql").text == "Success: LoRA adapter 'sql' removed successfully."
    assert [each["id"] for each in served.http.get("/v1/models").json()["data"]] == ["fake"]
    with pytest.raises(openai.NotFoundError, match="This server serves: fake"):
        served.openai().completions.create(model="sql", prompt="?")


def test_adapters_come_and_go_by_request_only_where_that_is_allowed(serve: Serve):
    server = serve(executor())
    for answer in (load(server, "sql"), unload(server, "sql")):
        assert answer.status_code == 403
        assert "--allow-runtime-lora" in answer.json()["error"]["message"]


def test_adapters_come_and_go_under_load_and_what_runs_is_answered(served: RunningServer):
    load(served, "poet")

    def ask(model: str) -> str:
        body = {"model": model, "prompt": "?", "max_tokens": 100, "stream": True}
        with served.http.stream("POST", "/v1/completions", json=body) as answer:
            return answer.read().decode()

    def expect(model: str, text: str) -> None:
        for _ in range(6):
            events = ask(model)
            assert events.endswith("[DONE]\n\n")
            assert events.count(text) > 5

    with ThreadPoolExecutor(4) as threads:
        asking = [
            threads.submit(expect, model, text)
            for model, text in (("fake", "e"), ("fake", "e"), ("poet", "h"))
        ]
        for _ in range(5):
            assert load(served, "sql").status_code == 200
            running = threads.submit(ask, "sql")
            while (
                not running.done() and served.metric('caudal_adapter_requests{adapter="sql"}') < 1
            ):
                pass
            assert unload(served, "sql").status_code == 200
            assert running.result().count("S") > 5
        for each in asking:
            each.result()
    assert served.metric('caudal_adapter_requests{adapter="poet"}') == 0
    with pytest.raises(KeyError):
        served.metric('caudal_adapter_requests{adapter="sql"}')
