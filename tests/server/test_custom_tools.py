"""Tools that take text: free, or held to a grammar; on the responses API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest

from caudal.chat.calls.formats import HERMES, TOOL_FORMATS
from caudal.chat.conversation import Tool
from caudal.chat.dialect import MESSAGE_FORMATS
from caudal.chat.preparer import ChatPreparer
from caudal.chat.text_input import TextInput
from support.custom_tools import ARGUMENTS, PATCH, PATCH_GRAMMAR, written
from support.fake_model import ByteTokenizer, ScriptedExecutor, changed, serve_fake
from support.fake_template import ToolTemplate
from support.running_server import RunningServer, running_server

Converse = Callable[..., RunningServer]

PATCH_TOOL: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
FREE_TOOL: Any = {"type": "custom", "name": "note", "format": {"type": "text"}}
FUNCTION: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}},
}


def stream(server: RunningServer, **fields: Any) -> list[Any]:
    return list(server.openai().responses.create(model="fake", input="Hi", stream=True, **fields))


def test_free_text_is_taken_from_a_functions_argument(converse: Converse):
    text = 'Say "hi"\n\\o/ día'
    call = json.dumps({"name": "note", "arguments": {"input": text}})
    server = converse(f"Well.<tool_call>{call}</tool_call>")
    response = server.openai().responses.create(model="fake", input="Hi", tools=[FREE_TOOL])
    message, item = response.output
    assert message.type == "message"
    assert item.type == "custom_tool_call"
    assert (item.name, item.input) == ("note", text)
    assert item.call_id.startswith("call_")
    events = stream(server, tools=[FREE_TOOL])
    kinds = [event.type for event in events][-5:]
    assert kinds == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[-5].item.input == ""
    assert events[-4].delta == events[-3].input == events[-2].item.input == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"input": "a"}, "a"),
        ({"patch": "a"}, "a"),
        ({"input": "a", "more": "b"}, "a"),
        ({"input": 5}, '{"input": 5}'),
        ({}, "{}"),
    ],
)
def test_other_arguments_than_asked_for(converse: Converse, arguments: Any, text: str):
    call = json.dumps({"name": "note", "arguments": arguments})
    server = converse(f"<tool_call>{call}</tool_call>")
    response = server.openai().responses.create(model="fake", input="Hi", tools=[FREE_TOOL])
    [item] = response.output
    assert item.type == "custom_tool_call"
    assert item.input == text


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "name": "apply_patch"}])
@pytest.mark.parametrize("tools", [[PATCH_TOOL], [FUNCTION, FREE_TOOL, PATCH_TOOL]])
def test_a_text_follows_its_grammar(converse: Converse, choice: Any, tools: Any):
    server = converse(written("apply_patch", PATCH))
    response = server.openai().responses.create(
        model="fake", input="Hi", tools=tools, tool_choice=choice
    )
    [item] = response.output
    assert item.type == "custom_tool_call"
    assert (item.name, item.input) == ("apply_patch", PATCH)
    assert response.status == "completed"
    deltas = [
        event.delta
        for event in stream(server, tools=tools, tool_choice=choice)
        if event.type == "response.custom_tool_call_input.delta"
    ]
    assert "".join(deltas) == PATCH
    assert len(deltas) > 10


def test_a_model_that_would_write_something_else_is_held_to_the_grammar(converse: Converse):
    server = converse(written("apply_patch", "rm -rf everything, or so I would like it to be"))
    response = server.openai().responses.create(
        model="fake", input="Hi", tools=[PATCH_TOOL], tool_choice="required", max_output_tokens=200
    )
    [item] = response.output
    assert item.type == "custom_tool_call"
    assert item.input.startswith("*** Begin Patch\n*** ")


def test_a_pattern_is_followed_too(converse: Converse):
    tool: Any = {
        "type": "custom",
        "name": "when",
        "format": {"type": "grammar", "syntax": "regex", "definition": r"\d{4}/\d\d\/\d\d"},
    }
    for script in ("2024/02/29", "yesterday"):
        server = converse(written("when", script))
        response = server.openai().responses.create(
            model="fake", input="Hi", tools=[tool], tool_choice="required"
        )
        [item] = response.output
        assert item.type == "custom_tool_call"
        assert re.fullmatch(r"\d{4}/\d\d/\d\d", item.input)
        assert script == "yesterday" or item.input == script


def test_text_before_a_call_and_calls_before_a_text(converse: Converse):
    look = f'<tool_call>\n{ARGUMENTS.replace("NAME", "look")}{{"at": 5}}}}\n</tool_call>'
    server = converse(f"Let me see.{look}{written('apply_patch', PATCH)}")
    response = server.openai().responses.create(
        model="fake", input="Hi", tools=[FUNCTION, PATCH_TOOL]
    )
    kinds = [item.type for item in response.output]
    assert kinds == ["message", "function_call", "custom_tool_call"]
    assert response.output[-1].input == PATCH  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", {"max_output_tokens": 80, "stop": "Add File"}.items())
def test_a_text_that_is_cut_short_does_not_look_whole(converse: Converse, limit: tuple[str, Any]):
    server = converse(written("apply_patch", PATCH))
    body = {"model": "fake", "input": "Hi", "tools": [PATCH_TOOL], "tool_choice": "required"}
    response = server.http.post("/v1/responses", json=body | dict([limit])).json()
    [item] = response["output"]
    assert item["status"] == "incomplete"
    assert PATCH.startswith(item["input"])
    assert item["input"] != PATCH


@pytest.mark.parametrize("parser", [*TOOL_FORMATS, *MESSAGE_FORMATS])
def test_every_format_of_calls(parser: str):
    tool = Tool(name="apply_patch", text_input=TextInput(grammar="start: X"))
    if parser in MESSAGE_FORMATS:
        syntax = MESSAGE_FORMATS[parser].json_syntax
    elif TOOL_FORMATS[parser].syntax.can_write([tool]):
        syntax = TOOL_FORMATS[parser].syntax
    else:
        syntax = HERMES.syntax
    script = (syntax.begin + syntax.head_of_text).replace("NAME", "apply_patch") + PATCH
    template, tokenizer = ToolTemplate(), ByteTokenizer()
    chat = ChatPreparer(template, tokenizer, tool_parser=parser)  # type: ignore[arg-type]
    model = serve_fake(
        ScriptedExecutor(script=script.encode(), num_blocks=2048), max_model_len=16384
    )
    with running_server(changed(model, chat=chat)) as server:
        for choice in ("required", "auto"):
            response = server.openai().responses.create(
                model="fake",
                input="Hi",
                tools=[FUNCTION, PATCH_TOOL],
                tool_choice=choice,  # type: ignore[arg-type]
                max_output_tokens=1000,
            )
            item = response.output[-1]
            assert item.type == "custom_tool_call"
            assert item.input == PATCH


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        ({"syntax": "lark", "definition": "start: nothing"}, "tools[1].format"),
        ({"syntax": "lark", "definition": 'begin: "x"'}, "tools[1].format"),
        ({"syntax": "regex", "definition": "(?=x)y"}, "tools[1].format"),
        ({"syntax": "gbnf", "definition": 'root ::= "x"'}, "tools[1].format.syntax"),
        ({"syntax": "lark"}, "tools[1].format.definition"),
        ({"syntax": "lark", "definition": "start: X", "strictness": 5}, "tools[1].format"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_named(converse: Converse, change: Any, blamed: str):
    tools: Any = [
        {"type": "web_search"},
        {"type": "custom", "name": "odd", "format": {"type": "grammar"} | change},
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        converse("x").openai().responses.create(model="fake", input="Hi", tools=tools)
    assert caught.value.param is not None
    assert caught.value.param.startswith(blamed)


def test_a_custom_tool_that_is_not_there(converse: Converse):
    with pytest.raises(openai.BadRequestError) as caught:
        converse("x").openai().responses.create(
            model="fake",
            input="Hi",
            tools=[FREE_TOOL],
            tool_choice={"type": "custom", "name": "apply_patch"},
        )
    assert caught.value.param == "tool_choice"


def test_a_custom_call_goes_in_again_as_it_came_out(converse: Converse):
    server = converse(written("apply_patch", PATCH))
    client = server.openai()
    first = client.responses.create(model="fake", input="Hi", tools=[PATCH_TOOL])
    call = first.output[-1]
    assert call.type == "custom_tool_call"
    output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done!"}
    second = client.responses.create(
        model="fake", input=[output], previous_response_id=first.id, tools=[PATCH_TOOL]
    )
    by_hand: Any = [{"role": "user", "content": "Hi"}, call.to_dict(), output]
    counted = client.responses.input_tokens.count(model="fake", input=by_hand, tools=[PATCH_TOOL])
    assert second.usage is not None
    assert second.usage.input_tokens == counted.input_tokens


def test_a_schema_that_nobody_wants_enforced_is_no_hindrance(converse: Converse):
    odd: Any = {
        "type": "function",
        "name": "odd",
        "parameters": {"type": "object", "properties": {"a": {"contains": {"const": 1}}}},
    }
    tools: Any = [odd, PATCH_TOOL]
    script = written("apply_patch", PATCH)
    client = converse(script).openai()
    response = client.responses.create(model="fake", input="Hi", tools=tools)
    assert response.output[-1].input == PATCH  # type: ignore[union-attr]
    call = f'<tool_call>\n{ARGUMENTS.replace("NAME", "odd")}{{"b": [1, 2]}}}}\n</tool_call>'
    free = converse(call).openai().responses.create(model="fake", input="Hi", tools=tools)
    assert json.loads(free.output[-1].arguments) == {"b": [1, 2]}  # type: ignore[union-attr]
    for wish in ({"tool_choice": "required"}, {"tools": [odd | {"strict": True}, PATCH_TOOL]}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**{"model": "fake", "input": "Hi", "tools": tools} | wish)
        assert caught.value.param == "tools[0].parameters"
