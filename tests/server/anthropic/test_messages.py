from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from support.fake_model import ScriptedExecutor, word
from support.running_server import RunningServer, Serve

MESSAGES = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "name": "weather",
    "description": "How it is outside.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Jaén"}}</tool_call>'
WHOLE = f"<think>I don't know.</think>Let me look.{CALL}{CALL.replace('Jaén', 'Úbeda')}"

Converse = Callable[..., RunningServer]


def comparable(message: Any) -> dict[str, Any]:
    """A message without what is different in every answer."""
    data: dict[str, Any] = json.loads(message.to_json())
    del data["id"]
    for name in ("input_tokens", "cache_read_input_tokens"):
        del data["usage"][name]
    for block in data["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return data


def both(server: RunningServer, **fields: Any) -> anthropic.types.Message:
    """The answer to a request, once it is clear that streaming gives the same one."""
    client = server.anthropic()
    fields = {"model": "fake", "max_tokens": 400, "messages": MESSAGES} | fields
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert comparable(streamed) == comparable(whole)
    return whole


def events(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """A stream's events, as they are sent."""
    body = {"model": "fake", "max_tokens": 400, "messages": MESSAGES, "stream": True} | fields
    response = server.http.post("/v1/messages", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_answers_as_the_official_client_expects(hello: RunningServer):
    message = both(hello, metadata={"user_id": "ana"}, service_tier="auto")
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    [block] = message.content
    assert block.type == "text"
    assert block.text == "Hello, día!"
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.output_tokens == len("Hello, día!".encode()) + 1
    assert usage.service_tier == "standard"


def test_counts_each_prompt_token_once(serve: Serve):
    server = serve(ScriptedExecutor(script=b"!"))
    length = len("user:Hi\nassistant:")
    first, second = (
        server.anthropic()
        .messages.create(
            model="fake",
            max_tokens=9,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
                    ],
                }
            ],
        )
        .usage
        for _ in range(2)
    )
    assert (first.input_tokens, first.cache_read_input_tokens) == (length, 0)
    assert (second.input_tokens, second.cache_read_input_tokens) == (1, length - 1)
    assert first.cache_creation_input_tokens == second.cache_creation_input_tokens == 0
    counted = server.anthropic().messages.count_tokens(model="fake", messages=MESSAGES)
    assert counted.input_tokens == length


def test_the_order_of_a_streams_events(converse: Converse):
    found = events(converse("<think>Hm.</think>Yes." + CALL), tools=[WEATHER])
    kinds: list[str] = []
    for event in found:
        kind = event["type"]
        if kind == "content_block_delta":
            kind = event["delta"]["type"]
        elif kind == "content_block_start":
            kind = f"start {event['content_block']['type']} {event['index']}"
        if not kinds or kind != kinds[-1]:
            kinds.append(kind)
    assert kinds == [
        "message_start",
        "start thinking 0",
        "ping",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "start text 1",
        "text_delta",
        "content_block_stop",
        "start tool_use 2",
        "input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, *_, delta, _ = found
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] > 0
    assert delta["delta"] == {
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
    }
    assert delta["usage"]["output_tokens"] == len(("<think>Hm.</think>Yes." + CALL).encode()) + 1


def test_thinking_text_and_calls(converse: Converse):
    message = both(converse(WHOLE), tools=[WEATHER])
    thinking, text, *calls = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "I don't know."
    assert thinking.signature
    assert text.type == "text"
    assert text.text == "Let me look."
    assert [call.type for call in calls] == ["tool_use", "tool_use"]
    assert [call.input for call in calls] == [{"city": "Jaén"}, {"city": "Úbeda"}]
    assert all(call.id.startswith("toolu_") for call in calls)
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details is not None
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_a_loop_of_calls_and_results(converse: Converse):
    server = converse(WHOLE)
    client = server.anthropic()
    first = client.messages.create(model="fake", max_tokens=400, messages=MESSAGES, tools=[WEATHER])
    ids = [block.id for block in first.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": ids[0], "content": "sunny"},
        {
            "type": "tool_result",
            "tool_use_id": ids[1],
            "content": [{"type": "text", "text": "no such city"}],
            "is_error": True,
        },
        {"type": "text", "text": "Go on."},
    ]
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    again = client.messages.create(model="fake", max_tokens=400, messages=messages, tools=[WEATHER])
    assert again.usage.input_tokens + (again.usage.cache_read_input_tokens or 0) == (
        client.messages.count_tokens(model="fake", messages=messages, tools=[WEATHER]).input_tokens
    )


