"""Tools on a real model, asked for with the official client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": SCHEMA,
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


def request(**more: Any) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "messages": ASK,
        "tools": [WEATHER, NOW],
        "max_tokens": 120,
        "temperature": 0,
        **more,
    }


def joined(client: openai.OpenAI, **more: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls and finish reason of a streamed answer."""
    content, calls, reason = "", [], None
    for chunk in client.chat.completions.create(**request(**more), stream=True):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            assert part.function is not None
            if part.function.name:
                calls.append((part.function.name, ""))
            name, arguments = calls[part.index]
            calls[part.index] = (name, arguments + (part.function.arguments or ""))
        reason = choice.finish_reason or reason
    return content, calls, reason


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
@pytest.mark.parametrize("temperature", [0, 1.2])
def test_demanded_calls_follow_their_schema(client: openai.OpenAI, choice: Any, temperature: float):
    options = {
        "tool_choice": choice,
        "temperature": temperature,
        "seed": 5,
        "parallel_tool_calls": False,
    }
    [answer] = client.chat.completions.create(**request(**options)).choices
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    [call] = answer.message.tool_calls or ()
    assert call.type == "function"
    if call.function.name == "get_weather":
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    else:
        assert call.function.arguments == "{}"
    assert joined(client, **options) == (
        "",
        [(call.function.name, call.function.arguments)],
        "tool_calls",
    )


@pytest.mark.parametrize("strict", [False, True])
def test_a_free_model_answers_the_same_streamed_and_not(client: openai.OpenAI, strict: bool):
    tool = {"type": "function", "function": WEATHER["function"] | {"strict": strict}}
    [answer] = client.chat.completions.create(**request(tools=[tool])).choices
    content, calls, reason = joined(client, tools=[tool])
    assert content == (answer.message.content or "")
    assert calls == [
        (call.function.name, call.function.arguments)  # type: ignore[union-attr]
        for call in answer.message.tool_calls or ()
    ]
    assert reason == answer.finish_reason


def test_a_result_reaches_the_model(client: openai.OpenAI):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "celsius"}'},
    }
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Snow, minus 40 degrees."},
    ]
    answer = client.chat.completions.create(**request(messages=messages))
    assert answer.choices[0].message.content


def test_a_template_of_the_requests_own(client: openai.OpenAI, server_url: str):
    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %} {{ mood }}"
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "hi <|im_end|>"}],
        "chat_template": template,
        "chat_template_kwargs": {"mood": "calm"},
    }
    counted = httpx.post(f"{server_url}/tokenize", json=body).json()
    text = httpx.post(f"{server_url}/detokenize", json={"tokens": counted["tokens"]}).json()
    assert text["prompt"] == "HI <|IM_END|> calm"
    with pytest.raises(openai.BadRequestError, match="Be nice") as refused:
        client.chat.completions.create(
            **request(extra_body={"chat_template": "{{ raise_exception('Be nice') }}"})
        )
    assert refused.value.param == "messages"


def test_counting_takes_tools_into_account(client: openai.OpenAI, server_url: str):
    path = f"{server_url}/v1/chat/completions/input_tokens"
    body = request()
    counted = httpx.post(path, json=body).json()["input_tokens"]
    answer = client.chat.completions.create(**body | {"max_tokens": 1})
    assert answer.usage is not None
    assert counted == answer.usage.prompt_tokens
    del body["tools"]
    assert httpx.post(path, json=body).json()["input_tokens"] < counted
