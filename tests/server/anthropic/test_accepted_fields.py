"""Everything that the official client can send works, is taken and said, or is refused by name."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import typing_extensions
from anthropic.types import (
    ContentBlockParam,
    MessageCountTokensParams,
    SystemMessageParam,
    TextBlockParam,
    ThinkingConfigParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from anthropic.types.beta import (
    BetaContentBlockParam,
    BetaSystemMessageParam,
    BetaTextBlockParam,
    BetaToolParam,
    BetaToolResultBlockParam,
    BetaToolUnionParam,
    BetaToolUseBlockParam,
)
from anthropic.types.beta.message_count_tokens_params import (
    MessageCountTokensParams as BetaCountTokensParams,
)
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsNonStreaming as BetaNonStreaming,
)
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsStreaming as BetaStreaming,
)
from anthropic.types.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
)

from caudal.server.anthropic.client_tools import CLIENT_TOOLS
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLEAR_TOOLS = {"type": "clear_tool_uses_20250919"}
CLEAR_THINKING = {"type": "clear_thinking_20251015"}
TURNS = {"type": "thinking_turns", "value": 1}

WORKS: dict[str, list[Any]] = {
    "max_tokens": [1, 0, -1],
    "messages": [[USER, USER], [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]],
    "model": ["fake", None],
    "billing_policy": [{"type": "billing_policy", "bill_to": "self"}],
    "cache_control": [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, None],
    "compaction": [None],
    "diagnostics": [None, {"previous_message_id": None}],
    "container": [None, {"skills": []}],
    "context_management": [
        None,
        {},
        {"edits": []},
        {"edits": [CLEAR_THINKING | {"keep": "all"}, CLEAR_TOOLS]},
        {"edits": [CLEAR_THINKING | {"keep": {"type": "all"}}]},
        {"edits": [CLEAR_THINKING | {"keep": TURNS}]},
    ],
    "fallback_credit_token": [None],
    "fallbacks": [None, []],
    "inference_geo": [None],
    "mcp_servers": [[]],
    "metadata": [{"user_id": "ana"}, {"user_id": None}, {}],
    "output_config": [{}, {"effort": None}, {"format": None}],
    "service_tier": ["auto", "standard_only"],
    "speed": ["standard", None],
    "stop_sequences": [["x"], []],
    "stream": [True, False],
    "system": [[], "", [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}]],
    "thinking": [
        {"type": "disabled"},
        {"type": "adaptive"},
        {"type": "adaptive", "display": "omitted"},
        {"type": "between_tools"},
    ],
    "thread": [None],
    "tool_choice": [None, {"type": "auto"}, {"type": "none", "disable_parallel_tool_use": True}],
    "tools": [[], [TOOL], [TOOL | CACHED | {"type": "custom", "description": "d"}]],
    "temperature": [0, 0.5, 1],
    "top_k": [0, 40, -1],
    "top_p": [0.9, 0],
    "betas": [None],
    "user_profile_id": [None],
    "workspace_id": [None],
}
SAID: dict[str, list[tuple[Any, str]]] = {
    "model": [("claude-opus-5-5", "model")],
    "anthropic_version": [("vertex-2023-10-16", "anthropic_version")],
    "anthropic_beta": [(["x"], "anthropic_beta")],
    "betas": [(["x"], "betas")],
    "billing_policy": [({"type": "billing_policy", "bill_to": "user_profile"}, "billing_policy")],
    "cache_control": [({"type": "ephemeral", "scope": "global"}, "cache_control.scope")],
    "context_management": [
        (
            {"edits": [{"type": "compact_20260112"}]},
            "context_management.edits[].compact_20260112",
        )
    ],
    "diagnostics": [({"previous_message_id": "msg_1"}, "diagnostics")],
    "fallback_credit_token": [("t", "fallback_credit_token")],
    "fallbacks": [("default", "fallbacks")],
    "inference_geo": [("eu", "inference_geo")],
    "mcp_servers": [([{"name": "x"}], "mcp_servers")],
    "output_config": [
        ({"effort": "high"}, "output_config.effort"),
        ({"task_budget": {"type": "tokens", "total": 9}}, "output_config.task_budget"),
    ],
    "service_tier": [("priority", "service_tier")],
    "speed": [("fast", "speed")],
    "thinking": [
        ({"type": "enabled"}, "thinking"),
        ({"type": "disabled", "budget_tokens": 1024}, "thinking.budget_tokens"),
        ({"type": "adaptive", "display": "updates"}, "thinking.display"),
        ({"type": "adaptive", "block_binding": {"x": "y"}}, "thinking.block_binding"),
    ],
    "thread": [({"type": "create"}, "thread")],
    "user_profile_id": [("u_1", "user_profile_id")],
    "workspace_id": [("w_1", "workspace_id")],
}
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "max_tokens": [(-2, "max_tokens"), ("9", "max_tokens"), (None, "max_tokens")],
    "messages": [([], "messages"), ("Hi", "messages")],
    "model": [("other", "other")],
    "cache_control": [({"type": "lasting"}, "cache_control.type")],
    "compaction": [({"type": "summarize"}, "compaction")],
    "container": [("c_1", "container"), ({"skills": [{"skill_id": "x"}]}, "container")],
    "context_management": [
        ({"edits": [CLEAR_THINKING | {"keep": 3}]}, "context_management.edits[0].keep"),
        (
            {"edits": [CLEAR_THINKING | {"keep": TURNS | {"value": 0}}]},
            "context_management.edits[0].keep",
        ),
        (
            {"edits": [CLEAR_TOOLS | {"trigger": TURNS}]},
            "context_management.edits[0].trigger",
        ),
    ],
    "metadata": [({"user_ids": "x"}, "metadata.user_id?")],
    "output_config": [
        ({"effort": "some"}, "output_config.effort"),
        ({"format": {"type": "json_schema", "schema": {"type": 7}}}, "output_config.format"),
    ],
    "stop_sequences": [([""], "stop_sequences"), (["x"] * 65, "stop_sequences")],
    "stream": [("yes", "stream")],
    "system": [([{"type": "image"}], "image"), ("Be kind", "System role not supported")],
    "temperature": [(1.5, "temperature"), (-1, "temperature")],
    "thinking": [
        ({"type": "enabled", "budget_tokens": 1024}, "thinking.budget_tokens"),
        ({"type": "often"}, "thinking.type"),
    ],
    "tool_choice": [({"type": "any"}, "tool_choice"), ({"type": "tool"}, "tool_choice")],
    "tools": [
        ([TOOL, TOOL], "tools[1].name"),
        ([TOOL | {"name": "no spaces"}], "tools[0].name"),
        ([TOOL | {"name": "x" * 129}], "tools[0].name"),
        ([TOOL | {"input_schema": {"type": "string"}}], "tools[0].input_schema"),
        ([{"type": "browser_toolset_20260801"}], "browser_toolset_20260801"),
    ],
    "top_k": [(-2, "top_k")],
    "top_p": [(-0.5, "top_p"), (2, "top_p")],
}


def fields_of(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in typing.get_type_hints(kind)}


def types_of(union: Any) -> set[str]:
    """The values of `type` that a union of objects has."""
    if not isinstance(union, type):
        return set().union(*(types_of(kind) for kind in typing.get_args(union)))
    if not typing_extensions.is_typeddict(union):
        return set()  # of an answer, which may be sent back: its types are those of the request
    kinds = typing.get_args(typing.get_type_hints(union)["type"])
    return {
        each
        for kind in kinds
        for each in typing.get_args(kind) or (kind,)
        if each is not type(None)
    }


def post(server: RunningServer, path: str = "/v1/messages", **fields: Any) -> tuple[int, str]:
    """The status, and why it is none of success or what had no effect."""
    body = {"model": "fake", "max_tokens": 9, "messages": [USER]} | fields
    response = server.http.post(path, json=body)
    if response.status_code == 200:
        return 200, response.headers.get("x-caudal-ignored", "")
    error = response.json()
    assert error["type"] == "error"
    assert error["request_id"] == response.headers["request-id"]
    return response.status_code, error["error"]["message"]


def test_every_field_is_known():
    known = WORKS.keys() | SAID.keys() | REFUSED.keys()
    assert fields_of(MessageCreateParamsNonStreaming, MessageCreateParamsStreaming) <= known
    assert fields_of(BetaNonStreaming, BetaStreaming) <= known


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WORKS.items() for value in values]
)
def test_works(hello: RunningServer, name: str, value: Any):
    assert post(hello, **{name: value}) == (200, "")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [(name, value, said) for name, cases in SAID.items() for value, said in cases],
)
def test_taken_and_said(hello: RunningServer, name: str, value: Any, said: str):
    assert post(hello, **{name: value}) == (200, said)


@pytest.mark.parametrize(
    ("name", "value", "blamed"),
    [(name, value, blamed) for name, cases in REFUSED.items() for value, blamed in cases],
)
def test_refused(hello: RunningServer, name: str, value: Any, blamed: str):
    status, message = post(hello, **{name: value})
    assert status == (404 if value == "other" else 400)
    assert blamed in message


def test_counting_takes_what_decides_the_prompt(hello: RunningServer):
    fields = fields_of(MessageCountTokensParams, BetaCountTokensParams) - {"messages", "model"}
    for name in fields:
        said = [value for value, _ in SAID.get(name, [])]
        for value in [*WORKS.get(name, []), *said]:
            body = {"model": "fake", "messages": [USER], name: value}
            assert hello.http.post("/v1/messages/count_tokens", json=body).status_code == 200
    assert post(hello, "/v1/messages/count_tokens", max_tokens=1) == (200, "max_tokens")


CALL = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t"}

TEXT = {"type": "text", "text": "Hi"}
ANSWERED = [
    USER,
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [RESULT]},
]
USER_BLOCKS: dict[str, dict[str, Any]] = {
    "text": TEXT | CACHED,
    "document": {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "Some."},
    },
    "search_result": {"type": "search_result", "source": "s", "title": "t", "content": [TEXT]},
}
KINDS = types_of(ContentBlockParam) | types_of(BetaContentBlockParam)
FILES = {"image", "container_upload"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_type_of_content_block(hello: RunningServer, kind: str):
    """Whatever an answer of Anthropic's may hold can stand in a history, or a session is over."""
    thought = {"type": "thinking", "thinking": "Hm."}
    assistant: dict[str, dict[str, Any]] = {"text": TEXT, "thinking": thought}
    if kind in ("tool_use", "tool_result"):
        assert post(hello, messages=ANSWERED) == (200, "")
        return
    if kind in ("tool_addition", "tool_removal"):
        changed = {"type": kind, "tool": {"type": "tool_reference", "name": "weather"}}
        messages = [USER, {"role": "system", "content": [changed]}]
        assert post(hello, messages=messages, tools=[TOOL]) == (200, "")
        return
    if kind in USER_BLOCKS:
        assert post(hello, messages=[{"role": "user", "content": [USER_BLOCKS[kind]]}]) == (200, "")
    else:
        status, message = post(hello, messages=[{"role": "user", "content": [{"type": kind}]}])
        assert status == 400
        assert "messages[0].content[0]" in message
    if kind in FILES or kind in ("document", "search_result"):
        return
    left_out = "" if kind in assistant else f"messages[].content[].{kind}"
    block = assistant.get(kind, {"type": kind, "data": "x", "content": [{"type": "y"}]})
    messages = [USER, {"role": "assistant", "content": [block, TEXT]}, USER]
    assert post(hello, messages=messages) == (200, left_out)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "image", "source": {"type": "base64", "data": "x"}}, "an image, but"),
        ({"type": "document", "source": {"type": "base64", "data": "x"}}, "a document that isn't"),
        ({"type": "document", "source": {"type": "file", "file_id": "x"}}, "a document that isn't"),
        ({"type": "container_upload", "file_id": "x"}, "a file, but"),
        ({"type": "video"}, "a content block of type 'video' is not supported"),
    ],
)
def test_what_a_text_model_cannot_read_is_called_by_its_name(
    hello: RunningServer, block: dict[str, Any], words: str
):
    status, message = post(hello, messages=[{"role": "user", "content": [TEXT, block]}])
    assert status == 400
    assert message.startswith(f"messages[0].content[1]: {words}")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (TEXT, ""),
        (USER_BLOCKS["document"], ""),
        (USER_BLOCKS["search_result"], ""),
        ({"type": "tool_reference", "tool_name": "weather"}, ""),
        ({"type": "image", "source": {}}, "messages[].content[].content[].image"),
        (
            {"type": "document", "source": {"type": "url", "url": "x"}},
            "messages[].content[].content[].document",
        ),
        ({"type": "browser_state", "tabs": []}, "messages[].content[].content[].browser_state"),
    ],
)
def test_no_tools_result_ends_a_session(hello: RunningServer, part: dict[str, Any], said: str):
    messages = [*ANSWERED[:2], {"role": "user", "content": [RESULT | {"content": [part, TEXT]}]}]
    assert post(hello, messages=messages) == (200, said)