@pytest.mark.parametrize(
    "choice",
    [{"type": "auto", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}],
)
def test_one_call_where_only_one_is_wanted(converse: Converse, choice: dict[str, Any]):
    message = both(converse(WHOLE), tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in message.content].count("tool_use") == 1


def test_no_call_where_none_is_wanted(converse: Converse):
    message = both(converse(CALL), tools=[WEATHER], tool_choice={"type": "none"})
    [block] = message.content
    assert block.type == "text"
    assert block.text == CALL


def test_a_call_that_is_cut_short(converse: Converse):
    message = both(
        converse(CALL), tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=len(CALL) - 20
    )
    [block] = message.content
    assert block.type == "tool_use"
    assert block.input == {}
    assert message.stop_reason == "max_tokens"


def test_numbers_that_json_cannot_write(converse: Converse):
    call = CALL.replace('"Jaén"', "1e999")
    server = converse(call)
    body = {"model": "fake", "max_tokens": 400, "messages": MESSAGES, "tools": [WEATHER]}
    text = server.http.post("/v1/messages", json=body).text
    assert "Infinity" not in text
    assert json.loads(text)["content"][0]["input"]["city"] > 1e308


def test_stop_sequences(serve: Serve):
    server = serve(ScriptedExecutor(script=[*b"one ", word("O P Q"), *b" two"]))
    message = both(server, stop_sequences=["P Q", "zzz"])
    assert message.content[0].text == "one O "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "P Q")


def test_max_tokens(hello: RunningServer):
    message = both(hello, max_tokens=5)
    assert message.content[0].text == "Hello"
    assert message.stop_reason == "max_tokens"


def test_an_answer_of_nothing(serve: Serve):
    message = both(serve(ScriptedExecutor(script=b"")))
    assert message.content == []
    assert message.stop_reason == "end_turn"


def test_a_prefilled_answer_goes_on(serve: Serve):
    prompt = b"user:Hi\nassistant:The answer is "
    server = serve(ScriptedExecutor(script=b"wrong", by_prompt={prompt: b"42"}))
    message = both(server, messages=[*MESSAGES, {"role": "assistant", "content": "The answer is "}])
    assert message.content[0].text == "42"


def test_an_answer_that_follows_a_schema(converse: Converse):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    message = both(
        converse('{"a": 7}'),
        output_config={"format": {"type": "json_schema", "schema": schema}},
        thinking={"type": "disabled"},
    )
    assert isinstance(json.loads(message.content[0].text)["a"], int)


def test_thinking_can_be_omitted(converse: Converse):
    thinking = {"type": "adaptive", "display": "omitted"}
    server = converse("<think>Secret.</think>Yes.")
    found = events(server, thinking=thinking)
    assert "Secret" not in json.dumps(found)
    message = both(server, thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"]


def test_thinking_ends_with_its_budget(converse: Converse):
    server = converse("<think>" + "x" * 3000 + "</think>Yes.")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    message = both(server, thinking=thinking, max_tokens=1100)
    thought, text = message.content
    assert thought.type == "thinking"
    assert thought.thinking == "x" * 1024
    assert text.type == "text"
    assert set(text.text) == {"x"}
    assert message.usage.output_tokens == 1100


def test_the_switch_for_thinking(converse: Converse):
    server = converse("x")
    count = server.anthropic().messages.count_tokens
    neither = count(model="fake", messages=MESSAGES).input_tokens
    on, off = (
        count(model="fake", messages=MESSAGES, thinking=thinking).input_tokens
        for thinking in ({"type": "adaptive"}, {"type": "disabled"})
    )
    assert on == neither + len("\nenable_thinking=True")
    assert off == neither + len("\nenable_thinking=False")


def test_a_client_that_goes_frees_its_place(serve: Serve):
    server = serve(ScriptedExecutor(script=b"x" * 400), max_model_len=512)
    with server.http.stream(
        "POST",
        "/v1/messages",
        json={"model": "fake", "max_tokens": 400, "messages": MESSAGES, "stream": True},
    ) as response:
        next(response.iter_bytes())
    assert both(server, max_tokens=3).content[0].text == "x" * 3
