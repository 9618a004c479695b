"""Everything that the official client can send works, or is taken and said, or refused by name."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
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

from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "weather"}
CALL = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "c", "output": "5"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "5"}
OFFERED_TOOLS = ("function", "custom", "namespace")
LOGPROBS = "message.output_text.logprobs"
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}

WORKS: dict[str, list[Any]] = {
    "model": ["fake"],
    "input": ["Hi", [USER], [USER | {"type": "message"}], [USER, CALL, OUTPUT]],
    "background": [False, True, None],
    "access_programs": [{}],
    "background_options": [{}],
    "context_management": [None, []],
    "conversation": [None],
    "image": [{}],
    "include": [[], [LOGPROBS], ["reasoning.encrypted_content"], None],
    "instructions": [None, ""],
    "max_output_tokens": [1, -1, None],
    "max_tool_calls": [3, None],
    "metadata": [{"a": "b"}, None],
    "moderation": [None],
    "parallel_tool_calls": [True, False, None],
    "previous_response_id": [None],
    "prompt": [None],
    "prompt_cache_key": ["k"],
    "prompt_cache_options": [{}, {"mode": "implicit"}],
    "prompt_cache_retention": ["in_memory", None],
    "reasoning": [
        {},
        {"effort": "none"},
        {"summary": "auto", "generate_summary": "auto", "context": "auto", "mode": "standard"},
        None,
    ],
    "safety_identifier": ["s"],
    "service_tier": ["auto", "default", None],
    "store": [True, False, None],
    "stream": [True, False, None],
    "temperature": [0, 2, None],
    "text": [{}, {"verbosity": "medium"}, {"format": {"type": "text"}}, {"format": SCHEMA}],
    "tool_choice": ["none", "auto"],
    "tools": [[], [TOOL], [TOOL | {"parameters": None, "strict": None, "description": "d"}]],
    "top_logprobs": [0, None],
    "top_p": [0, 0.5, None],
    "truncation": ["disabled", None],
    "user": ["u"],
    # vLLM's
    "cache_salt": ["s"],
    "chat_template_kwargs": [{}, {"x": False}],
    "frequency_penalty": [0.5],
    "ignore_eos": [False],
    "min_p": [0.1],
    "min_tokens": [1],
    "presence_penalty": [0.5],
    "priority": [1],
    "repetition_penalty": [1.1],
    "seed": [7],
    "stop": ["x", ["x", "y"]],
    "stop_token_ids": [[5]],
    "top_k": [5],
    "typical_p": [0.5],
}
IGNORED: dict[str, list[tuple[Any, str]]] = {
    "access_programs": [({"cyber": "standard"}, "access_programs")],
    "background_options": [({"completion_window": "2h"}, "background_options")],
    "chat_template_kwargs": [({"x": 1}, "chat_template_kwargs.x")],
    "client_metadata": [({"a": "b"}, "client_metadata")],
    "context_management": [([{"type": "compaction"}], "context_management")],
    "image": [({"context_compression": "enabled"}, "image")],
    "prompt_cache_options": [({"mode": "explicit"}, "prompt_cache_options")],
    "prompt_cache_retention": [("24h", "prompt_cache_retention")],
    "reasoning": [
        ({"summary": "detailed"}, "reasoning.summary"),
        ({"generate_summary": "concise"}, "reasoning.generate_summary"),
        ({"context": "all_turns"}, "reasoning.context"),
        ({"mode": "pro"}, "reasoning.mode"),
    ],
    "service_tier": [("flex", "service_tier")],
    "text": [({"verbosity": "low"}, "text.verbosity")],
    "truncation": [("auto", "truncation")],
}
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "model": [("other", "model")],
    "input": [([], "input"), (None, "input"), (7, "input"), ([7], "input[0]")],
    "conversation": [
        ("conv_1", "conversation"),
        ({"id": "conv_1"}, "conversation"),
        ({}, "conversation.id"),
    ],
    "instructions": [("Be kind", "input")],  # what the template says of system messages
    **{
        name: [(value, name)]
        for name, value in (
            ("grammar", 'start: "a"'),
            ("guided_json", {"type": "integer"}),
            ("json_schema", {"type": "integer"}),
            ("regex", "a"),
            ("response_format", {"type": "json_object"}),
            ("structured_outputs", {"regex": "a"}),
        )
    },
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
    "reasoning": [
        ({"effort": "some"}, "reasoning.effort"),
    ],
    "stream_options": [({"include_obfuscation": False}, "stream_options")],  # without stream
    "temperature": [(-1, "temperature")],
    "text": [
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
    "top_p": [(-1, "top_p")],
}


@pytest.fixture(scope="module")
def roomy() -> Iterator[RunningServer]:
    """A server whose context has room for what models are told of tools."""
    executor = ScriptedExecutor(script=b"Hello!")
    with running_server(serve_fake(executor, max_model_len=2048)) as server:
        yield server


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


def ignored(server: RunningServer, **fields: Any) -> str:
    """What is said of fields that were taken without effect."""
    response = server.http.post("/v1/responses", json={"model": "fake", "input": "Hi"} | fields)
    assert response.status_code == 200, response.text
    return response.headers.get("x-caudal-ignored", "")


def test_every_field_is_known():
    known = WORKS.keys() | REFUSED.keys() | IGNORED.keys()
    assert fields_of(ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming) <= known


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WORKS.items() for value in values]
)
def test_works(hello: RunningServer, name: str, value: Any):
    assert post(hello, **{name: value}) == (200, {})
    assert ignored(hello, **{name: value}) == ""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [(name, value, said) for name, cases in IGNORED.items() for value, said in cases],
)
def test_taken_without_effect(hello: RunningServer, name: str, value: Any, said: str):
    assert ignored(hello, **{name: value}) == said


@pytest.mark.parametrize(
    ("name", "value", "blamed"),
    [(name, value, blamed) for name, cases in REFUSED.items() for value, blamed in cases],
)
def test_refused(hello: RunningServer, name: str, value: Any, blamed: str | None):
    status, error = post(hello, **{name: value})
    unknown = value == "other" or (name == "conversation" and value != {})
    assert status == (404 if unknown else 400)
    assert name in f"{error['param']} {error['message']}" or name == "instructions"
    if blamed is not None:
        assert error["param"] == blamed


def test_counting_takes_what_decides_the_prompt(hello: RunningServer):
    path = "/v1/responses/input_tokens"
    for name in fields_of(InputTokenCountParams):
        for value in WORKS.get(name, []):
            assert post(hello, path, **{name: value}) == (200, {})
    assert post(hello, path, personality="friendly") == (200, {})
    assert post(hello, path, max_output_tokens=5) == (200, {})


@pytest.mark.parametrize("kind", sorted(types_of(ToolParam)))
def test_every_type_of_tool(roomy: RunningServer, kind: str):
    tool: dict[str, Any] = {"type": kind, "name": "weather", "some": {"thing": 1}}
    if kind == "namespace":
        tool = {"type": kind, "name": "n", "description": "d", "tools": [TOOL]}
    response = roomy.http.post(
        "/v1/responses", json={"model": "fake", "input": "Hi", "tools": [tool]}
    )
    assert response.status_code == 200
    assert response.json()["tools"][0]["type"] == kind
    if kind not in OFFERED_TOOLS:
        assert response.headers["x-caudal-ignored"] == f"tools[{kind}]"


def test_a_misspelt_type_is_refused(hello: RunningServer):
    for field, value in [
        ("tools", {"type": "fucntion", "name": "f"}),
        ("input", {"type": "mesage"}),
    ]:
        status, error = post(hello, **{field: [value]})
        assert (status, error["param"]) == (400, f"{field}[0]")
        assert re.search(r" Did you mean .+\?$", error["message"])


@pytest.mark.parametrize("kind", sorted(types_of(ToolChoice)))
def test_every_type_of_tool_choice(roomy: RunningServer, kind: str):
    choice = {"type": kind, "name": "weather"}
    if kind == "allowed_tools":
        choice = {"type": kind, "mode": "auto", "tools": [TOOL]}  # type: ignore[dict-item]
    tool = TOOL | {"type": kind} if kind == "custom" else TOOL
    status, error = post(roomy, tools=[tool], tool_choice=choice)
    if kind in ("function", "custom", "allowed_tools"):
        assert status == 200
    else:
        assert (status, error["param"]) == (400, "tool_choice")
        assert repr(kind) in error["message"]


ITEMS: dict[str, list[dict[str, Any]]] = {
    "message": [USER | {"type": "message", "status": "completed"}],
    "function_call": [USER, CALL | {"id": "fc_1", "status": "completed"}, OUTPUT],
    "function_call_output": [
        USER,
        CALL,
        OUTPUT | {"output": [{"type": "input_text", "text": "x"}], "caller": {"type": "direct"}},
    ],
    "custom_tool_call": [USER, CUSTOM_CALL, CUSTOM_OUTPUT],
    "custom_tool_call_output": [USER, CUSTOM_CALL, CUSTOM_OUTPUT | {"id": "ctco_1"}],
    "reasoning": [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        USER,
    ],
    "local_shell_call": [
        USER,
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "c",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
            "status": "completed",
        },
        OUTPUT,
    ],
    "local_shell_call_output": [
        USER,
        {"type": "local_shell_call", "call_id": "c", "action": {}, "status": "completed"},
        {"type": "local_shell_call_output", "id": "c", "output": "x"},
    ],
    "shell_call": [
        USER,
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {
            "type": "shell_call_output",
            "call_id": "c",
            "max_output_length": 5,
            "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ],
    "apply_patch_call": [
        USER,
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "delete_file", "path": "x"},
            "status": "completed",
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
    ],
    "mcp_call": [
        USER,
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "s",
            "name": "f",
            "arguments": "{}",
            "output": "x",
        },
    ],
    "code_interpreter_call": [
        USER,
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "container_id": "x",
            "code": "1",
            "outputs": [{"type": "logs", "logs": "x"}],
            "status": "completed",
        },
    ],
    "file_search_call": [
        USER,
        {
            "type": "file_search_call",
            "id": "fs_1",
            "queries": ["q"],
            "results": [{"text": "x"}],
            "status": "completed",
        },
    ],
    "additional_tools": [USER, {"type": "additional_tools", "role": "developer", "tools": [TOOL]}],
    "tool_search_output": [
        USER,
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [TOOL]},
    ],
}
ITEMS["shell_call_output"] = ITEMS["shell_call"]
ITEMS["apply_patch_call_output"] = ITEMS["apply_patch_call"]


@pytest.mark.parametrize("kind", sorted(types_of(ResponseInputItemParam)))
def test_every_type_of_item(hello: RunningServer, kind: str):
    if kind in ITEMS:
        assert ignored(hello, input=ITEMS[kind]) == ""
    elif kind == "item_reference":
        response = hello.openai().responses.create(model="fake", input="Hi")
        item = {"type": kind, "id": response.output[0].id}
        for reference in (item, {"id": item["id"]}):
            assert ignored(hello, input=[USER, reference, USER]) == ""
        status, error = post(hello, input=[USER, item | {"id": "msg_gone"}])
        assert (status, error["param"]) == (404, "input")
        assert "'msg_gone'" in error["message"]
    elif kind == "compaction_trigger":
        status, error = post(hello, input=[USER, {"type": kind}])
        assert (status, error["param"]) == (400, "input[1]")
        assert repr(kind) in error["message"]
    else:
        item = {"type": kind, "id": "x_1", "encrypted_content": "x", "action": {"type": "search"}}
        assert ignored(hello, input=[USER, item]) == f"input[{kind}]"


def test_items_that_nobody_knows_are_left_out_and_kept(hello: RunningServer):
    item = {"type": "hologram", "id": "x_1", "depth": [3]}
    assert ignored(hello, input=[USER, item]) == "input[hologram]"
    client = hello.openai()
    response = client.responses.create(model="fake", input=[USER, item])  # type: ignore[list-item]
    given = hello.http.get(f"/v1/responses/{response.id}/input_items").json()["data"]
    assert item in given
    # It doesn't stand in the way of what follows.
    client.responses.create(model="fake", input="Hi", previous_response_id=response.id)


def part(kind: str) -> dict[str, Any]:
    return {"type": kind, "text": "x"}


@pytest.mark.parametrize("name", typing.get_args(ResponseIncludable))
def test_everything_that_can_be_included(hello: RunningServer, name: str):
    works = name in (LOGPROBS, "reasoning.encrypted_content")
    assert ignored(hello, include=[name]) == ("" if works else f"include[{name}]")


def test_what_cannot_be_included(hello: RunningServer):
    status, error = post(hello, include=["everything"])
    assert (status, error["param"]) == (400, "include")
    assert "'everything'" in error["message"]


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
        # What a field can't be is either refused or said to have no effect.
        response = hello.http.post(
            "/v1/responses", json={"model": "fake", "input": "Hi"} | nest({name: [7]})
        )
        if response.status_code == 200:
            assert name in response.headers["x-caudal-ignored"]
        else:
            assert response.status_code == 400
            assert name in response.json()["error"]["message"] or name == "type"


@pytest.mark.parametrize(
    ("items", "blamed"),
    [
        ([USER, CALL], "No tool output found for function call c."),
        ([USER, CUSTOM_CALL], "No tool output found for custom tool call c."),
        ([OUTPUT], "No tool call found for function call output with call_id c."),
        ([CUSTOM_OUTPUT], "No tool call found for custom tool call output with call_id c."),
        ([USER, CALL, OUTPUT, OUTPUT], "with call_id c."),
        ([USER | {"role": "tool"}], "input[0].role"),
        ([{"role": "user", "content": [part("output_text")]}], "role user"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input_image"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input_file"),
        ([{"content": "x"}], "type"),
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


def test_a_messages_phase_is_taken(hello: RunningServer):
    assert ignored(hello, input=[USER | {"phase": "commentary"}]) == "input[].phase"
