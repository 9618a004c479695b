"""Embeddings of a generative model, on a fake one (who waits for whom: engine/test_pooling.py)."""

from __future__ import annotations

import pytest

from caudal.models.embedding_prompts import EmbeddingPrompts
from caudal.models.pooling import Pooling
from caudal.service.embedding import Embedder
from caudal.service.facts import ServedFacts
from support.fake_executor import state
from support.fake_facts import fake_facts
from support.fake_model import ByteTokenizer, ScriptedExecutor, changed, serve_fake
from support.running_server import RunningServer, Serve, running_server

TEXT = "Hello"


def body(text: str = TEXT) -> dict[str, object]:
    return {"model": "fake", "input": text, "encoding_format": "float"}


def test_a_generative_model_embeds_too(hello: RunningServer) -> None:
    answer = hello.http.post("/v1/embeddings", json=body()).json()
    assert answer["data"][0]["embedding"] == [state(list(TEXT.encode()))]
    assert answer["usage"] == {"prompt_tokens": len(TEXT), "total_tokens": len(TEXT)}
    scores = hello.http.post(
        "/v1/score", json={"model": "fake", "text_1": "a", "text_2": ["b", "c"]}
    ).json()
    assert len(scores["data"]) == 2


def test_its_card_says_so(hello: RunningServer) -> None:
    card = hello.http.get("/v1/models/fake").json()
    assert card["capabilities"] == ["embed", "generate", "score"]


def test_failures_are_reported(serve: Serve) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("the device fell off")

    server = serve(ScriptedExecutor(fail=fail))
    reply = server.http.post("/v1/embeddings", json=body())
    assert reply.status_code == 500
    assert "the device fell off" in reply.json()["error"]["message"]
    assert server.metric('caudal_requests_finished_total{reason="failed"}') == 1


def test_what_is_refused_is_no_failure(hello: RunningServer) -> None:
    name = 'caudal_requests_finished_total{reason="failed"}'
    before = hello.metric(name)
    reply = hello.http.post("/v1/embeddings", json={**body(), "truncate_prompt_tokens": 0})
    assert reply.status_code == 400
    assert hello.metric(name) == before


def test_they_are_counted(hello: RunningServer) -> None:
    name, queued = (
        'caudal_requests_finished_total{reason="stop"}',
        "caudal_request_queue_time_seconds_count",
    )
    before, queued_before = hello.metric(name), hello.metric(queued)
    hello.http.post("/v1/embeddings", json={**body(), "input": ["a", "b", "c"]})
    assert hello.metric(name) == before + 1
    assert hello.metric(queued) == queued_before + 3


def test_reranking_as_text_embeddings_inference_has_it(hello: RunningServer) -> None:
    query = {"query": "a", "texts": ["xyz", "a", "b"]}
    usual = {"query": "a", "documents": query["texts"]}
    expected = [
        {"index": each["index"], "score": each["relevance_score"]}
        for each in hello.http.post("/rerank", json=usual).json()["results"]
    ]
    assert hello.http.post("/rerank", json=query).json() == expected
    best = hello.http.post("/rerank", json=query | {"return_text": True, "top_n": 1}).json()
    assert best == [{**expected[0], "text": query["texts"][expected[0]["index"]]}]


def test_what_is_missing_in_a_document_is_named(hello: RunningServer) -> None:
    wrong = {"query": "a", "documents": ["a", {"content": "b"}]}
    error = hello.http.post("/v1/rerank", json=wrong).json()["error"]
    assert (error["param"], error["message"]) == (
        "documents[1].text",
        "documents[1].text is required.",
    )


def test_reranking_needs_documents_once(hello: RunningServer) -> None:
    for wrong in (
        {},
        {"documents": []},
        {"documents": None},
        {"documents": 1},
        {"documents": ["a"], "texts": ["a"]},
        {"texts": [1]},
        {"texts": ["a"], "raw_scores": True},
    ):
        refused = hello.http.post("/rerank", json={"query": "a"} | wrong)
        assert refused.status_code == 400


