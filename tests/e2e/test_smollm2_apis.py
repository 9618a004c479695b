"""Anthropic's messages and OpenAI's responses of a real model, by their official clients."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pydantic
import pytest

QUESTION = "What is the capital of Spain?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


class City(pydantic.BaseModel):
    name: str
    is_capital: bool


@pytest.fixture(scope="module")
def claude(server_url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0, timeout=120)


def greedy(**fields: Any) -> dict[str, Any]:
    """A message request whose answer is always the same."""
    return {
        "model": "smollm2",
        "max_tokens": 48,
        "messages": [{"role": "user", "content": QUESTION}],
        "extra_body": {"temperature": 0},
    } | fields


def test_a_message(claude: anthropic.Anthropic):
    request = greedy(system=[{"type": "text", "text": "Answer in one short sentence."}])
    message = claude.messages.create(**request)
    [block] = message.content
    assert block.type == "text"
    assert "Madrid" in block.text
    with claude.messages.stream(**request) as stream:
        assert "".join(stream.text_stream) == block.text
        again = stream.get_final_message()
    assert (again.stop_reason, again.stop_sequence) == (message.stop_reason, None)
    assert again.usage.cache_read_input_tokens
    count = claude.messages.count_tokens(
        model="smollm2", messages=request["messages"], system=request["system"]
    )
    assert count.input_tokens == again.usage.input_tokens + again.usage.cache_read_input_tokens


def test_a_stop_sequence(claude: anthropic.Anthropic):
    message = claude.messages.create(**greedy(stop_sequences=["capital", "zzz"]))
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == "capital"
    assert "capital" not in message.content[0].text


def test_a_prefilled_message(claude: anthropic.Anthropic):
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "The capital of Spain is"},
    ]
    message = claude.messages.create(**greedy(messages=messages, max_tokens=8))
    assert message.content[0].text.startswith(" Madrid")


def test_a_loop_of_tools(claude: anthropic.Anthropic):
    tools = [{"name": "forecast", "description": "The weather.", "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": "Weather in Madrid for two days?"}]
    request = greedy(tools=tools, tool_choice={"type": "tool", "name": "forecast"}, max_tokens=100)
    first = claude.messages.create(**request | {"messages": messages})
    assert first.stop_reason == "tool_use"
    [call] = first.content
    assert call.type == "tool_use"
    assert call.input.keys() == {"city", "days"}
    with claude.messages.stream(**request | {"messages": messages}) as stream:
        assert stream.get_final_message().content[0].input == call.input
    messages += [
        {"role": "assistant", "content": first.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sun, 24 °C."}],
        },
    ]
    last = claude.messages.create(**greedy(tools=tools, messages=messages))
    assert last.content[0].type == "text"


def test_a_message_that_follows_a_schema(claude: anthropic.Anthropic):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}},
        "required": ["name"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = claude.messages.create(**greedy(output_config=config))
    assert json.loads(message.content[0].text).keys() == {"name"}


def test_a_conversation_of_responses(client: openai.OpenAI):
    request: dict[str, Any] = {
        "model": "smollm2",
        "instructions": "Answer in one short sentence.",
        "temperature": 0,
        "max_output_tokens": 32,
    }
    first = client.responses.create(**request, input=QUESTION)
    assert "Madrid" in first.output_text
    events = list(client.responses.create(**request, input=QUESTION, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == first.output_text
    second = client.responses.create(
        **request, input="Say that again.", previous_response_id=first.id
    )
    assert second.output_text
    # Prompt and answer of the first are the beginning of the second, and not computed again.
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= (
        first.usage.input_tokens + first.usage.output_tokens - 1
    )


def test_a_parsed_response(client: openai.OpenAI):
    parsed = client.responses.parse(
        model="smollm2", input=QUESTION, text_format=City, temperature=0, max_output_tokens=64
    )
    assert isinstance(parsed.output_parsed, City)


def test_a_function_call_of_a_response(client: openai.OpenAI):
    response = client.responses.create(
        model="smollm2",
        input="Weather in Madrid for two days?",
        tools=[
            {
                "type": "function",
                "name": "forecast",
                "description": "The weather.",
                "parameters": PARAMETERS,
                "strict": True,
            }
        ],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_output_tokens=100,
    )
    [call] = response.output
    assert call.type == "function_call"
    assert json.loads(call.arguments).keys() == {"city", "days"}
