"""Fields that nobody knows or that have no effect: taken, and said; misspellings refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter, ValidationError

from caudal.reading.fields import (
    MAX_UNKNOWN_FIELDS,
    FieldReading,
    RequestObject,
    UnknownFieldError,
    UnsupportedFieldError,
    ignored_fields,
)
from caudal.server.anthropic.schema import MessageRequest
from caudal.server.llama_cpp.completion_schema import NativeCompletionRequest
from caudal.server.ollama.embed import EmbedRequest
from caudal.server.ollama.schema import ChatRequest, GenerateRequest
from caudal.server.openai.chat_schema import ChatCompletionRequest
from caudal.server.openai.embeddings import EmbeddingRequest
from caudal.server.openai.rerank import RerankRequest
from caudal.server.openai.responses_schema import ResponseRequest
from caudal.server.openai.schema import CompletionRequest
from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}


class Part(RequestObject):
    hints: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    text: str


class Body(RequestObject):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"store": (False,)}

    max_tokens: int | None = None
    temperature: float | None = None
    parts: list[Part] | None = None
    part: Part | None = None


class LaterBody(Body):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"background": (False,)}


def cause_of(data: dict[str, Any], kind: type[RequestObject] = Body, **reading: bool) -> Exception:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data, context=FieldReading(**reading))
    cause = caught.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, Exception)
    return cause


def test_what_is_unknown_is_told_apart_wherever_it_stands():
    data = {
        "zeal": 1,
        "parts": [{"text": "a", "id": "x"}, {"text": "b", "id": "y", "cache_control": {"a": 1}}],
        "part": {"text": "c", "mood": [0]},
    }
    reading = FieldReading()
    body = Body.model_validate(data, context=reading)
    assert reading.found_ignored
    assert ignored_fields(body) == ["zeal", "parts[].id", "parts[].cache_control", "part.mood"]
    assert ignored_fields(body) == []
    assert body.model_dump(exclude_none=True) == {
        "parts": [{"text": "a"}, {"text": "b"}],
        "part": {"text": "c"},
    }


@pytest.mark.parametrize(
    "data",
    [
        {"zeal": None, "store": None, "part": {"text": "x", "cache_control": None}},
        {"zeal": [], "vigour": {}, "haste": "", "store": False},
        {"temprature": None},
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_asks_for_nothing_is_no_matter(data: dict[str, Any], strict: bool):
    reading = FieldReading(strict=strict)
    body = Body.model_validate(data, context=reading)
    assert not reading.found_ignored
    assert ignored_fields(body) == []


@pytest.mark.parametrize("value", [True, 1.5, "yes", {}, []])
def test_what_is_documented_and_not_offered_is_refused(value: Any):
    for kind in (Body, LaterBody):
        cause = cause_of({"store": value}, kind)
        assert isinstance(cause, UnsupportedFieldError)
        assert cause.field == "store"
    assert isinstance(cause_of({"background": True}, LaterBody), UnsupportedFieldError)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("Temperature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("max_token", "max_tokens"),
        ("max_tokns", "max_tokens"),
        ("stored", "store"),
    ],
)
def test_misspellings(name: str, meant: str):
    cause = cause_of({name: 1})
    assert isinstance(cause, UnknownFieldError)
    assert (cause.field, cause.meant) == (name, meant)


@pytest.mark.parametrize(
    "name",
    ["max_new_tokens", "tempo", "id", "x", "", "token", "é" * 10, "temperature" * 20, "mode"],
)
def test_no_misspellings(name: str):
    reading = FieldReading()
    assert ignored_fields(Body.model_validate({name: 1}, context=reading)) == [name]
    assert reading.found_ignored


def kinds_below(kind: type[RequestObject]) -> Iterator[type[RequestObject]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds_below(each)


def test_null_is_always_the_same_as_nothing():
    """Of every field that may be left out, on every route."""
    kinds = {kind for kind in kinds_below(RequestObject) if kind.__module__.startswith("caudal.")}
    assert len(kinds) > 80
    refusing = []
    for kind in kinds:
        for name, field in kind.model_fields.items():
            annotation: Any = field.rebuild_annotation()
            try:
                if not field.is_required():
                    TypeAdapter(annotation).validate_python(None, strict=True)
            except ValidationError:
                refusing.append(f"{kind.__name__}.{name}")
    assert refusing == []


# Names that clients of other servers send, and that are no misspellings.
ELSEWHERE = [
    "num_ctx",
    "keep_alive",
    "options",
    "random_seed",
    "safe_prompt",
    "prompt_mode",
    "models",
    "route",
    "transforms",
    "plugins",
    "provider",
    "usage",
    "session",
    "ttl",
    "draft_model",
    "mode",
    "seed",
    "min_p",
    "return_tokens",
    "verbose",
    "ebnf",
    "generation_prompt",
    "ec_transfer_params",
    "search_options",
    "search_parameters",
    "exclude_domains",
    "deferred",
    "context_length",
    "guardrails",
    "metadata",
    "citation_options",
    "disable_tool_validation",
    "compound_custom",
]


@pytest.mark.parametrize(
    "kind",
    [
        ChatCompletionRequest,
        ChatRequest,
        CompletionRequest,
        EmbedRequest,
        EmbeddingRequest,
        GenerateRequest,
        MessageRequest,
        NativeCompletionRequest,
        RerankRequest,
        ResponseRequest,
    ],
)
def test_what_other_servers_know_is_no_misspelling(kind: type[RequestObject]):
    for name in ELSEWHERE:
        try:
            kind.model_validate({name: "x"})
        except ValidationError as error:
            causes = [each.get("ctx", {}).get("error") for each in error.errors()]
            assert not any(isinstance(cause, UnknownFieldError) for cause in causes), name


def test_strictness_refuses_all_that_would_have_no_effect():
    unknown = cause_of({"zeal": 1}, strict=True)
    assert isinstance(unknown, UnknownFieldError)
    assert unknown.meant is None
    hint = cause_of({"part": {"text": "x", "cache_control": {"type": "y"}}}, strict=True)
    assert isinstance(hint, UnsupportedFieldError)


def test_too_many_unknown_fields():
    cause = cause_of({f"x{number}": 1 for number in range(MAX_UNKNOWN_FIELDS + 1)})
    assert str(MAX_UNKNOWN_FIELDS) in str(cause)


def test_unknown_names_are_counted_over_the_whole_request(hello: RunningServer):
    def status(names: int) -> int:
        messages = [{"role": "user", "content": "", f"x{each}": 1} for each in range(names)]
        body = {"messages": messages}
        return hello.http.post("/v1/messages/count_tokens", json=body).status_code

    assert status(MAX_UNKNOWN_FIELDS) == 200
    assert status(MAX_UNKNOWN_FIELDS + 1) == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_a_metric_and_the_log_say_it(
    serve: Serve, caplog: pytest.LogCaptureFixture, stream: bool
):
    caplog.set_level("INFO", logger="caudal.server")
    server = serve(ScriptedExecutor(script=b"Hello"))
    message = {"role": "user", "content": "Hi", "importance": 3}
    body = CHAT | {"messages": [message, message], "zeal": 1, "stream": stream}
    for _ in range(2):
        response = server.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200
        assert response.headers["x-caudal-ignored"] == "zeal, messages[].importance"
    assert "x-caudal-ignored" not in server.http.post("/v1/chat/completions", json=CHAT).headers
    assert server.metric('caudal_ignored_fields_total{field="messages[].importance"}') == 2
    assert caplog.text.count("messages[].importance") == 1


def test_a_misspelling_says_what_is_meant(serve: Serve):
    server = serve(ScriptedExecutor(script=b"Hello"))
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi", "tool_call_ids": "x"}]}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[0].tool_call_ids"
    assert (
        error["message"]
        == "Unknown field: messages[0].tool_call_ids. Did you mean messages[0].tool_call_id?"
    )


def test_names_that_no_header_can_carry(serve: Serve):
    server = serve(ScriptedExecutor(script=b"Hello"))
    names = ["a\r\nb: c", "día", "a, b", "x" * 3000, *(f"n{number}" for number in range(50))]
    body = json.dumps(CHAT | dict.fromkeys(names, 1), ensure_ascii=False).encode()
    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 200
    said = response.headers["x-caudal-ignored"].split(", ")
    assert said[:4] == ["a??b:?c", "d?a", "a??b", "x" * 100]
    assert len(response.headers["x-caudal-ignored"]) < 1100


def test_names_do_not_fill_the_metrics(serve: Serve):
    server = serve(ScriptedExecutor(script=b"Hello"))
    for begin in range(0, 500, 50):
        more = {f"field{number}x": 1 for number in range(begin, begin + 50)}
        assert server.http.post("/v1/chat/completions", json=CHAT | more).status_code == 200
    lines = server.http.get("/metrics").text.splitlines()
    series = [line for line in lines if line.startswith("caudal_ignored_fields_total{")]
    assert len(series) == 201
    assert server.metric('caudal_ignored_fields_total{field="other"}') == 300


def test_strict_fields(serve: Serve):
    server: RunningServer = serve(ScriptedExecutor(script=b"Hello"), strict_fields=True)
    response = server.http.post("/v1/chat/completions", json=CHAT | {"zeal": 1})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Unknown field: zeal."
    response = server.http.post("/v1/chat/completions", json=CHAT | {"store": True})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "store would have no effect on this server."


EFFORTS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"reasoning_effort": "high"}, "reasoning_effort"),
    ("/v1/responses", {"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ("/v1/responses/input_tokens", {"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ("/v1/messages", {"output_config": {"effort": "high"}}, "output_config.effort"),
    ("/v1/messages/count_tokens", {"output_config": {"effort": "high"}}, "output_config.effort"),
]


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    if "responses" in path:
        return {"model": "fake", "input": "Hi"} | fields
    return CHAT | ({"max_tokens": 9} if path == "/v1/messages" else {}) | fields


@pytest.mark.parametrize(("path", "fields", "name"), EFFORTS)
def test_effort_on_a_model_without_levels_is_a_hint(
    serve: Serve, path: str, fields: dict[str, Any], name: str
):
    response = serve(ScriptedExecutor(script=b"x")).http.post(path, json=body_for(path, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["x-caudal-ignored"] == name
    strict = serve(ScriptedExecutor(script=b"x"), strict_fields=True)
    refused = strict.http.post(path, json=body_for(path, **fields))
    assert refused.status_code == 400
    assert name in refused.json()["error"]["message"]
    assert strict.model.parts.engine.stats().running == 0


LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}


def how_it_ended(body: dict[str, Any]) -> str:
    if "choices" in body:
        return str(body["choices"][0]["finish_reason"])
    return str(body.get("stop_reason") or body["incomplete_details"]["reason"])


@pytest.mark.parametrize("path", LIMITS)
def test_answers_end_where_the_context_does(serve: Serve, path: str):
    server = serve(ScriptedExecutor(script=b"x" * 500), max_model_len=100)
    body = body_for(path, **{LIMITS[path]: 10**6})
    if path == "/v1/completions":
        body = {"model": "fake", "prompt": "Hi", "max_tokens": 10**6}
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    ended = "length"
    if path == "/v1/messages":
        ended = "model_context_window_exceeded"
    elif path == "/v1/responses":
        ended = "max_output_tokens"
    assert how_it_ended(response.json()) == ended
    usage = response.json()["usage"]
    assert (
        usage.get("total_tokens", usage.get("input_tokens", 0) + usage.get("output_tokens", 0))
        == 100
    )
    strict = serve(ScriptedExecutor(script=b"x" * 500), max_model_len=100, strict_fields=True)
    refused = strict.http.post(path, json=body)
    assert refused.status_code == 400
    assert LIMITS[path] in refused.text
    in_its_words = "exceed context limit" if path == "/v1/messages" else "100 tokens"
    assert in_its_words in refused.text


def test_an_answer_that_used_up_its_own_limit(serve: Serve):
    server = serve(ScriptedExecutor(script=b"x" * 500), max_model_len=100)
    response = server.http.post("/v1/messages", json=CHAT | {"max_tokens": 5})
    assert response.json()["stop_reason"] == "max_tokens"
