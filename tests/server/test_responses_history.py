"""What other servers and sessions left in a conversation, and what a model reads of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from caudal.chat.conversation import Message
from caudal.server.openai.reasoning_seal import MAX_TEXT_BYTES, ReasoningSeal
from caudal.server.openai.responses_history import HistoryReader
from caudal.server.openai.responses_items import read_stored
from caudal.server.openai.responses_schema import InputFields
from support.running_server import RunningServer

Converse = Callable[..., RunningServer]

SEAL = ReasoningSeal("secret")
USER: Any = {"type": "message", "role": "user", "content": "Hi"}


def read(*items: Any) -> tuple[list[Message], list[str]]:
    """The messages behind a user's, and what was left out."""
    reader = HistoryReader(SEAL)
    messages = reader.read(read_stored([USER, *items]))
    return messages[1:], reader.ignored


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object"}} | more


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
@pytest.mark.parametrize("call", ["function_call", "custom_tool_call"])
def test_what_is_no_text_in_a_tools_output_leaves_a_note(kind: str, call: str):
    text = {"type": "input_text", "text": "Here:"}
    (_, result), ignored = read(
        {"type": call, "call_id": "c", "name": "view", "arguments": "{}", "input": "x"},
        {
            "type": f"{call}_output",
            "call_id": "c",
            "output": [text, {"type": kind, "image_url": "data:image/png;base64,AAAA"}],
        },
    )
    assert result.content is not None
    assert result.content[0] == "Here:"
    assert "left out" in result.content[1]
    assert ignored == [f"input[{call}_output].{kind}"]


def test_custom_and_shell_calls_are_read_as_calls():
    (first, result, second, _), ignored = read(
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": '"\n'},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "Done."},
        {"type": "local_shell_call", "call_id": "b", "action": {"command": ["ls"]}},
        {"type": "function_call_output", "call_id": "b", "output": "x.py"},
    )
    assert [call.name for call in first.tool_calls] == ["apply_patch"]
    assert json.loads(first.tool_calls[0].arguments) == {"input": '"\n'}
    assert (result.role, result.content, result.name) == ("tool", "Done.", "apply_patch")
    assert json.loads(second.tool_calls[0].arguments) == {"command": ["ls"]}
    assert ignored == []


def test_calls_that_other_servers_made_themselves_come_with_their_results():
    (call, result, answer), _ = read(
        {"type": "mcp_call", "id": "m", "name": "find", "arguments": '{"q": 1}', "output": "7"},
        {"type": "message", "role": "assistant", "content": "It is 7."},
    )
    assert [(made.name, made.arguments) for made in call.tool_calls] == [("find", '{"q": 1}')]
    assert (result.role, result.content, result.tool_call_id) == ("tool", "7", "m")
    assert answer.content == "It is 7."


def test_reasoning_comes_back_from_its_seal():
    sealed = SEAL.close("Because.")
    assert "Because" not in sealed
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    answer = {"type": "message", "role": "assistant", "content": "Yes."}
    (message,), ignored = read(item, answer)
    assert (message.reasoning, message.content, ignored) == ("Because.", "Yes.", [])


@pytest.mark.parametrize(
    "sealed",
    [
        "",
        "gAAAAABo",
        "ä",
        ReasoningSeal("another").close("Because."),
        SEAL.close("Because.")[:-8],
        SEAL.close("x" * (MAX_TEXT_BYTES + 1)),
    ],
)
def test_a_seal_that_is_not_right_is_said(sealed: str):
    item: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    answer = {"type": "message", "role": "assistant", "content": "Yes."}
    (message,), ignored = read(item, answer)
    assert (message.reasoning, message.content) == (None, "Yes.")
    assert ignored == ["input[reasoning].encrypted_content"]
    item["content"] = [{"type": "reasoning_text", "text": "Since."}]
    (message,), _ = read(item, answer)
    assert message.reasoning == "Since."


