"""What tools ask a server about itself, and the other names of its routes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from caudal import __version__
from caudal.backends.backend import MemoryKinds, PagedKV
from caudal.engine.drafting.speculation import Speculation
from caudal.loading.facts import DraftFacts
from caudal.service.facts import ServedFacts
from support.fake_facts import fake_facts
from support.fake_model import ByteTokenizer, ScriptedExecutor, changed, serve_fake
from support.running_server import RunningServer, Serve, running_server

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_the_version_is_caudals(hello: RunningServer):
    assert hello.http.get("/version").json() == {"version": __version__}


def test_server_info_has_the_limits_under_sglangs_names(serve: Serve):
    server = serve(ScriptedExecutor(num_blocks=128), max_num_seqs=3, max_queue=7)
    for path in ("/server_info", "/get_server_info"):
        info = server.http.get(path).json()
        assert info["served_model_name"] == "fake"
        assert info["context_length"] == 512
        assert info["max_total_tokens"] == info["max_total_num_tokens"] == 128 * 16
        assert info["max_running_requests"] == 3
        assert info["max_queued_requests"] == 7
        assert info["disable_radix_cache"] is False
        assert info["speculative_algorithm"] is info["speculative_num_draft_tokens"] is None
        assert info["internal_states"] == [{"num_running_reqs": 0, "num_queue_reqs": 0}]


def test_server_info_says_what_places_for_prefixes_hold_but_not_where_they_are(
    serve: Serve, tmp_path: Path
):
    store = str(tmp_path / "store")
    server = serve(
        ScriptedExecutor(), prefix_memory=4096, prefix_store=store, prefix_store_size=1 << 20
    )
    answer = server.http.get("/server_info")
    info = answer.json()
    assert info["prefix_memory"] == {"bytes": 4096, "tokens": 4096 // 8}
    assert info["prefix_store"] == {"bytes": 1 << 20, "tokens": (1 << 20) // 8}
    assert store not in answer.text


def test_server_info_says_what_guesses_tokens_and_how_many(serve: Serve):
    server = serve(ScriptedExecutor(), speculative=Speculation(num_speculative_tokens=7))
    info = server.http.get("/server_info").json()
    assert (info["speculative_algorithm"], info["speculative_num_draft_tokens"]) == ("NGRAM", 7)


@pytest.mark.parametrize("guesses", [None, Speculation()])
def test_llama_cpps_routes_say_whether_tokens_are_guessed(
    serve: Serve, guesses: Speculation | None
):
    server = serve(ScriptedExecutor(script=b"x"), speculative=guesses)
    said = server.http.get("/props").json()["default_generation_settings"]
    assert said["speculative"] is (guesses is not None)
    assert said["params"]["speculative.types"] == ("none" if guesses is None else "ngram-simple")
    assert {slot["speculative"] for slot in server.http.get("/slots").json()} == {
        guesses is not None
    }
    answer = server.http.post("/completion", json={"prompt": "x", "n_predict": 1}).json()
    assert answer["generation_settings"] == said["params"] | {"n_predict": 1, "max_tokens": 1}


def test_a_models_card_counts_its_draft_model():
    kept = MemoryKinds(kv=PagedKV(num_blocks=8, block_size=16, bytes_per_token=4))
    draft = DraftFacts(
        model="small",
        architecture="fake",
        matrices={"Q4_1": 2},
        max_model_len=512,
        weight_bytes=77,
        weights_mapped=False,
        memory=kept,
        state_bytes=99,
    )
    facts = ServedFacts(loaded=fake_facts(draft=draft, vocab_size=ByteTokenizer.vocab_size))
    with running_server(changed(serve_fake(ScriptedExecutor()), facts=facts)) as server:
        card = server.http.get("/v1/models/fake").json()["facts"]
    about = [card[f"draft_{name}"] for name in ("model", "weight_bytes", "kv_bytes", "state_bytes")]
    assert about == ["small", "77", "512", "99"]


def test_server_info_has_what_a_measurement_needs_to_be_made_again(hello: RunningServer):
    about = hello.http.get("/server_info").json()["caudal"]
    assert about["fingerprint"].startswith("caudal-")
    assert about["instruction_set"] == "python"
    assert int(about["machine"]["usable_processors"]) >= 1
    assert int(about["machine"]["memory_bytes"]) > 2**20
    assert about["weights_sha256"] is None  # of no file


def test_model_info_says_what_kind_of_model_it_is(hello: RunningServer):
    for path in ("/model_info", "/get_model_info"):
        info = hello.http.get(path).json()
        assert info["is_generation"] is True
        assert info["model_type"] == "fake"
        assert info["model_path"] == "fake"


def test_props_are_those_of_the_model(serve: Serve):
    server = serve(ScriptedExecutor(), max_num_seqs=3)
    props = server.http.get("/props").json()
    assert props["total_slots"] == 3
    assert props["model_alias"] == "fake"
    assert props["chat_template"] == "role:content"
    assert props["bos_token"] == ""
    assert props["eos_token"] == "<|end|>"
    assert props["modalities"] == {"vision": False, "video": False, "audio": False}
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["n_predict"] == -1


def test_slots_are_taken_while_sequences_run(serve: Serve):
    executor = ScriptedExecutor(script=b"x" * 500, fail=lambda _: time.sleep(0.01))
    server = serve(executor, max_num_seqs=2)

    def taken(query: str = "") -> list[bool]:
        slots: list[dict[str, Any]] = server.http.get(f"/slots{query}").json()
        assert [slot["id"] for slot in slots] == [0, 1]
        assert all(slot["n_ctx"] == 512 for slot in slots)
        return [slot["is_processing"] for slot in slots]

    assert taken("?fail_on_no_slot=1") == [False, False]
    for n, expected in ((1, [True, False]), (2, [True, True])):
        body = {"model": "fake", "prompt": "x", "n": n, "stream": True, "max_tokens": 400}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_bytes())
            assert taken() == expected
            full = server.http.get("/slots?fail_on_no_slot=1")
            assert full.status_code == (503 if n == 2 else 200)
        deadline = time.monotonic() + 10
        while any(taken()):
            assert time.monotonic() < deadline, "a place is still taken"
            time.sleep(0.01)


@pytest.mark.parametrize("base", ["", "/v1"])
def test_clients_may_leave_v1_out(hello: RunningServer, base: str):
    http = hello.http
    chat = {"model": "fake", "messages": MESSAGES}
    answer = http.post(f"{base}/chat/completions", json=chat).json()
    assert answer["choices"][0]["message"]["content"] == "Hello, día!"
    count = http.post(f"{base}/chat/completions/input_tokens", json=chat).json()
    assert count["input_tokens"] > 0
    completion = {"model": "fake", "prompt": "x"}
    assert http.post(f"{base}/completions", json=completion).json()["choices"]
    made = http.post(f"{base}/responses", json={"model": "fake", "input": "Hi"}).json()
    assert http.get(f"{base}/responses/{made['id']}").json()["id"] == made["id"]
    embedding = {"model": "fake", "input": "x"}
    assert http.post(f"{base}/embeddings", json=embedding).json()["data"]
    score = {"model": "fake", "text_1": "x", "text_2": "y"}
    assert http.post(f"{base}/score", json=score).json()["data"]
    assert http.get(f"{base}/models").json()["data"][0]["id"] == "fake"
    assert http.get(f"{base}/models/fake").json()["id"] == "fake"


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
def test_reranking_has_the_names_that_clients_know(hello: RunningServer, path: str):
    body = {"model": "fake", "query": "x", "documents": ["y", "z"]}
    answer = hello.http.post(path, json=body)
    assert len(answer.json()["results"]) == 2


@pytest.mark.parametrize("path", ["/modelsx", "/completionsx", "/v1/v1/models", "/v2/models"])
def test_other_paths_are_no_routes(hello: RunningServer, path: str):
    assert hello.http.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/models", "/metrics", "/props"])
def test_head_answers_as_get_without_the_body(hello: RunningServer, path: str):
    head, get = hello.http.head(path), hello.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert hello.http.get(path).status_code == 200, "the connection is still in step"


def test_head_of_no_route_is_404(hello: RunningServer):
    assert hello.http.head("/nothing").status_code == 404
    assert hello.http.head("/v1/completions").status_code == 405


def test_every_other_name_needs_the_key(serve: Serve):
    server = serve(ScriptedExecutor(), api_key="sesame")
    for path in ("/models", "/props", "/slots", "/version", "/server_info", "/model_info"):
        assert server.http.get(path).status_code == 401
        assert server.http.get(path, headers={"x-api-key": "sesame"}).status_code == 200
    for path in ("/health", "/v1/health", "/ping"):
        assert server.http.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        ("/v1/score", {"text_1": "x", "text_2": "y"}),
    ],
)
def test_who_names_no_model_means_the_one_that_is_served(
    hello: RunningServer, path: str, body: dict[str, Any]
):
    for nothing in ({}, {"model": None}, {"model": ""}):
        answer = hello.http.post(path, json=body | nothing)
        assert answer.status_code == 200
        assert answer.json()["model"] == "fake"
    assert hello.http.post(path, json=body | {"model": "other"}).status_code == 404


def test_a_stream_says_the_model_too(hello: RunningServer):
    stream = hello.http.post("/v1/completions", json={"prompt": "x", "stream": True}).text
    assert stream.count('"model":"fake"') == stream.count("data: {") > 0