@pytest.mark.parametrize("kind", sorted(types_of(ThinkingConfigParam)))
def test_every_type_of_thinking(hello: RunningServer, kind: str):
    assert post(hello, thinking={"type": kind}) == (200, "thinking" if kind == "enabled" else "")


@pytest.fixture(scope="module")
def large() -> Iterator[RunningServer]:
    """A server with room for the schemas of tools."""
    executor = ScriptedExecutor(script=b"Hello", num_blocks=1024)
    with running_server(serve_fake(executor, max_model_len=8192)) as server:
        yield server


@pytest.mark.parametrize("kind", sorted(types_of(BetaToolUnionParam) - {"custom"}))
def test_every_tool_that_anthropic_defines(large: RunningServer, kind: str):
    """Those that clients run are offered, those of its servers are not, and that is said."""
    status, words = post(large, tools=[{"type": kind, "name": "x"}, TOOL])
    if kind in CLIENT_TOOLS:
        assert (status, words) == (200, "")
    elif "toolset_2" in kind:
        assert status == 400
        assert kind in words
    else:
        assert (status, words) == (200, f"tools[].{kind}")
        status, words = post(
            large, tools=[{"type": kind, "name": "x"}], tool_choice={"type": "tool", "name": "x"}
        )
        assert status == 400
        assert kind in words


