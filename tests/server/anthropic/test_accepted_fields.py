"""Everything that the official client can send either works or is refused by name."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from anthropic.types import (
    ContentBlockParam,
    MessageCountTokensParams,
    TextBlockParam,
    ThinkingConfigParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from anthropic.types.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
)

from support.running_server import RunningServer

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}

WORKS: dict[str, list[Any]] = {
    "max_tokens": [1],
    "messages": [[USER, USER], [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]],
    "model": ["fake"],
    "cache_control": [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, None],
    "diagnostics": [None, {"previous_message_id": None}],
    "container": [None],
    "inference_geo": [None],
    "metadata": [{"user_id": "ana"}, {"user_id": None}, {}],
    "output_config": [{}, {"effort": None}, {"format": None}],
    "service_tier": ["auto", "standard_only"],
    "speed": ["standard", None],
    "stop_sequences": [["x"], []],
    "stream": [True, False],
    "system": [[], ""],
    "thinking": [{"type": "disabled"}, {"type": "adaptive"}],
    "tool_choice": [None],
    "tools": [[], [TOOL], [TOOL | CACHED | {"type": "custom", "description": "d"}]],
    "temperature": [0, 0.5, 1],
    "top_k": [0, 40],
    "top_p": [0.9],
}
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "max_tokens": [(0, "max_tokens"), ("9", "max_tokens"), (None, "max_tokens")],
    "messages": [([], "messages"), ("Hi", "messages")],
    "model": [("other", "other"), (None, "model")],
    "cache_control": [({"type": "lasting"}, "cache_control.type")],
    "container": [("c_1", "container")],
    "context_management": [({"edits": []}, "context_management")],
    "diagnostics": [({"previous_message_id": "msg_1"}, "diagnostics")],
    "inference_geo": [("eu", "inference_geo")],
    "mcp_servers": [([{"name": "x"}], "mcp_servers")],
    "metadata": [({"user_ids": "x"}, "metadata.user_id?")],
    "output_config": [
        ({"effort": "some"}, "output_config.effort"),
        ({"format": {"type": "json_schema", "schema": {"type": 7}}}, "output_config.format"),
    ],
    "service_tier": [("priority", "service_tier")],
    "speed": [("fast", "speed")],
    "stop_sequences": [([""], "stop_sequences"), (["x"] * 65, "stop_sequences")],
    "stream": [("yes", "stream")],
    "system": [([{"type": "image"}], "image"), ("Be kind", "System role not supported")],
    "temperature": [(1.5, "temperature"), (-1, "temperature")],
    "thinking": [
        ({"type": "enabled", "budget_tokens": 1024}, "thinking"),
        ({"type": "enabled"}, "budget_tokens"),
        ({"type": "between_tools"}, "thinking.type"),
        ({"type": "disabled", "budget_tokens": 1024}, "budget_tokens"),
    ],
    "tool_choice": [({"type": "any"}, "tool_choice"), ({"type": "tool"}, "name")],
    "tools": [
        ([TOOL, TOOL], "tools[1].name"),
        ([TOOL | {"name": "no spaces"}], "tools[0].name"),
        ([TOOL | {"input_schema": {"type": "string"}}], "tools[0].input_schema"),
        ([{"type": "bash_20250124", "name": "bash"}], "bash_20250124"),
    ],
    "top_k": [(-1, "top_k")],
    "top_p": [(0, "top_p"), (2, "top_p")],
    "user_profile_id": [("u_1", "user_profile_id")],
    "workspace_id": [("w_1", "workspace_id")],
}


def fields_of(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in typing.get_type_hints(kind)}


def types_of(union: Any) -> set[str]:
    """The values of `type` that a union of objects has."""
    found: set[str] = set()
    for kind in typing.get_args(union):
        hints = typing.get_type_hints(kind)
        found.update(typing.get_args(hints["type"]))
    return found


def post(server: RunningServer, path: str = "/v1/messages", **fields: Any) -> tuple[int, str]:
    body = {"model": "fake", "max_tokens": 9, "messages": [USER]} | fields
    response = server.http.post(path, json=body)
    if response.status_code == 200:
        return 200, ""
    error = response.json()
    assert error["type"] == "error"
    assert error["request_id"] == response.headers["request-id"]
    return response.status_code, error["error"]["message"]


def test_every_field_is_known():
    known = WORKS.keys() | REFUSED.keys()
    assert fields_of(MessageCreateParamsNonStreaming, MessageCreateParamsStreaming) <= known


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WORKS.items() for value in values]
)
def test_works(hello: RunningServer, name: str, value: Any):
    assert post(hello, **{name: value}) == (200, "")


@pytest.mark.parametrize(
    ("name", "value", "blamed"),
    [(name, value, blamed) for name, cases in REFUSED.items() for value, blamed in cases],
)
def test_refused(hello: RunningServer, name: str, value: Any, blamed: str):
    status, message = post(hello, **{name: value})
    assert status == (404 if value == "other" else 400)
    assert blamed in message


def test_counting_takes_what_decides_the_prompt(hello: RunningServer):
    for name in fields_of(MessageCountTokensParams) - {"messages", "model"}:
        for value in WORKS.get(name, []):
            body = {"model": "fake", "messages": [USER], name: value}
            assert hello.http.post("/v1/messages/count_tokens", json=body).status_code == 200
    assert post(hello, "/v1/messages/count_tokens", max_tokens=1) == (200, "")


CALL = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t"}


@pytest.mark.parametrize("kind", sorted(types_of(ContentBlockParam)))
def test_every_type_of_content_block(hello: RunningServer, kind: str):
    blocks: dict[str, list[dict[str, Any]]] = {
        "text": [{"role": "user", "content": [{"type": "text", "text": "Hi"} | CACHED]}],
        "thinking": [
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "So"},
                ],
            },
        ],
        "tool_use": [
            USER,
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [RESULT]},
        ],
    }
    blocks["tool_result"] = blocks["tool_use"]
    if kind in blocks:
        assert post(hello, messages=blocks[kind]) == (200, "")
    else:
        status, message = post(hello, messages=[{"role": "user", "content": [{"type": kind}]}])
        assert status == 400
        assert message.startswith(
            f"messages[0].content[0]: a content block of type {kind!r} is not"
        )


@pytest.mark.parametrize("kind", sorted(types_of(ThinkingConfigParam)))
def test_every_type_of_thinking(hello: RunningServer, kind: str):
    status, _ = post(hello, thinking={"type": kind})
    assert status == (200 if kind in ("adaptive", "disabled") else 400)


@pytest.mark.parametrize(
    ("params", "block", "works"),
    [
        (
            TextBlockParam,
            {"type": "text", "text": "Hi"},
            {"cache_control": {"type": "ephemeral"}, "citations": []},
        ),
        (
            ToolUseBlockParam,
            CALL,
            {"cache_control": None, "caller": {"type": "direct"}, "toolset_name": None},
        ),
        (
            ToolResultBlockParam,
            RESULT,
            {"cache_control": None, "content": "5", "is_error": False, "toolset_name": None},
        ),
        (
            ToolParam,
            TOOL,
            {
                "type": "custom",
                "allowed_callers": ["direct"],
                "cache_control": None,
                "defer_loading": False,
                "description": "d",
                "eager_input_streaming": False,
                "input_examples": [],
                "strict": False,
            },
        ),
    ],
)
def test_every_field_of_blocks_and_tools(
    hello: RunningServer, params: Any, block: dict[str, Any], works: dict[str, Any]
):
    def request(more: dict[str, Any]) -> dict[str, Any]:
        full = block | more
        if params is ToolParam:
            return {"tools": [full]}
        if params is TextBlockParam:
            return {"messages": [{"role": "user", "content": [full]}]}
        call, result = (full, RESULT) if params is ToolUseBlockParam else (CALL, full)
        return {
            "messages": [
                USER,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
            ]
        }

    assert fields_of(params) == block.keys() | works.keys()
    for name, value in works.items():
        assert post(hello, **request({name: value})) == (200, "")
        status, message = post(hello, **request({name: {"un": "heard of"}}))
        assert status == 400
        assert name in message


@pytest.mark.parametrize(
    ("messages", "blamed"),
    [
        ([USER, {"role": "assistant", "content": [CALL]}], "tool_result"),
        ([USER, {"role": "assistant", "content": [CALL]}, USER], "messages[2]"),
        ([{"role": "user", "content": [RESULT]}], "'t'"),
        (
            [
                USER,
                {"role": "assistant", "content": [CALL, CALL]},
                {"role": "user", "content": [RESULT]},
            ],
            "same id",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [RESULT, RESULT]},
            ],
            "there already",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [{"type": "text", "text": "x"}, RESULT]},
            ],
            "before text",
        ),
        ([{"role": "user", "content": [CALL]}], "role user"),
        ([{"role": "assistant", "content": [RESULT]}], "role assistant"),
        ([{"role": "user", "content": [RESULT | {"content": [{"type": "image"}]}]}], "image"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"text": "x"}]}], "type"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": None}], "messages[0].content"),
    ],
)
def test_conversations_that_make_no_sense(hello: RunningServer, messages: list[Any], blamed: str):
    status, message = post(hello, messages=messages)
    assert status == 400
    assert blamed in message


def test_a_schema_that_cannot_be_enforced_is_named(hello: RunningServer):
    schema = {"type": "object", "properties": {"a": {"contains": 1}}}
    status, message = post(hello, tools=[TOOL | {"strict": True, "input_schema": schema}])
    assert status == 400
    assert message.startswith("tools[0].input_schema: ")