def test_reranking_cuts_what_is_too_long_where_it_may(hello: RunningServer) -> None:
    long = {"query": "a", "texts": ["x" * 600]}
    assert hello.http.post("/rerank", json=long).status_code == 400
    assert hello.http.post("/rerank", json=long | {"truncate": True}).status_code == 200


@pytest.mark.parametrize("truncate", [True, "END"])
def test_truncate_under_other_servers_names(hello: RunningServer, truncate: object):
    body = {"model": "fake", "input": "x" * 600}
    refused = hello.http.post("/v1/embeddings", json=body)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    for off in (False, "NONE"):
        response = hello.http.post("/v1/embeddings", json=body | {"truncate": off})
        assert response.status_code == 400
    taken = hello.http.post("/v1/embeddings", json=body | {"truncate": truncate})
    assert taken.json()["usage"]["prompt_tokens"] == 512
    start = hello.http.post("/v1/embeddings", json=body | {"truncate": "START"})
    assert start.json()["error"]["param"] == "truncate"


def test_vectors_are_of_length_one_where_that_is_asked_for(hello: RunningServer):
    def vector(**fields: object) -> list[float]:
        body = {"model": "fake", "input": "Hello", "input_type": "query", **fields}
        response = hello.http.post("/v1/embeddings", json=body)
        assert response.headers["x-caudal-ignored"] == "input_type"
        found: list[float] = response.json()["data"][0]["embedding"]
        return found

    plain = vector()
    assert vector(normalize=False) == plain
    unknown = hello.http.post(
        "/v1/embeddings", json={"model": "fake", "input": "x", "prompt_name": "query"}
    )
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "prompt_name"
    length = sum(value * value for value in plain) ** 0.5
    assert vector(normalize=True) == pytest.approx([value / length for value in plain])
    assert length != pytest.approx(1)


def test_scoring_has_vllms_newer_names(hello: RunningServer) -> None:
    old = hello.http.post("/score", json={"text_1": "a", "text_2": ["b", "c"]}).json()
    new = hello.http.post("/score", json={"queries": "a", "documents": ["b", "c"]}).json()
    assert new["data"] == old["data"]
    for body, blamed in (
        ({"queries": "a"}, "text_2"),
        ({"text_2": "a"}, "text_1"),
        ({"queries": "a", "documents": ["x" * 600]}, "documents"),
    ):
        refused = hello.http.post("/score", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith(blamed)


def test_what_a_model_was_trained_to_read_comes_before_texts_that_are_said_to_be_such() -> None:
    prompts = EmbeddingPrompts({"query": "asked: ", "passage": "p: "})
    pooling = Pooling(kind="last", normalize=False, prompts=prompts)
    plain = serve_fake(ScriptedExecutor())
    embedder = Embedder(plain.parts.engine, plain.parts.tokenizer, pooling, 1, lambda update: None)
    facts = ServedFacts(loaded=fake_facts(pooling=pooling, vocab_size=ByteTokenizer.vocab_size))
    with running_server(changed(plain, embedder=embedder, facts=facts)) as server:

        def embedded(**more: str) -> tuple[object, str | None]:
            answer = server.http.post("/v1/embeddings", json=body() | more)
            [made] = answer.json()["data"]
            return made["embedding"], answer.headers.get("x-caudal-ignored")

        def read(text: str) -> object:
            return [state(list(text.encode()))]

        assert embedded() == (read(TEXT), None)
        assert embedded(input_type="search_query") == (read(f"asked: {TEXT}"), None)
        assert embedded(input_type="document") == (read(f"p: {TEXT}"), None)
        assert embedded(input_type="image") == (read(TEXT), "input_type")
        assert embedded(input_type="query", prompt_name="passage") == (read(f"p: {TEXT}"), None)
        empty = server.http.post("/v1/embeddings", json=body("") | {"input_type": "query"})
        assert empty.status_code == 400
        wrong = server.http.post("/v1/embeddings", json=body() | {"prompt_name": "title"})
        assert wrong.json()["error"]["param"] == "prompt_name"
        ranked = server.http.post("/v1/rerank", json={"query": "a", "documents": ["bc", "def"]})
        assert ranked.json()["usage"]["total_tokens"] == len("asked: ap: bcp: def")
