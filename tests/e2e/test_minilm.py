"""all-MiniLM-L6-v2, through the store, against the reference's embeddings; with OpenAI's client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from caudal import LLM
from caudal.errors import UnsupportedTaskError
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from support.running_server import RunningServer, running_server

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "data" / "minilm_embeddings.json").read_text(encoding="utf-8")
)["rows"]
TEXTS = [row["text"] for row in REFERENCE]
EXPECTED = np.array([row["embedding"] for row in REFERENCE])


def cosines(vectors: Any) -> NDArray[np.float64]:
    ours = np.array(vectors, np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(EXPECTED, axis=1)
    result: NDArray[np.float64] = (ours * EXPECTED).sum(axis=1) / lengths
    return result


@pytest.fixture(scope="module")
def server(minilm: str) -> Iterator[RunningServer]:
    model = ModelService(ServiceParts.from_loaded(load_model(minilm, LoadOptions())))
    with running_server(model) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return server.openai()


def test_the_library_matches_the_reference(minilm: str) -> None:
    with LLM(minilm) as llm:
        results = llm.embed(TEXTS)
        assert [result.prompt_token_ids for result in results] == [
            row["tokens"] for row in REFERENCE
        ]
        assert (1 - cosines([result.outputs.embedding for result in results])).max() < 1e-6
        near, far = llm.score("capital of France", [TEXTS[2], "Bananas are yellow."])
        assert near.outputs.score > 0.8 > 0.2 > far.outputs.score
        again = llm.encode({"prompt_token_ids": REFERENCE[0]["tokens"]})
        assert again[0].outputs.embedding == results[0].outputs.embedding
        with pytest.raises(UnsupportedTaskError, match="can't generate text"):
            llm.generate("Hello")


def test_the_official_client_gets_the_same(client: openai.OpenAI) -> None:
    """Unless told otherwise it asks for base64, and decodes that itself."""
    answer = client.embeddings.create(model="minilm", input=TEXTS)
    assert (1 - cosines([each.embedding for each in answer.data])).max() < 1e-6
    assert [each.index for each in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == sum(len(row["tokens"]) for row in REFERENCE)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens


def test_every_form_of_input_gives_the_same_vector(
    client: openai.OpenAI, server: RunningServer
) -> None:
    tokens = REFERENCE[0]["tokens"]
    forms: list[Any] = [TEXTS[0], [TEXTS[0]], tokens, [tokens]]
    vectors = [
        client.embeddings.create(model="minilm", input=form, encoding_format="float")
        .data[0]
        .embedding
        for form in forms
    ]
    assert vectors.count(vectors[0]) == len(forms)
    assert len(vectors[0]) == 384
    body = {"model": "minilm", "input": TEXTS[0], "encoding_format": "base64", "user": "u"}
    raw = server.http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(raw), "<f4").tolist() == vectors[0]


def test_a_large_batch_is_in_order(client: openai.OpenAI) -> None:
    texts = [f"number {i}" for i in range(100)]
    batch = client.embeddings.create(model="minilm", input=texts)
    for i in (0, 57, 99):
        alone = client.embeddings.create(model="minilm", input=texts[i])
        assert alone.data[0].embedding == batch.data[i].embedding


def test_too_long_an_input_is_an_error_unless_it_may_be_cut(client: openai.OpenAI) -> None:
    long = "word " * 400
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", input=["short", long])
    assert caught.value.body == {
        "message": "input[1] has 402 tokens, but at most 256 tokens are read. Shorten it, or let "
        "it be cut by sending truncate_prompt_tokens.",
        "type": "invalid_request_error",
        "param": "input[1]",
        "code": "context_length_exceeded",
    }
    cut = client.embeddings.create(
        model="minilm", input=long, extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens == 256
    same = client.embeddings.create(model="minilm", input="word " * 254)
    assert same.data[0].embedding == cut.data[0].embedding


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"dimensions": 128}, "dimensions", "have 384 dimensions"),
        ({"encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": []}, "input", "1 to 2048 items"),
        ({"input": ["a"] * 2049}, "input", "1 to 2048 items"),
        ({"input": [1.5]}, "input", "must be a string"),
        ({"input": {"text": "a"}}, "input", "must be a string"),
        ({"input": [[]]}, "input", "must be a string"),
        ({"input": ["a", [1]]}, "input", "must be a string"),
        ({"input": [30522]}, "input", "has token id 30522"),
        ({"input": [-1]}, "input", "has token id -1"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "-1 or at least 3"),
        ({"normalise": True}, "normalise", "Did you mean normalize"),
    ],
)
def test_bad_requests_are_explained(
    client: openai.OpenAI, fields: dict[str, Any], param: str, message: str
) -> None:
    body = {"model": "minilm", "input": "a"} | fields
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.post("/embeddings", body=body, cast_to=object)
    assert caught.value.param == param


def test_the_models_own_size_may_be_named(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="minilm", input="a", dimensions=384)
    assert len(answer.data[0].embedding) == 384


def test_it_says_what_it_can_do(client: openai.OpenAI, server: RunningServer) -> None:
    card: Any = client.models.retrieve("minilm")
    assert card.capabilities == ["embed", "score"]
    assert card.max_model_len == 256
    with pytest.raises(openai.BadRequestError, match=r"can't generate text\. It serves /v1/emb"):
        client.chat.completions.create(
            model="minilm", messages=[{"role": "user", "content": "Hello"}]
        )
    message = {"role": "user", "content": "a"}
    for route, body in {
        "/v1/completions": {"prompt": "a"},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"max_tokens": 1, "messages": [message]},
    }.items():
        answer = server.http.post(route, json={"model": "minilm", **body})
        assert answer.status_code == 400, route
        assert "can't generate text" in answer.text


def test_reranking(server: RunningServer) -> None:
    documents = ["Bananas are yellow.", TEXTS[2], {"text": "Berlin is a city in Germany."}]
    body = {"model": "minilm", "query": "What is the capital of France?", "documents": documents}
    answer = server.http.post("/v1/rerank", json=body).json()
    assert [each["index"] for each in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["document"] == {"text": TEXTS[2]}
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["usage"]["total_tokens"] > 20
    brief = body | {"top_n": 1, "return_documents": False}
    [best] = server.http.post("/v1/rerank", json=brief).json()["results"]
    assert best == {"index": 1, "relevance_score": scores[0]}


def test_scores(server: RunningServer) -> None:
    def score(first: Any, second: Any) -> Any:
        body = {"model": "minilm", "text_1": first, "text_2": second}
        return server.http.post("/v1/score", json=body)

    cosine = float(EXPECTED[2] @ EXPECTED[3])
    one = score(TEXTS[2], TEXTS[3]).json()["data"]
    assert one == [{"index": 0, "object": "score", "score": pytest.approx(cosine, abs=1e-5)}]
    many = score(TEXTS[2], [TEXTS[2], TEXTS[3]]).json()["data"]
    assert [each["score"] for each in many] == pytest.approx([1.0, cosine], abs=1e-5)
    rows = score([TEXTS[2], TEXTS[3]], [TEXTS[3], TEXTS[2]]).json()["data"]
    assert rows[0]["score"] == rows[1]["score"]
    uneven = score(["a", "b"], ["c"])
    assert uneven.status_code == 400
    assert uneven.json()["error"]["param"] == "text_2"
    assert score([], "a").status_code == 400