def test_functions_in_namespaces_have_names_of_their_own():
    body = InputFields.model_validate(
        {
            "tools": [
                function("open", strict=True),
                {
                    "type": "namespace",
                    "name": "agents",
                    "description": "Helpers.",
                    "tools": [function("open", description="Opens."), function("close")],
                },
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "function", "name": "close", "namespace": "agents"},
        }
    )
    given = body.read(read_stored([USER]), SEAL)
    tools = {tool.name: tool for tool in given.conversation.tools}
    assert list(tools) == ["open", "agents__open", "agents__close"]
    assert tools["agents__open"].description == "(agents: Helpers.)\n\nOpens."
    assert tools["agents__close"].description is None
    assert given.conversation.tool_choice.names == ["agents__close"]
    assert given.ignored == ["tools[web_search]"]


def test_a_call_within_a_namespace(converse: Converse):
    script = '<tool_call>{"name": "agents__open", "arguments": {}}</tool_call>'
    client = converse(script).openai()
    space: Any = {
        "type": "namespace",
        "name": "agents",
        "description": "Helpers.",
        "tools": [function("open")],
    }
    response = client.responses.create(model="fake", input="Hi", tools=[space])
    [call] = response.output
    assert call.type == "function_call"
    assert (call.namespace, call.name) == ("agents", "open")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": ""}
    (message, _), _ = read(call.to_dict(), output)
    assert message.tool_calls[0].name == "agents__open"


def test_tools_that_come_up_in_a_conversation_are_offered():
    found: Any = {"type": "tool_search_output", "tools": [function("late"), function("early")]}
    body = InputFields.model_validate({"tools": [function("early", description="First.")]})
    tools = body.read(read_stored([USER, found, found]), SEAL).conversation.tools
    assert [(tool.name, tool.description) for tool in tools] == [
        ("early", "First."),
        ("late", None),
    ]


def test_sealed_reasoning_survives_a_stateless_session(converse: Converse):
    client = converse("<think>Because.</think>Yes.").openai()
    include: Any = ["reasoning.encrypted_content"]
    first = client.responses.create(model="fake", input="Hi", store=False, include=include)
    reasoning, answer = first.output
    assert reasoning.type == "reasoning"
    assert reasoning.encrypted_content is not None
    plain = client.responses.create(model="fake", input="Hi", store=False).output[0]
    assert plain.type == "reasoning"
    assert plain.encrypted_content is None

    def tokens(item: dict[str, Any]) -> int:
        history: Any = [USER, item, answer.to_dict(), USER]
        return client.responses.input_tokens.count(model="fake", input=history).input_tokens

    alone = {"type": "reasoning", "id": "rs_1", "summary": []}
    sealed = alone | {"encrypted_content": reasoning.encrypted_content}
    assert tokens(sealed) - tokens(alone) > len("Because.")
    done = [
        event.item
        for event in client.responses.create(
            model="fake", input="Hi", store=False, include=include, stream=True
        )
        if event.type == "response.output_item.done" and event.item.type == "reasoning"
    ]
    assert done[0].encrypted_content == reasoning.encrypted_content  # type: ignore[union-attr]


def test_a_second_turn_reuses_all_of_the_first(converse: Converse):
    """What a client without a stored response sends again is rendered the same way again."""
    script = '<think>Hm.</think><tool_call>{"name": "look", "arguments": {}}</tool_call>'
    client = converse(script).openai()
    history: list[Any] = [
        {"type": "message", "role": "developer", "content": "Be kind." * 50},
        USER,
    ]
    settings: dict[str, Any] = {
        "model": "fake",
        "instructions": "You look at things. " * 50,
        "tools": [
            function("look", description="Looks. " * 20),
            {"type": "web_search"},
            {
                "type": "namespace",
                "name": "agents",
                "description": "Helpers.",
                "tools": [function("open")],
            },
        ],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
    }
    first = client.responses.create(input=history, **settings)
    assert first.usage is not None
    call = first.output[-1]
    assert call.type == "function_call"
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
    second = client.responses.create(input=history, **settings)
    assert second.usage is not None
    # All but what begins an answer, which an assistant's message in a history need not begin with.
    begins = len("assistant:")
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.input_tokens - begins - 1
