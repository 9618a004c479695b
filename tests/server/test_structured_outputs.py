"""Answers of a given form over HTTP, with tokens drawn at random; and forms that are refused."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import pydantic
import pytest

from caudal.engine.request import FinishReason
from support.fake_executor import FakeExecutor
from support.fake_model import ByteTokenizer, serve_fake
from support.running_server import RunningServer, running_server

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "a_name_of_some_length": {"type": "string", "maxLength": 6},
        "flag": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"enum": [1, 22]}, "maxItems": 3},
    },
    "required": ["a_name_of_some_length", "flag", "sizes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server whose model chooses at random among what it may."""
    executor = FakeExecutor(num_blocks=512, block_size=16, vocab_size=ByteTokenizer.vocab_size)
    with running_server(serve_fake(executor, max_model_len=400)) as server:
        yield server


def conforms(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def json_format(schema: object = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, **more}}


def matches(pattern: str) -> Any:
    return lambda text: re.fullmatch(pattern, text)


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


FORMS = [
    ({"response_format": json_format(strict=True, description="A thing.")}, conforms),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, conforms),
    ({"structured_outputs": {"json": SCHEMA}}, conforms),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, conforms),
    (
        {
            "structured_outputs": {
                "json": {name: SCHEMA[name] for name in ("type", "properties", "required")},
                "disable_additional_properties": True,
            }
        },
        conforms,
    ),
    ({"json_schema": {"enum": [1234567890123456789]}}, matches("1234567890123456789")),
    ({"structured_outputs": {"regex": "a[bc]{3,9}d"}}, matches("a[bc]{3,9}d")),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, matches("yes|no")),
    ({"structured_outputs": {"grammar": 'start: "x"~2..5'}}, matches("x{2,5}")),
    ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]'}}, matches("x[0-9]")),
    ({"json_schema": SCHEMA}, conforms),
    ({"grammar": 'root ::= "x" [0-9]'}, matches("x[0-9]")),
    ({"response_format": {"type": "text"}, "json_schema": SCHEMA}, conforms),
]


