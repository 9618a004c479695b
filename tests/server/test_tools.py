"""Tools and reasoning over HTTP, asked for with the official client, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from support.fake_executor import FakeExecutor
from support.fake_model import ByteTokenizer, ScriptedExecutor, serve_fake, word
from support.running_server import RunningServer, Serve, running_server

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"enum": [1, 2, 13]},
    },
    "required": ["city", "days"],
}


def tool(name: str = "weather", schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


TOOLS: list[Any] = [tool(), tool("now", None)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "día 🦙", "days": 2}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def streamed(client: openai.OpenAI, **request: Any) -> tuple[ChatCompletionMessage, str, list[Any]]:
    """The message that a stream's deltas join to, its finish reason, and the deltas."""
    message: dict[str, Any] = {"role": "", "content": None}
    calls: list[dict[str, Any]] = []
    reason = ""
    deltas = []
    for chunk in client.chat.completions.create(model="fake", stream=True, **request):
        [choice] = chunk.choices
        delta = choice.delta.model_dump(exclude_unset=True)
        deltas.append(delta)
        for name in ("role", "content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(calls):
                assert part["function"]["name"]
                assert part["function"]["arguments"] == ""
                calls.append({"id": part["id"], "type": "function", "function": part["function"]})
            else:
                assert part["index"] == len(calls) - 1
                assert "id" not in part
                calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        reason = choice.finish_reason or reason
    if calls:
        message["tool_calls"] = calls
    return ChatCompletionMessage.model_validate(message), reason, deltas


def both(server: RunningServer, **request: Any) -> tuple[ChatCompletionMessage, str]:
    """The answer, which is the same streamed and not but for the calls' ids."""
    client = server.openai()
    request = {"messages": MESSAGES, **request}
    [choice] = client.chat.completions.create(model="fake", **request).choices
    message, reason, _ = streamed(client, **request)
    assert reason == choice.finish_reason
    assert (message.content or "") == (choice.message.content or "")
    assert reasoning(message) == reasoning(choice.message)
    assert calls_of(message) == calls_of(choice.message)
    return choice.message, reason


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    calls = message.tool_calls or []
    for call in calls:
        assert call.id.startswith("call_")
        assert call.type == "function"
    return [(call.function.name, call.function.arguments) for call in calls]  # type: ignore[union-attr]


def reasoning(message: ChatCompletionMessage) -> str | None:
    return (message.model_extra or {}).get("reasoning_content")


def scripted(serve: Serve, text: str, **options: Any) -> RunningServer:
    return serve(ScriptedExecutor(script=text.encode()), max_model_len=2000, **options)


def test_the_model_may_call(serve: Serve):
    server = scripted(serve, f"Let me see.\n{CALL}\n{NOW}")
    message, reason = both(server, tools=TOOLS)
    assert message.content == "Let me see."
    assert calls_of(message) == [
        ("weather", '{"city": "día 🦙", "days": 2}'),
        ("now", "{}"),
    ]
    assert reason == "tool_calls"


def test_an_answer_of_calls_alone_has_no_content(serve: Serve):
    message, _ = both(scripted(serve, NOW), tools=TOOLS)
    assert message.content is None


def test_several_tokens_in_one_delta(serve: Serve):
    """A token that ends a string, and a jump over what is forced, arrive as one."""
    script = [
        *b'<tool_call>{"name": "now", "arguments": {"a": "',
        word("O P Q"),
        *b'"}}</tool_call>',
    ]
    message, _ = both(serve(ScriptedExecutor(script=script), max_model_len=2000), tools=TOOLS)
    assert calls_of(message) == [("now", '{"a": "O P Q"}')]


def test_without_parallel_calls_the_first_ends_the_answer(serve: Serve):
    server = scripted(serve, f"{NOW}\n{CALL}\nand so on")
    message, reason = both(server, tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(message) == [("now", "{}")]
    assert reason == "tool_calls"
    server.wait_for_metric('caudal_kv_blocks{state="used"}', 0)


def test_several_choices_end_each_by_itself(serve: Serve):
    server = scripted(serve, f"{NOW}\n{CALL}")
    answer = server.openai().chat.completions.create(
        model="fake", messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False, n=3
    )
    assert [calls_of(choice.message) for choice in answer.choices] == [[("now", "{}")]] * 3
    assert {choice.finish_reason for choice in answer.choices} == {"tool_calls"}


@pytest.mark.parametrize(
    "options", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": [], "tool_choice": "none"}]
)
def test_calls_that_nobody_asked_for_are_text(serve: Serve, options: dict[str, Any]):
    message, reason = both(scripted(serve, CALL), **options)
    assert message.content == CALL
    assert reason == "stop"


@pytest.mark.parametrize("text", ['<tool_call>{"name": "now", "argu', "<tool_call>?</tool_call>!"])
def test_a_broken_call_is_content(serve: Serve, text: str):
    message, reason = both(scripted(serve, text), tools=TOOLS)
    assert message.content == text
    assert reason == "stop"


def test_a_call_that_is_cut_short_is_content(serve: Serve):
    message, reason = both(scripted(serve, CALL), tools=TOOLS, max_tokens=30)
    assert message.content == CALL.encode()[:30].decode()
    assert reason == "length"


def test_a_stop_string_stops_calls_too(serve: Serve):
    message, reason = both(scripted(serve, f"{NOW}\n{CALL}"), tools=TOOLS, stop="weather")
    assert calls_of(message) == [("now", "{}")]
    assert message.content == '<tool_call>\n{"name": "'
    assert reason == "stop"  # the answer is not what the model meant to say


def test_a_stop_string_behind_a_call_leaves_it_whole(serve: Serve):
    message, reason = both(scripted(serve, f"{NOW} so"), tools=TOOLS, stop="</tool_call>")
    assert (calls_of(message), message.content, reason) == ([("now", "{}")], None, "tool_calls")


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_stop_string_within_an_enforced_call_is_said(serve: Serve, choice: str):
    server = scripted(serve, CALL)
    asked: dict[str, Any] = {"tools": [tool(strict=True)], "tool_choice": choice, "stop": '"}'}
    message, reason = both(server, **asked | {"stop": ', "days"'})
    assert calls_of(message) == [("weather", '{"city": "día 🦙"')]
    assert reason == "stop"
    body = {"model": "fake", "messages": MESSAGES, **asked, "stop": ['"city']}
    [answer] = server.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", '"city')
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == "{"

    parameters = TOOLS[0]["function"]["parameters"]
    ask: dict[str, Any] = {
        "model": "fake",
        "max_tokens": 200,
        "messages": MESSAGES,
        "tools": [{"name": "weather", "input_schema": parameters, "strict": True}],
        "tool_choice": {"type": "any" if choice == "required" else "auto"},
        "stop_sequences": ['"days"'],
    }
    whole = server.anthropic().messages.create(**ask)
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", '"days"')
    with server.anthropic().messages.stream(**ask) as stream:
        last = stream.get_final_message()
    assert (last.stop_reason, last.stop_sequence) == ("stop_sequence", '"days"')


def test_a_demanded_call_that_is_cut_short_leaves_no_marks(serve: Serve):
    """On every API, streamed and not, wherever it is cut."""
    server = scripted(serve, f"{CALL}\n{NOW}", reasoning_parser="think")
    client = server.openai()
    length = len(f"{CALL}\n{NOW}".encode())
    flat = [{"type": "function", **TOOLS[0]["function"], "strict": None}]
    for most in [*range(1, length, 3), *range(length - 12, length)]:
        message, reason = both(server, tools=TOOLS, tool_choice="required", max_tokens=most)
        assert (message.content or "") == ""
        assert reason == "length"
        if most % 2:
            continue
        response = client.responses.create(
            model="fake",
            input="Hi",
            tools=flat,  # type: ignore[arg-type]
            tool_choice="required",
            max_output_tokens=max(most, 16),
        )
        assert {item.type for item in response.output} <= {"function_call"}
        said = server.anthropic().messages.create(
            model="fake",
            max_tokens=most,
            messages=MESSAGES,
            tools=[{"name": "weather", "input_schema": SCHEMA}],
            tool_choice={"type": "any"},
        )
        assert {block.type for block in said.content} <= {"tool_use"}


def test_no_more_tokens_are_cached_than_the_prompt_has(serve: Serve):
    """What a grammar forces stands in the cache too, but is none of the prompt."""
    server = scripted(serve, NOW)
    asked: dict[str, Any] = {
        "model": "fake",
        "messages": MESSAGES,
        "tools": [tool("now_" * 10, {"type": "object", "additionalProperties": False})],
        "tool_choice": "required",
    }
    for _ in range(3):
        usage = server.openai().chat.completions.create(**asked).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        assert 0 <= cached <= usage.prompt_tokens
    assert cached > 0
    for _ in range(2):
        said = server.anthropic().messages.create(
            model="fake",
            max_tokens=200,
            messages=MESSAGES,
            tools=[{"name": "now_" * 10, "input_schema": {"type": "object"}}],
            tool_choice={"type": "any"},
        )
        assert said.usage.input_tokens >= 0
    stats = server.model.parts.engine.stats()
    assert stats.cache_hit_tokens <= stats.prompt_tokens


@pytest.fixture(scope="module")
def random_server() -> Iterator[RunningServer]:
    """A server whose model chooses at random among what it may."""
    executor = FakeExecutor(num_blocks=512, block_size=16, vocab_size=ByteTokenizer.vocab_size)
    with running_server(serve_fake(executor, max_model_len=3000)) as server:
        yield server


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
        },
        "required",
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_demanded_call_follows_its_schema(random_server: RunningServer, choice: Any, seed: int):
    message, reason = both(
        random_server, tools=TOOLS[:1], tool_choice=choice, parallel_tool_calls=False, seed=seed
    )
    [(name, arguments)] = calls_of(message)
    assert name == "weather"
    jsonschema.validate(json.loads(arguments), SCHEMA)
    assert reason == "tool_calls"
    assert message.content is None


def test_demanded_arguments_arrive_bit_by_bit(serve: Serve):
    server = scripted(serve, CALL.replace("día 🦙", "día"))
    _, _, deltas = streamed(server.openai(), messages=MESSAGES, tools=TOOLS, tool_choice="required")
    pieces = [part for delta in deltas for part in delta.get("tool_calls") or ()]
    assert len(pieces) > 4


def test_strict_tools_follow_their_schema_where_the_model_is_free(serve: Serve):
    strict = [tool(strict=True)]
    server = scripted(serve, CALL.replace('"días"', '"x"').replace("2}}", "7}}"))
    message, _ = both(server, tools=strict)
    [(_, arguments)] = calls_of(message)
    jsonschema.validate(json.loads(arguments), SCHEMA)
    message, _ = both(scripted(serve, "Just text."), tools=strict)
    assert message.content == "Just text."


def test_calls_results_and_reasoning_can_be_sent_back(serve: Serve):
    server = scripted(serve, f"<think>Hm</think>{NOW}", reasoning_parser="think")
    client = server.openai()
    message = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS)
    answer = message.choices[0].message
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "12:00"}  # type: ignore[index]
    for sent in (answer, answer.model_dump()):
        again = client.chat.completions.create(
            model="fake",
            messages=[*MESSAGES, sent, result],  # type: ignore[list-item]
            tools=TOOLS,
        )
        assert again.choices[0].message.tool_calls