Fields = dict[str, Any]


@pytest.mark.parametrize(
    ("params", "block", "works", "said"),
    [
        (
            (TextBlockParam, BetaTextBlockParam),
            {"type": "text", "text": "Hi"},
            {"cache_control": {"type": "ephemeral"}, "citations": []},
            {"citations": [{"cited_text": "x"}]},
        ),
        (
            (ToolUseBlockParam, BetaToolUseBlockParam),
            CALL,
            {"cache_control": None, "caller": {"type": "direct"}, "toolset_name": None},
            {"caller": {"type": "code_execution_20250825"}, "toolset_name": "x"},
        ),
        (
            (ToolResultBlockParam, BetaToolResultBlockParam),
            RESULT,
            {"cache_control": None, "content": "5", "is_error": False, "toolset_name": None},
            {"toolset_name": "x"},
        ),
        (
            (ToolParam, BetaToolParam),
            TOOL,
            {
                "type": "custom",
                "allowed_callers": ["direct"],
                "cache_control": None,
                "defer_loading": True,
                "description": "d",
                "eager_input_streaming": False,
                "input_examples": [{"a": 1}],
                "strict": False,
            },
            {"allowed_callers": ["code_execution_20250825"], "eager_input_streaming": True},
        ),
        (
            (SystemMessageParam, BetaSystemMessageParam),
            {"role": "system"},
            {"content": [], "clear_at": "never", "output_config": None},
            {"output_config": {"effort": "low"}},
        ),
    ],
)
def test_every_field_of_blocks_and_tools(
    hello: RunningServer, params: Iterable[Any], block: Fields, works: Fields, said: Fields
):
    def request(more: Fields) -> Fields:
        full = block | more
        if ToolParam in params:
            return {"tools": [full]}
        if TextBlockParam in params:
            return {"messages": [{"role": "user", "content": [full]}]}
        if SystemMessageParam in params:
            return {"messages": [USER, full]}
        call, result = (full, RESULT) if ToolUseBlockParam in params else (CALL, full)
        return {
            "messages": [
                USER,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
            ]
        }

    assert fields_of(*params) == block.keys() | works.keys()
    for name, value in works.items():
        assert post(hello, **request({name: value})) == (200, "")
    for name, value in said.items():
        status, words = post(hello, **request({name: value}))
        assert status == 200
        assert words.endswith(f".{name}")
    for name in works.keys() - said.keys():
        status, message = post(hello, **request({name: {"un": "heard of"}}))
        assert status == 400
        assert name in message


@pytest.mark.parametrize(
    ("messages", "blamed"),
    [
        ([USER, {"role": "assistant", "content": [CALL]}], "tool_result"),
        (
            [USER, {"role": "assistant", "content": [CALL]}, USER],
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
            "t. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message.",
        ),
        (
            [{"role": "user", "content": [RESULT]}],
            "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t.",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": [CALL, CALL]},
                {"role": "user", "content": [RESULT]},
            ],
            "messages.1: `tool_use` ids must be unique.",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [RESULT, RESULT]},
            ],
            "Found multiple `tool_result` blocks with id: t",
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
        ([{"role": "system", "content": [CALL]}], "role system"),
        ([USER, {"role": "assistant", "content": [{"type": "image"}]}], "messages[1].content[0]"),
        ([{"role": "system", "content": []}], "no content"),
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
