"""Everything that the official client can send either works or is refused by name."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from openai.types.responses import FunctionToolParam, ResponseInputItemParam, ToolParam
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
    ToolChoice,
)
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.responses.response_text_config_param import ResponseTextConfigParam
from openai.types.shared_params import Reasoning

from support.running_server import RunningServer

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "weather"}
CALL = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "5"}
LOGPROBS = "message.output_text.logprobs"
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}

WORKS: dict[str, list[Any]] = {
    "model": ["fake"],
    "input": ["Hi", [USER], [USER | {"type": "message"}], [USER, CALL, OUTPUT]],
    "background": [False, None],
    "context_management": [None, []],
    "conversation": [None],
    "include": [[], [LOGPROBS], None],
    "instructions": [None, ""],
    "max_output_tokens": [1, None],
    "max_tool_calls": [3, None],
    "metadata": [{"a": "b"}, None],
    "moderation": [None],
    "parallel_tool_calls": [True, False, None],
    "previous_response_id": [None],
    "prompt": [None],
    "prompt_cache_key": ["k"],
    "prompt_cache_options": [{}, {"mode": "implicit"}],
    "prompt_cache_retention": ["in_memory", None],
    "reasoning": [{}, {"effort": "none"}, {"summary": "auto"}, {"context": "auto"}, None],
    "safety_identifier": ["s"],
    "service_tier": ["auto", "default", None],
    "store": [True, False, None],
    "stream": [True, False, None],
    "temperature": [0, 2, None],
    "text": [{}, {"verbosity": "medium"}, {"format": {"type": "text"}}, {"format": SCHEMA}],
    "tool_choice": ["none", "auto"],
    "tools": [[], [TOOL], [TOOL | {"parameters": None, "strict": None, "description": "d"}]],
    "top_logprobs": [0, None],
    "top_p": [0.5, None],
    "truncation": ["disabled", None],
    "user": ["u"],
}
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "model": [("other", "model")],
    "input": [([], "input"), (None, "input"), (7, "input"), ([7], "input[0]")],
    "access_programs": [({"cyber": "standard"}, "access_programs")],
    "background": [(True, "background")],
    "background_options": [({"x": 1}, "background_options")],
    "context_management": [([{"type": "compaction"}], "context_management")],
    "conversation": [("conv_1", "conversation")],
    "image": [({"x": 1}, "image")],
    "instructions": [("Be kind", "input")],  # what the template says of system messages
    "max_output_tokens": [(0, "max_output_tokens")],
    "max_tool_calls": [(-1, "max_tool_calls")],
    "metadata": [
        ({"k" * 65: "v"}, None),
        ({"k": "v" * 513}, "metadata.k"),
        ({"k": 1}, "metadata.k"),
    ],
    "moderation": [({"model": "m"}, "moderation")],
    "previous_response_id": [("resp_1", "previous_response_id")],
    "prompt": [({"id": "p"}, "prompt")],
    "prompt_cache_options": [({"mode": "explicit"}, "prompt_cache_options")],
    "prompt_cache_retention": [("24h", "prompt_cache_retention")],
    "reasoning": [
        ({"effort": "some"}, "reasoning.effort"),
        ({"summary": "detailed"}, "reasoning.summary"),
        ({"mode": "pro"}, "reasoning.mode"),
    ],
    "service_tier": [("flex", "service_tier")],
    "stream_options": [({"include_obfuscation": False}, "stream_options")],  # without stream
    "temperature": [(-1, "temperature")],
    "text": [
        ({"verbosity": "low"}, "text.verbosity"),
        ({"format": {"type": "json_schema"}}, "text.format"),
        ({"format": {"type": "text", "strict": True}}, "text.format"),
        ({"format": SCHEMA | {"schema": {"type": 7}}}, "text.format"),
    ],
    "tool_choice": [("required", "tool_choice"), (TOOL, "tool_choice"), ("some", "tool_choice")],
    "tools": [
        ([TOOL, TOOL], "tools[1].name"),
        ([TOOL | {"name": "no spaces"}], "tools[0].name"),
        ([TOOL | {"parameters": {"type": "string"}}], "tools[0].parameters"),
    ],
    "top_logprobs": [(21, "top_logprobs"), (5, "top_logprobs")],
    "top_p": [(0, "top_p")],
    "truncation": [("auto", "truncation")],
}


def fields_of(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in typing.get_type_hints(kind)}


def types_of(union: Any) -> set[str]:
    """The values of `type` that a union of objects has."""
    found: set[str] = set()
    for kind in typing.get_args(union):
        if hasattr(kind, "__annotations__"):
            hint = typing.get_type_hints(kind).get("type")
            nested = typing.get_args(hint)
            found.update(value for value in nested if isinstance(value, str))
            for inner in nested:
                found.update(value for value in typing.get_args(inner) if isinstance(value, str))
    return found


def post(
    server: RunningServer, path: str = "/v1/responses", **fields: Any
) -> tuple[int, dict[str, Any]]:
    response = server.http.post(path, json={"model": "fake", "input": "Hi"} | fields)
    return response.status_code, {} if response.status_code == 200 else response.json()["error"]


def test_every_field_is_known():
    known = WORKS.keys() | REFUSED.keys()
    assert fields_of(ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming) <= known


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WORKS.items() for value in values]
)
def test_works(hello: RunningServer, name: str, value: Any):
    assert post(hello, **{name: value}) == (200, {})


@pytest.mark.parametrize(
    ("name", "value", "blamed"),
    [(name, value, blamed) for name, cases in REFUSED.items() for value, blamed in cases],
)
def test_refused(hello: RunningServer, name: str, value: Any, blamed: str | None):
    status, error = post(hello, **{name: value})
    assert status == (404 if value == "other" else 400)
    assert name in f"{error['param']} {error['message']}" or name == "instructions"
    if blamed is not None:
        assert error["param"] == blamed


def test_counting_takes_what_decides_the_prompt(hello: RunningServer):
    path = "/v1/responses/input_tokens"
    for name in fields_of(InputTokenCountParams):
        for value in WORKS.get(name, []):
            assert post(hello, path, **{name: value}) == (200, {})
    status, error = post(hello, path, personality="friendly")
    assert (status, error["param"]) == (400, "personality")
    assert post(hello, path, max_output_tokens=5) == (200, {})


@pytest.mark.parametrize("kind", sorted(types_of(ToolParam)))
def test_every_type_of_tool(hello: RunningServer, kind: str):
    status, error = post(hello, tools=[{"type": kind, "name": "weather"}])
    if kind == "function":
        assert status == 200
    else:
        assert status == 400
        assert error["param"] == "tools[0]"
        assert repr(kind) in error["message"]


@pytest.mark.parametrize("kind", sorted(types_of(ToolChoice)))
def test_every_type_of_tool_choice(hello: RunningServer, kind: str):
    choice = {"type": kind, "name": "weather"}
    if kind == "allowed_tools":
        choice = {"type": kind, "mode": "auto", "tools": [TOOL]}  # type: ignore[dict-item]
    status, error = post(hello, tools=[TOOL], tool_choice=choice)
    if kind in ("function", "allowed_tools"):
        assert status == 200
    else:
        assert (status, error["param"]) == (400, "tool_choice")
        assert repr(kind) in error["message"]


@pytest.mark.parametrize("kind", sorted(types_of(ResponseInputItemParam)))
def test_every_type_of_item(hello: RunningServer, kind: str):
    items: dict[str, list[dict[str, Any]]] = {
        "message": [USER | {"type": "message", "status": "completed"}],
        "function_call": [USER, CALL | {"id": "fc_1", "status": "completed"}, OUTPUT],
        "function_call_output": [USER, CALL, OUTPUT | {"output": [part("input_text")]}],
        "reasoning": [
            USER,
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {"role": "assistant", "content": [part("output_text") | {"annotations": []}]},
            USER,
        ],
    }
    if kind in items:
        assert post(hello, input=items[kind]) == (200, {})
    else:
        status, error = post(hello, input=[{"type": kind}])
        assert (status, error["param"]) == (400, "input[0]")
        assert repr(kind) in error["message"]


def part(kind: str) -> dict[str, Any]:
    return {"type": kind, "text": "x"}


@pytest.mark.parametrize("name", typing.get_args(ResponseIncludable))
def test_everything_that_can_be_included(hello: RunningServer, name: str):
    status, error = post(hello, include=[name])
    if name == LOGPROBS:
        assert status == 200
    else:
        assert (status, error["param"]) == (400, "include")
        assert name in error["message"]


@pytest.mark.parametrize(
    ("params", "works", "nest"),
    [
        (
            FunctionToolParam,
            {
                "type": "function",
                "name": "weather",
                "description": "d",
                "parameters": {},
                "strict": False,
                "allowed_callers": ["direct"],
                "async": False,
                "defer_loading": False,
                "output_schema": None,
            },
            lambda value: {"tools": [TOOL | value]},
        ),
        (
            Reasoning,
            {
                "effort": None,
                "summary": "auto",
                "generate_summary": "auto",
                "context": "auto",
                "mode": "standard",
            },
            lambda value: {"reasoning": value},
        ),
        (
            ResponseTextConfigParam,
            {"format": {"type": "json_object"}, "verbosity": "medium"},
            lambda value: {"text": value},
        ),
    ],
)
def test_every_field_within(hello: RunningServer, params: Any, works: dict[str, Any], nest: Any):
    assert fields_of(params) == works.keys()
    for name, value in works.items():
        assert post(hello, **nest({name: value})) == (200, {})
        status, error = post(hello, **nest({name: [7]}))
        assert status == 400
        assert name in error["message"] or name == "type"


@pytest.mark.parametrize(
    ("items", "blamed"),
    [
        ([USER, CALL], "'c'"),
        ([OUTPUT], "'c'"),
        ([USER, CALL, OUTPUT, OUTPUT], "'c'"),
        ([USER | {"role": "tool"}], "input[0].role"),
        ([{"role": "user", "content": [part("output_text")]}], "role user"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input_image"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input_file"),
        ([USER, CALL, OUTPUT | {"output": [{"type": "input_image"}]}], "input_image"),
        ([{"content": "x"}], "type"),
        ([USER | {"phase": "commentary"}], "input[0].phase"),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}], "encrypted_content"),
    ],
)
def test_items_that_make_no_sense(hello: RunningServer, items: list[Any], blamed: str):
    status, error = post(hello, input=items)
    assert status == 400
    assert blamed in error["message"]


def test_a_schema_that_cannot_be_enforced_is_named(hello: RunningServer):
    tool = TOOL | {"strict": True, "parameters": {"properties": {"a": {"contains": 1}}}}
    status, error = post(hello, tools=[tool])
    assert (status, error["param"]) == (400, "tools[0].parameters")
    assert "tools[0].parameters" in error["message"]