@pytest.mark.parametrize("text", ["<think>\nHm, día 🦙.\n</think>\n\nIt is 4.", "<think>H</think>"])
def test_reasoning_is_told_apart(serve: Serve, text: str):
    server = scripted(serve, text, reasoning_parser="deepseek_r1")
    message, reason = both(server)
    thought, _, content = text.removeprefix("<think>").partition("</think>")
    assert reasoning(message) == thought.strip()
    assert (message.content or "") == content.strip()
    assert reason == "stop"
    hidden, _ = both(server, extra_body={"include_reasoning": False})
    assert reasoning(hidden) is None
    assert (hidden.content or "") == content.strip()


def test_reasoning_is_counted(serve: Serve):
    server = scripted(serve, "<think>Hm.</think>4", reasoning_parser="think")
    answer = server.openai().chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("<think>Hm.</think>4") + 1
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<think>Hm.</think>")


def test_without_a_reasoning_parser_it_stays_in_the_text(serve: Serve):
    message, _ = both(scripted(serve, "<think>Hm</think>4", reasoning_parser="none"))
    assert message.content == "<think>Hm</think>4"


def test_a_form_holds_for_what_follows_the_reasoning(serve: Serve):
    server = scripted(serve, '<think>Hm</think>{"a": 1}', reasoning_parser="think")
    message, _ = both(server, response_format={"type": "json_object"})
    assert reasoning(message) == "Hm"
    assert json.loads(message.content or "") == {"a": 1}