@pytest.mark.parametrize(("form", "check"), FORMS)
def test_chats_take_a_form_streamed_or_not(
    server: RunningServer, form: dict[str, Any], check: Any
) -> None:
    ask = server.openai().chat.completions.create
    options: Any = {"model": "fake", "messages": MESSAGES, "seed": 3, "extra_body": form}
    answer = ask(**options)
    assert check(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(ask(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert answer.usage is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


@pytest.mark.parametrize(("form", "check"), FORMS)
def test_completions_take_a_form(server: RunningServer, form: dict[str, Any], check: Any) -> None:
    answer = server.openai().completions.create(
        model="fake", prompt=["Hi", "Hello"], seed=3, n=2, max_tokens=300, extra_body=form
    )
    assert len(answer.choices) == 4
    for choice in answer.choices:
        assert check(choice.text)
        assert choice.finish_reason == "stop"


def test_json_objects_are_objects(server: RunningServer) -> None:
    ask = server.openai().chat.completions.create
    answer = ask(
        model="fake",
        messages=MESSAGES,
        n=8,
        seed=3,
        response_format={"type": "json_object"},
        logit_bias={str(ord("}")): 1},
    )
    finished = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    for choice in finished:
        assert is_object(choice.message.content or "")
    for choice in answer.choices:
        assert (choice.message.content or "").startswith("{")


class Thing(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = pydantic.Field(ge=0, le=9)
    tame: bool | None
    owner: Owner


class Owner(pydantic.BaseModel):
    city: Literal["Madrid", "Paris"]


def test_the_official_client_parses_into_a_model(server: RunningServer) -> None:
    answer = server.openai().chat.completions.parse(
        model="fake", messages=MESSAGES, seed=3, response_format=Thing
    )
    thing = answer.choices[0].message.parsed
    assert isinstance(thing, Thing)
    with server.openai().chat.completions.stream(
        model="fake", messages=MESSAGES, seed=3, response_format=Thing
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == thing


def test_max_tokens_amid_the_structure_is_reported(server: RunningServer) -> None:
    ask = server.openai().chat.completions.create
    for limit in (1, 2, 20, 40):
        answer = ask(
            model="fake",
            messages=MESSAGES,
            seed=3,
            max_tokens=limit,
            extra_body={"json_schema": SCHEMA},
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == limit
        assert '{"a_name_of_some_length": "'.startswith(
            (answer.choices[0].message.content or "")[:27]
        )


def test_log_probabilities_come_with_every_token(server: RunningServer) -> None:
    answer = server.openai().chat.completions.create(
        model="fake",
        messages=MESSAGES,
        seed=3,
        logprobs=True,
        extra_body={"structured_outputs": {"regex": "abc[de]"}},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == answer.choices[0].message.content


def test_a_stop_string_ends_an_answer_of_a_form_too(server: RunningServer) -> None:
    answer = server.openai().chat.completions.create(
        model="fake", messages=MESSAGES, stop=["some"], extra_body={"json_schema": SCHEMA}
    )
    assert answer.choices[0].message.content == '{"a_name_of_'
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("form", "field", "says"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format", "schema"),
        ({"response_format": json_format([])}, "response_format.json_schema.schema", "object"),
        ({"response_format": json_format({"not": {}})}, "response_format", '"not"'),
        (
            {"response_format": json_format({"type": "string", "pattern": "foo**"})},
            "response_format",
            "foo**",
        ),
        (
            {"response_format": json_format({"type": "string", "pattern": "^a\\!$"})},
            "response_format",
            "\\!",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs",
            "regex and choice",
        ),
        ({"structured_outputs": {"regex": "foo**"}}, "structured_outputs", "foo**"),
        ({"structured_outputs": {"regex": "\\!"}}, "structured_outputs", "\\!"),
        ({"structured_outputs": {"regex": 7}}, "structured_outputs.regex", "string"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "choices"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "list"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs", '"x"'),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "line 1"),
        ({"structured_outputs": {"json": "{}", "lark": "x"}}, "structured_outputs.lark", "Unknown"),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
            "not supported",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "not supported",
        ),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema", "uniqueItems"),
        ({"json_schema": True}, "json_schema", "object"),
        ({"grammar": "hello"}, "grammar", "Expected"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs", "empty"),
        ({"grammar": "root ::= [a"}, "grammar", "line 1"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar", "json_schema exclude"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "response_format exclude",
        ),
        ({"guided_json": {}}, "guided_json", "not supported"),
        ({"guided_regex": "a"}, "guided_regex", "not supported"),
        ({"regex": "a"}, "regex", "not supported"),
        ({"ebnf": 'root ::= "a"'}, "ebnf", "not supported"),
        ({"structural_tag": {"format": {}}}, "structural_tag", "not supported"),
    ],
)
def test_what_can_not_be_had_is_refused_by_name(
    server: RunningServer, form: dict[str, Any], field: str, says: str, stream: bool
) -> None:
    bodies = {
        "/v1/chat/completions": {"messages": MESSAGES},
        "/v1/completions": {"prompt": "Hi"},
    }
    for path, body in bodies.items():
        response = server.http.post(path, json={"model": "fake", "stream": stream, **body, **form})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == field, error
        assert says in error["message"], error
    deadline = time.monotonic() + 10
    while (stats := server.model.parts.engine.stats()).waiting or stats.running:
        assert time.monotonic() < deadline, stats  # what another test has left may still be ending
        time.sleep(0.01)
    assert stats.finished[FinishReason.FAILED] == 0


def test_large_schemas_are_taken_or_refused_and_the_server_goes_on(server: RunningServer) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    chain = {f"n{number}": {"items": {"$ref": f"#/$defs/n{number + 1}"}} for number in range(4900)}
    wide = {"properties": {f"key{number}": {"type": "string"} for number in range(5000)}}
    for schema, status in (
        (deep, 200),
        ({"$defs": {**chain, "n4900": {}}, "$ref": "#/$defs/n0"}, 200),
        (wide, 400),
        ({"enum": [[]] * 20_000}, 400),
    ):
        response = server.http.post(
            "/v1/chat/completions",
            json={
                "model": "fake",
                "messages": MESSAGES,
                "max_tokens": 4,
                "response_format": json_format(schema),
            },
        )
        assert response.status_code == status, response.text
    assert server.http.get("/health").status_code == 200
