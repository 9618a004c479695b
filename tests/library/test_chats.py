"""Conversations in the library: read, and their answers told apart, as over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from caudal import (
    LLM,
    CompletionOutput,
    NoEffectWarning,
    SamplingParams,
    StructuredOutputsParams,
    ToolCall,
)
from caudal.errors import ParameterError
from library.test_llm import load_fakes
from support.fake_model import ScriptedExecutor
from support.fake_template import ToolTemplate

GREEDY = SamplingParams(temperature=0, max_tokens=100)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOTE = {"type": "custom", "custom": {"name": "note"}}
CALL = b'<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor(script=b"<think>Let me see.</think>\n\nHi!")


@pytest.fixture
def llm(executor: ScriptedExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    load_fakes(monkeypatch, executor, ToolTemplate())
    with LLM("fake") as llm:
        yield llm


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(llm: LLM, *messages: Any, params: SamplingParams = GREEDY, **options: Any) -> Any:
    [result] = llm.chat(list(messages), params, **options)
    return result.outputs[0]


def stream(llm: LLM, *messages: Any, **options: Any) -> list[CompletionOutput]:
    async def read() -> list[CompletionOutput]:
        return [output async for output in llm.stream_chat(list(messages), GREEDY, **options)]

    return asyncio.run(read())


def rendered(llm: LLM, *messages: Any, **options: Any) -> list[Any]:
    """The lines of the prompt, read."""
    [result] = llm.chat(list(messages), GREEDY, **options)
    *lines, last = bytes(result.prompt_token_ids).decode().split("\n")
    assert last == "assistant:"
    return [json.loads(line) if line.startswith("{") else line for line in lines]


def test_thinking_is_told_from_content(llm: LLM):
    output = answer(llm, user("Hello"))
    assert (output.text, output.reasoning, output.tool_calls) == ("Hi!", "Let me see.", [])
    pieces = stream(llm, user("Hello"))
    assert "".join(piece.reasoning or "" for piece in pieces) == "Let me see."
    assert "".join(piece.text for piece in pieces) == "Hi!"
    assert pieces[-1].finish_reason == "stop"
    assert [token for piece in pieces for token in piece.token_ids] == output.token_ids


def test_calls_of_tools(llm: LLM, executor: ScriptedExecutor):
    executor.script = b"<think>Rain?</think>" + CALL
    output = answer(llm, user("Weather?"), tools=[WEATHER])
    assert (output.text, output.reasoning) == ("", "Rain?")
    assert output.finish_reason == "tool_calls"
    [call] = output.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})
    called = [piece for piece in stream(llm, user("Weather?"), tools=[WEATHER]) if piece.tool_calls]
    assert [each.arguments for each in called[0].tool_calls] == [call.arguments], (
        "a call comes whole"
    )
    assert len(called) == 1


def test_a_call_that_was_cut_short_comes_with_the_end(llm: LLM, executor: ScriptedExecutor):
    executor.script = CALL
    short = SamplingParams(temperature=0, max_tokens=len(CALL) - 20)
    output = answer(llm, user("Weather?"), tools=[WEATHER], tool_choice="required", params=short)
    assert output.finish_reason == "length"
    assert [call.name for call in output.tool_calls] == ["weather"]


def test_a_custom_tool_takes_text(llm: LLM, executor: ScriptedExecutor):
    executor.script = (
        b'<tool_call>{"name": "note", "arguments": {"input": "a \\"b\\""}}</tool_call>'
    )
    output = answer(llm, user("Note it."), tools=[NOTE])
    assert [(call.arguments, call.type) for call in output.tool_calls] == [('a "b"', "custom")]
    _, _, again = rendered(llm, user("Note it."), output.to_message(), tools=[NOTE])
    assert json.loads(again["tool_calls"][0]["function"]["arguments"]) == {"input": 'a "b"'}


def test_an_answer_goes_back_as_it_came(llm: LLM):
    call = ToolCall("call_1", "weather", '{"city": "Rome"}')
    output = CompletionOutput(0, "Hi", reasoning="Hmm.", tool_calls=[call])
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "14"}]}
    _, said, told = rendered(llm, user("x"), output.to_message(), result)
    assert (said["content"], said["reasoning_content"]) == ("Hi", "Hmm.")
    assert said["tool_calls"][0]["function"]["name"] == "weather"
    assert (told["name"], told["content"]) == ("weather", result["content"])


def test_a_form_is_demanded_of_the_content_alone(llm: LLM):
    form = StructuredOutputsParams(choice=["Hi!", "Bye!"])
    params = SamplingParams(temperature=0, max_tokens=100, structured_outputs=form)
    output = answer(llm, user("Hello"), params=params)
    assert (output.text, output.reasoning) == ("Hi!", "Let me see.")


def test_thinking_is_bounded_and_turned_off(llm: LLM):
    output = answer(llm, user("Hello"), thinking_token_budget=3)
    assert len(output.reasoning) < len("Let me see.")
    assert rendered(llm, user("x"), reasoning_effort="none")[-1] == "enable_thinking=False"


def test_what_has_no_effect_is_said(llm: LLM):
    options: Any = {"chat_template_kwargs": {"tone": "kind"}}
    with pytest.warns(NoEffectWarning) as caught:
        llm.chat([user("Hello") | {"id": "m1"}], GREEDY, **options)
    assert caught[0].filename == __file__
    assert [str(each.message) for each in caught] == [
        "messages[].id has no effect on this model.",
        "chat_template_kwargs.tone has no effect on this model.",
    ]
    with pytest.warns(NoEffectWarning, match="tone"):
        stream(llm, user("Hello"), **options)


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        ([{"role": "user"}], {}, "messages[0]"),
        ([[user("x")], [user("x"), {"role": "boss", "content": "x"}]], {}, "messages[1][1].role"),
        ([user("x") | {"contents": "y"}], {}, "messages[0].contents"),
        ([user("x")], {"tools": [{"type": "function"}]}, "tools[0].function"),
        ([user("x")], {"tool_choice": "required"}, "tool_choice"),
        ([user("x")], {"reasoning_effort": "huge"}, "reasoning_effort"),
        (
            [user("x")],
            {
                "tools": [
                    WEATHER
                    | {
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}},
                        }
                    }
                ]
            },
            "tools[0].function.parameters",
        ),
        ([user("x" * 1000)], {}, "messages"),
        ([[user("x")], [user("x" * 1000)]], {}, "messages[1]"),
    ],
)
def test_refusals_name_the_place(llm: LLM, messages: Any, options: Any, param: str):
    with pytest.raises(ParameterError) as caught:
        llm.chat(messages, GREEDY, **options)
    assert caught.value.param == param


def test_what_contains_itself_is_refused(llm: LLM):
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(ParameterError, match="tools has more than 256 levels"):
        llm.chat([{"role": "user", "content": "x"}], tools=[tool])


def test_what_is_not_supported(llm: LLM):
    with pytest.raises(
        ParameterError, match=r"^messages\[0\]\.audio is not supported by Caudal\.$"
    ):
        llm.chat([user("x") | {"audio": {"id": "a"}}], GREEDY)


def test_streams_refuse_at_once_what_they_can(llm: LLM):
    with pytest.raises(ParameterError, match="one conversation"):
        llm.stream_chat([[user("x")], [user("x")]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no option 'tool'"):
        llm.stream_chat([user("x")], tool=[WEATHER])  # type: ignore[call-arg]