def test_log_probabilities_cover_every_token_once(serve: Serve):
    server = scripted(serve, f"<think>Hm</think>So.\n{NOW}", reasoning_parser="think")
    client = server.openai()
    request: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "logprobs": True}
    whole = client.chat.completions.create(model="fake", **request).choices[0].logprobs
    chunks = client.chat.completions.create(model="fake", stream=True, **request)
    parts = [
        token
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for token in chunk.choices[0].logprobs.content or ()
    ]
    assert whole is not None
    assert parts == whole.content
    assert "".join(token.token for token in parts) == f"<think>Hm</think>So.\n{NOW}"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [tool("a b")]}, "tools[0].function.name", "64 letters"),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "64 letters"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "two tools"),
        ({"tools": [tool(schema={"type": "array"})]}, "tools[0].function.parameters", "'object'"),
        ({"tools": [tool(schema={"properties": 7})]}, "tools[0].function.parameters", "object"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "only function, custom"),
        ({"tools": [tool(parameter={"type": "object"})]}, "tools[0].function.parameter", "mean"),
        ({"tools": [tool(f"t{i}") for i in range(129)]}, "tools", "128"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice", "'none'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "'x'",
        ),
        (
            {
                "tools": [tool("ok"), tool(schema={"properties": {"a": {"pattern": "(?<=x)y"}}})],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
            "can't be enforced",
        ),
        (
            {
                "tools": [tool("ok"), tool(schema={"properties": {"a": {"maximum": 10**400}}})],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
            "maximum",
        ),
        (
            {
                "tools": [tool("ok"), tool(schema={"properties": {"a": {"pattern": "(?<=x)y"}}})],
                "response_format": {"type": "json_object"},
            },
            "tools[1].function.parameters",
            "can't be enforced",
        ),
        (
            {"tools": TOOLS, "json_schema": {"type": "color"}},
            "json_schema",
            "can't be enforced",
        ),
        (
            {"tools": TOOLS, "structured_outputs": {"regex": "a+"}},
            "structured_outputs",
            "tool_choice",
        ),
        ({"reasoning_effort": "extreme"}, "reasoning_effort", "'none'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_makes_no_sense_is_refused_by_name(
    hello: RunningServer, fields: dict[str, Any], param: str, words: str, stream: bool
):
    body = {"model": "fake", "messages": MESSAGES, "stream": stream, **fields}
    response = hello.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
