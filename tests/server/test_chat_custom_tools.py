"""Tools that take text, on the chat API: as the official client has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageCustomToolCall

from support.custom_tools import ARGUMENTS, PATCH, PATCH_GRAMMAR, written
from support.running_server import RunningServer

Converse = Callable[..., RunningServer]

HI: list[Any] = [{"role": "user", "content": "Hi"}]
FORMAT: Any = {"type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH_GRAMMAR}}
PATCH_TOOL: Any = {
    "type": "custom",
    "custom": {"name": "apply_patch", "description": "Changes files.", "format": FORMAT},
}
FREE_TOOL: Any = {"type": "custom", "custom": {"name": "note", "format": {"type": "text"}}}
FUNCTION: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}},
    },
}
NAMED: Any = {"type": "custom", "custom": {"name": "apply_patch"}}
TEXT = 'Say "hi"\n\\o/ día'
HEAD = f"<tool_call>\n{ARGUMENTS}"
GIVEN = json.dumps({"input": TEXT}, ensure_ascii=False)
NOTE = f"{HEAD.replace('NAME', 'note')}{GIVEN}}}\n</tool_call>"
LOOK = f'{HEAD.replace("NAME", "look")}{{"at": 5}}}}\n</tool_call>'


def ask(server: RunningServer, **fields: Any) -> Any:
    body = {"model": "fake", "messages": HI} | fields
    [choice] = server.openai().chat.completions.create(**body).choices
    return choice


def call_deltas(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "fake", "messages": HI, "stream": True} | fields
    chunks = server.openai().chat.completions.create(**body)
    deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks]
    return [call for delta in deltas for call in delta.get("tool_calls") or ()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("tool", [FREE_TOOL, {"type": "custom", "custom": {"name": "note"}}])
def test_free_text_is_taken_from_a_functions_argument(converse: Converse, tool: Any):
    server = converse(f"Well.{NOTE}")
    choice = ask(server, tools=[tool])
    assert choice.message.content == "Well."
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert call.id.startswith("call_")
    sent = {"type": "custom", "custom": {"name": "note", "input": TEXT}}
    assert call.to_dict() == {"id": call.id, **sent}
    begin, more = call_deltas(server, tools=[tool])
    empty = {"type": "custom", "custom": {"name": "note", "input": ""}}
    assert begin == {"index": 0, "id": begin["id"], **empty}
    assert more == {"index": 0, "custom": {"input": TEXT}}


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "required",
        NAMED,
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
    ],
)
@pytest.mark.parametrize("tools", [[PATCH_TOOL], [FUNCTION, FREE_TOOL, PATCH_TOOL]])
def test_a_text_follows_its_grammar(converse: Converse, choice: Any, tools: Any):
    server = converse(written("apply_patch", PATCH))
    answer = ask(server, tools=tools, tool_choice=choice)
    [call] = answer.message.tool_calls
    assert (call.custom.name, call.custom.input) == ("apply_patch", PATCH)
    assert answer.finish_reason == "tool_calls"
    begin, *more = call_deltas(server, tools=tools, tool_choice=choice)
    assert begin["custom"] == {"name": "apply_patch", "input": ""}
    assert "".join(each["custom"]["input"] for each in more) == PATCH
    assert len(more) > 10


def test_a_named_tool_is_called_whatever_the_model_would(converse: Converse):
    server = converse(LOOK)
    tools = [FUNCTION, FREE_TOOL, PATCH_TOOL]
    answer = ask(server, tools=tools, tool_choice=NAMED, max_tokens=200)
    [call] = answer.message.tool_calls
    assert call.custom.name == "apply_patch"
    assert call.custom.input.startswith("*** Begin Patch\n*** ")
    only: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    answer = ask(server, tools=tools, tool_choice=only, max_tokens=200)
    assert {call.type for call in answer.message.tool_calls} == {"custom"}


def test_a_pattern_is_followed(converse: Converse):
    grammar = {"syntax": "regex", "definition": r"\d{4}/\d\d\/\d\d"}
    form = {"type": "grammar", "grammar": grammar}
    tool: Any = {"type": "custom", "custom": {"name": "when", "format": form}}
    for script in ("2024/02/29", "yesterday"):
        server = converse(written("when", script))
        [call] = ask(server, tools=[tool], tool_choice="required").message.tool_calls
        assert re.fullmatch(r"\d{4}/\d\d/\d\d", call.custom.input)
        assert script == "yesterday" or call.custom.input == script


def test_functions_and_custom_tools_in_one_answer(converse: Converse):
    server = converse(f"{NOTE}{LOOK}{written('apply_patch', PATCH)}")
    tools = [FUNCTION, FREE_TOOL, PATCH_TOOL]
    calls = ask(server, tools=tools).message.tool_calls
    assert [call.type for call in calls] == ["custom", "function", "custom"]
    assert calls[1].function.arguments == '{"at": 5}'
    assert (calls[0].custom.input, calls[2].custom.input) == (TEXT, PATCH)
    deltas = call_deltas(server, tools=tools)
    kinds = [{"custom", "function"} & each.keys() for each in deltas]
    assert all(kinds[i] == {calls[each["index"]].type} for i, each in enumerate(deltas))
    # Two answers side by side, each with calls of its own.
    twice = server.openai().chat.completions.create(
        model="fake", messages=HI, tools=tools, stream=True, n=2
    )
    joined: dict[tuple[int, int], str] = {}
    for chunk in twice:
        for choice in chunk.choices:
            for part in choice.delta.to_dict().get("tool_calls") or ():  # type: ignore[attr-defined]
                [kind] = {"custom", "function"} & part.keys()
                assert kind == calls[part["index"]].type
                given = part[kind].get("input", part[kind].get("arguments"))
                place = (choice.index, part["index"])
                joined[place] = joined.get(place, "") + given
    expected = [TEXT, '{"at": 5}', PATCH]
    assert joined == {(i, k): text for i in range(2) for k, text in enumerate(expected)}


def test_the_clients_own_stream_joins_a_call(converse: Converse):
    server = converse(written("apply_patch", PATCH))
    with server.openai().chat.completions.stream(
        model="fake", messages=HI, tools=[PATCH_TOOL]
    ) as stream:
        for _ in stream:
            pass
        [call] = stream.current_completion_snapshot.choices[0].message.tool_calls or ()
    assert call.to_dict()["custom"] == {"name": "apply_patch", "input": PATCH}
    assert call.type == "custom"  # type: ignore[comparison-overlap]


def test_a_text_that_is_cut_short_is_not_said_to_be_whole(converse: Converse):
    server = converse(written("apply_patch", PATCH))
    answer = ask(server, tools=[PATCH_TOOL], tool_choice="required", max_tokens=80)
    assert answer.finish_reason == "length"
    [call] = answer.message.tool_calls
    assert PATCH.startswith(call.custom.input)
    assert call.custom.input != PATCH


@pytest.mark.parametrize("tool", [PATCH_TOOL, FREE_TOOL])
def test_a_call_goes_in_again_as_it_came_out(converse: Converse, tool: Any):
    server = converse(NOTE if tool is FREE_TOOL else written("apply_patch", PATCH))
    message = ask(server, tools=[tool]).message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Done!"}
    # What the model is shown is the function's call that it knows the tool by.
    arguments = json.dumps({"input": call.custom.input}, ensure_ascii=False)
    function = {"name": call.custom.name, "arguments": arguments}
    shown = {"id": call.id, "type": "function", "function": function}
    counts = []
    for sent in (
        message,
        message.to_dict(),
        message.model_dump(),
        {"role": "assistant", "tool_calls": [call.to_dict() | {"index": 0, "function": None}]},
        {"role": "assistant", "tool_calls": [shown]},
        {"role": "assistant", "tool_calls": [{**shown, "type": None}]},
    ):
        body = {"model": "fake", "messages": [*HI, sent, result], "tools": [tool]}
        answer = server.openai().chat.completions.create(**body)
        assert answer.usage is not None
        counts.append(answer.usage.prompt_tokens)
    assert counts == [counts[0]] * len(counts)


def custom(**fields: Any) -> Any:
    return {"type": "custom", "custom": {"name": "odd"} | fields}


def grammar(**fields: Any) -> Any:
    return custom(format={"type": "grammar", "grammar": fields})


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"tools": [FUNCTION, grammar(syntax="lark", definition="start: nothing")]},
            "tools[1].custom.format",
            "nothing",
        ),
        ({"tools": [grammar(syntax="regex", definition="(?=x)y")]}, "tools[0].custom.format", ""),
        (
            {"tools": [grammar(syntax="gbnf", definition='root ::= "x"')]},
            "tools[0].custom.format.grammar.syntax",
            "'lark'",
        ),
        ({"tools": [grammar(syntax="lark")]}, "tools[0].custom.format.grammar.definition", ""),
        (
            {"tools": [grammar(syntax="lark", definition="start: X", strictness=5)]},
            "tools[0].custom.format.grammar.strictness",
            "",
        ),
        (
            {"tools": [custom(format={"type": "json"})]},
            "tools[0].custom.format",
            "only text, grammar",
        ),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom", ""),
        ({"tools": [custom(name="a b")]}, "tools[0].custom.name", "64 letters"),
        ({"tools": [FUNCTION, custom(name="look")]}, "tools[1].custom.name", "two tools"),
        ({"tools": [FREE_TOOL], "tool_choice": NAMED}, "tool_choice", "'apply_patch'"),
        (
            {"tools": [FREE_TOOL], "tool_choice": {"type": "custom", "name": "note"}},
            "tool_choice.custom",
            "",
        ),
        (
            {"tools": [FREE_TOOL], "tool_choice": {"type": "mcp"}},
            "tool_choice",
            "only function, custom, allowed_tools",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
            "messages[0].tool_calls[0].custom",
            "",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "mcp"}]}]},
            "messages[0].tool_calls[0]",
            "only function, custom",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_makes_no_sense_is_refused_by_name(
    hello: RunningServer, fields: dict[str, Any], param: str, words: str, stream: bool
):
    with pytest.raises(openai.BadRequestError) as caught:
        body = {"model": "fake", "messages": HI, "stream": stream} | fields
        hello.openai().chat.completions.create(**body)
    assert caught.value.param == param
    assert words in caught.value.message
