"""Every parameter that the official client knows works, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "fake", "prompt": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# Values that work, and values that are refused. What they do is tested elsewhere.
CHAT_FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "audio": ([None], [{"voice": "alloy", "format": "wav"}]),
    "frequency_penalty": ([0.5, None], []),
    "function_call": ([None, "none"], ["auto", {"name": "f"}]),
    "functions": ([None, []], [[{"name": "f"}]]),
    "logit_bias": ([{"1": -100}, None], []),
    "logprobs": ([True, False, None], []),
    "max_completion_tokens": ([3, -1, None], [0, -2]),
    "max_tokens": ([3, -1, None], [0, -2]),
    "messages": ([CHAT["messages"]], []),
    "metadata": ([{"a": "b"}, None], [{"a": 1}, {"a": "b" * 513}, {"a" * 65: "b"}]),
    "modalities": ([["text"], None], [["text", "audio"]]),
    "model": (["fake"], []),
    "moderation": ([None], [{"model": "omni-moderation-latest"}]),
    "n": ([2, None], []),
    "parallel_tool_calls": ([None, True, False], []),
    "prediction": (
        [
            {"type": "content", "content": "x"},
            {"type": "content", "content": [{"type": "text", "text": "x"}]},
            None,
        ],
        [{"type": "content"}, {"type": "other", "content": "x"}, {}],
    ),
    "presence_penalty": ([0.5, None], []),
    "prompt_cache_key": (["a", None], []),
    "prompt_cache_options": ([{"mode": "implicit"}, {"mode": "explicit"}, None], []),
    "prompt_cache_retention": (["in_memory", "24h", None], []),
    "reasoning_effort": (["none", "high", None], ["some"]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}, None], []),
    "safety_identifier": (["ana", None], []),
    "seed": ([7, None], []),
    "service_tier": (["auto", "default", "flex", "priority", "scale", None], []),
    "stop": (["x", ["x", "y"], None], []),
    "store": ([True, False, None], []),
    "stream": ([True, False, None], []),
    "stream_options": ([None], []),  # needs stream
    "temperature": ([0, 1.5, None], []),
    "tool_choice": (["auto", "none", None], []),  # the rest needs tools
    "tools": ([[], None], []),  # more in test_tools.py: this model's context is short
    "top_logprobs": ([0, None], [3]),  # needs logprobs
    "top_p": ([0, 0.5, None], [2]),
    "user": (["ana", None], []),
    "verbosity": (["low", "medium", "high", None], []),
    "web_search_options": ([None], [{}]),
}
TEXT_FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "best_of": ([1, None], [2]),
    "echo": ([True, None], []),
    "frequency_penalty": ([0.5, None], []),
    "logit_bias": ([{"1": -100}, None], []),
    "logprobs": ([2, None], []),
    "max_tokens": ([3, None], []),
    "model": (["fake"], []),
    "n": ([2, None], []),
    "presence_penalty": ([0.5, None], []),
    "prompt": (["Hi", ["Hi", "Ho"], [72, 105], [[72], [105]]], []),
    "seed": ([7, None], []),
    "stop": (["x", ["x", "y"], None], []),
    "stream": ([True, False, None], []),
    "stream_options": ([None], []),
    "suffix": ([None, ""], ["end"]),
    "temperature": ([0, 1.5, None], []),
    "top_p": ([0.5, None], []),
    "user": (["ana", None], []),
}
# Beyond OpenAI's, for both.
SHARED_EXTRAS: dict[str, tuple[list[Any], list[Any]]] = {
    "allowed_token_ids": ([[65, 66], None], [[], [100_000], [-1], ["65"]]),
    "bad_words": ([["no"], [], None], [[""], "no"]),
    "cache_salt": (["a", None], []),
    "first_token_timeout": ([60, 60.5, None], [0, -1, "60"]),
    "grammar": (['start: "a"', 'root ::= "a"', "", None], ["start: missing"]),
    "ignore_eos": ([False, None], []),
    "include_stop_str_in_output": ([True, None], []),
    "json_schema": ([{"type": "integer"}, None], [{"type": "color"}]),
    "keep_alive": (["5m", "1h30m", 300, 0.5, 0, "-1", None], ["soon", "", True, [], "5 m"]),
    "lora": ([[], None], ["sql", [{"id": 5, "scale": 1.0}]]),
    "min_p": ([0.1, None], []),
    "min_tokens": ([2, None], []),
    "n_predict": ([3, -1, None], [-2]),
    "priority": ([-3, None], []),
    "prompt_logprobs": ([0, None], [-1, 21]),
    "repeat_penalty": ([1.1, None], [0]),
    "repetition_penalty": ([1.1, None], []),
    "return_token_ids": ([True, False, None], []),
    "return_tokens_as_token_ids": ([True, False, None], []),
    "speculative": (["off", None], ["on", True]),
    "skip_special_tokens": ([False, None], []),
    "stop_token_ids": ([[65], None], []),
    "structured_outputs": ([{"choice": ["a", "b"]}, None], [{}, {"regex": "foo**"}]),
    "timeout": ([60, 60.5, None], [0, -1, "60"]),
    "top_k": ([5, -1, None], []),
    "typical_p": ([0.5, None], []),
}
CHAT_EXTRAS: dict[str, tuple[list[Any], list[Any]]] = {
    "add_generation_prompt": ([True, False, None], []),
    "chat_template": ([None], [7]),
    "chat_template_kwargs": ([{"mood": "calm"}, {}, None], [7]),
    "continue_final_message": ([False, None], [True]),
    "enable_thinking": ([True, False, None], ["yes"]),
    "include_reasoning": ([True, False, None], []),
    "reasoning_format": (["auto", "parsed", "hidden", "none", None], ["some"]),
    "thinking_token_budget": ([5, 0, -1, None], [-2]),
    "reasoning": (
        [{"effort": "low"}, {"enabled": False}, {"max_tokens": 9}, {"exclude": True}, {}, None],
        [{"effort": "some"}, "high"],
    ),
    "thinking": (
        [{"type": "enabled", "budget_tokens": 9}, {"type": "disabled"}, {"type": "adaptive"}, None],
        [{"type": "on"}, {}],
    ),
}
TEXT_EXTRAS: dict[str, tuple[list[Any], list[Any]]] = {
    "add_special_tokens": ([True, False, None], []),
    "response_format": ([{"type": "json_object"}, None], [{"type": "xml"}]),
    "truncate_prompt_tokens": ([1, -1, None], [0, -2]),
    "truncation_side": (["left", "right", None], ["middle"]),
}


def keys(*dicts: Any) -> set[str]:
    return {name for item in dicts for name in item.__annotations__}


def test_the_tables_are_complete():
    chat = keys(
        chat_params.CompletionCreateParamsBase, chat_params.CompletionCreateParamsNonStreaming
    )
    text = keys(
        text_params.CompletionCreateParamsBase, text_params.CompletionCreateParamsNonStreaming
    )
    assert chat == CHAT_FIELDS.keys()
    assert text == TEXT_FIELDS.keys()


def test_so_is_what_the_server_takes(hello: RunningServer):
    schemas = hello.http.get("/openapi.json").json()["components"]["schemas"]
    taken = schemas["ChatCompletionRequest"]["properties"].keys()
    assert taken <= CHAT_FIELDS.keys() | SHARED_EXTRAS.keys() | CHAT_EXTRAS.keys()
    assert SHARED_EXTRAS.keys() | CHAT_EXTRAS.keys() <= taken
    taken = schemas["CompletionRequest"]["properties"].keys()
    assert taken <= TEXT_FIELDS.keys() | SHARED_EXTRAS.keys() | TEXT_EXTRAS.keys()
    assert SHARED_EXTRAS.keys() | TEXT_EXTRAS.keys() <= taken


def cases(place: int) -> list[Any]:
    return [
        pytest.param(path, body, name, value, id=f"{path.split('/')[2]}-{name}-{value!r:.30}")
        for path, body, *tables in (
            ("/v1/chat/completions", CHAT, CHAT_FIELDS, SHARED_EXTRAS, CHAT_EXTRAS),
            ("/v1/completions", TEXT, TEXT_FIELDS, SHARED_EXTRAS, TEXT_EXTRAS),
        )
        for table in tables
        for name, values in table.items()
        for value in values[place]
    ]


@pytest.mark.parametrize(("path", "body", "name", "value"), cases(0))
def test_it_works(hello: RunningServer, path: str, body: dict[str, Any], name: str, value: Any):
    response = hello.http.post(path, json={**body, name: value})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "name", "value"), cases(1))
def test_it_is_refused_by_name(
    hello: RunningServer, path: str, body: dict[str, Any], name: str, value: Any, stream: bool
):
    response = hello.http.post(path, json={**body, "stream": stream, name: value})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"].startswith(name)
    assert name in error["message"] or "can't be enforced" in error["message"]


def test_the_tier_that_was_used_is_named(hello: RunningServer):
    client = hello.openai()
    answer = client.chat.completions.create(**CHAT, service_tier="auto")
    assert answer.service_tier == "default"
    chunks = list(client.chat.completions.create(**CHAT, service_tier="auto", stream=True))
    assert {chunk.service_tier for chunk in chunks} == {"default"}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
)
def test_padded_chunks_all_have_one_of_few_sizes(
    hello: RunningServer, path: str, body: dict[str, Any]
):
    options = {"stream": True, "stream_options": {"include_obfuscation": True}}
    response = hello.http.post(path, json=body | options)
    events = [event for event in response.content.split(b"\n\n") if event.startswith(b"data: {")]
    assert len(events) > 5
    assert all(b'"obfuscation":' in event for event in events)
    assert {(len(event) + 2) % 256 for event in events} == {0}


def test_counting_the_tokens_of_a_conversation(hello: RunningServer):
    count = len("user:Hi\nassistant:")
    counted = hello.http.post("/v1/chat/completions/input_tokens", json=CHAT).json()
    assert counted == {"object": "chat.completion.input_tokens", "input_tokens": count}
    tokens = hello.http.post("/tokenize", json=CHAT).json()
    assert tokens["count"] == count
    assert bytes(tokens["tokens"]) == b"user:Hi\nassistant:"
    shorter = hello.http.post("/tokenize", json=CHAT | {"add_generation_prompt": False}).json()
    assert shorter["count"] == len("user:Hi")
    wrong = hello.http.post("/tokenize", json={"messages": []})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "messages"


def test_the_model_card_has_real_limits(hello: RunningServer):
    card = hello.http.get("/v1/models/fake").json()
    assert (card["max_model_len"], card["max_num_seqs"]) == (512, 8)
    assert card["max_queue"] == hello.model.parts.engine.config.max_queue


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("echo", False),
        ("best_of", 1),
        ("documents", None),
        ("mirostat", 0),
        ("typical_p", 1.0),
        ("dry_multiplier", 0.0),
        ("temperature", None),
        ("thinking", {"type": "disabled"}),
        ("enable_thinking", False),
        ("reasoning_effort", "none"),
        ("reasoning_format", "auto"),
        ("service_tier", "auto"),
        ("store", False),
        ("verbosity", "medium"),
        ("top_logprobs", 0),
        ("grammar", ""),
        ("chat_template_kwargs", {"enable_thinking": False}),
    ],
)
def test_what_asks_for_nothing_goes_unsaid(hello: RunningServer, name: str, value: Any):
    response = hello.http.post("/v1/chat/completions", json={**CHAT, name: value})
    assert response.status_code == 200, response.text
    assert "x-caudal-ignored" not in response.headers


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"verbosity": "low", "store": True}, "verbosity, store"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"enable_thinking": True}, "enable_thinking"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"messages": [{"role": "user", "content": "Hi", "id": "m"}]}, "messages[].id"),
        ({"mirostat_tau": 5.0}, "mirostat_tau"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning_format": "none"}, "reasoning_format"),
        ({"chat_template_kwargs": {"mood": "calm", "b": 0}}, "chat_template_kwargs.mood"),
        ({"mode": "instruct", "return_tokens": True}, "mode, return_tokens"),
        ({"prediction": {"type": "content", "content": "Hello"}}, "prediction"),
    ],
)
def test_hints_are_taken_and_said(hello: RunningServer, fields: dict[str, Any], said: str):
    response = hello.http.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text
    assert response.headers["x-caudal-ignored"] == said


def test_thinking_can_not_be_turned_on_and_off(hello: RunningServer):
    both = {"reasoning_effort": "none", "enable_thinking": True}
    response = hello.http.post("/v1/chat/completions", json=CHAT | both)
    assert response.status_code == 400
    assert "enable_thinking" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "switch"),
    [
        ({"enable_thinking": False}, "enable_thinking=False"),
        ({"enable_thinking": True}, "enable_thinking=True"),
        ({"thinking": {"type": "disabled"}}, "enable_thinking=False"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "enable_thinking=True"),
        ({"reasoning": {"enabled": False}}, "enable_thinking=False"),
        ({"reasoning": {"effort": "high"}}, "enable_thinking=True"),
        ({"thinking": {"type": "adaptive"}}, None),
    ],
)
def test_thinking_under_the_names_of_other_apis(
    converse: Callable[..., RunningServer], fields: dict[str, Any], switch: str | None
):
    server = converse("<think>hm</think>Hello")
    tokens = server.http.post("/tokenize", json=CHAT | fields).json()["tokens"]
    prompt = bytes(tokens).decode()
    assert "enable_thinking" not in prompt if switch is None else switch in prompt


def test_reasoning_has_both_names_and_can_be_left_out(converse: Callable[..., RunningServer]):
    server = converse("<think>hm</think>Hello")
    path = "/v1/chat/completions"
    message = server.http.post(path, json=CHAT).json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    for hidden in ({"reasoning": {"exclude": True}}, {"reasoning_format": "hidden"}):
        message = server.http.post(path, json=CHAT | hidden).json()["choices"][0]["message"]
        assert message["content"] == "Hello"
        assert not {"reasoning", "reasoning_content"} & message.keys()
    stream = server.http.post(path, json=CHAT | {"stream": True}).text
    assert '"reasoning_content":"h","reasoning":"h"' in stream


def test_a_tools_image_becomes_words_and_a_users_is_refused(
    converse: Callable[..., RunningServer],
):
    server = converse("Hello")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "It:"}, image]},
    ]
    response = server.http.post("/v1/chat/completions", json={"messages": history})
    assert response.status_code == 200, response.text
    assert response.headers["x-caudal-ignored"] == "messages[].content[image]"
    tokens = server.http.post("/tokenize", json={"messages": history}).json()["tokens"]
    assert "[image left out: this model reads text only]" in bytes(tokens).decode()
    asked = {"messages": [{"role": "user", "content": [image]}]}
    error = server.http.post("/v1/chat/completions", json=asked).json()["error"]
    assert error["param"] == "messages[0].content[0]"
    assert "image_url" in error["message"]


def test_what_is_refused_is_not_said_to_be_without_effect(serve: Serve):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    for strict in (False, True):
        server = serve(ScriptedExecutor(script=b"x"), strict_fields=strict)
        response = server.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages[0].content[0]"
        assert "x-caudal-ignored" not in response.headers


def test_an_assistants_thinking_blocks_are_its_reasoning(converse: Callable[..., RunningServer]):
    server = converse("Hello")
    blocks = [
        {"type": "thinking", "thinking": "deep thought", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    history = [
        {"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}},
        {"role": "assistant", "content": "Ho", "thinking_blocks": blocks},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"a": 1}}]},
    ]
    response = server.http.post("/tokenize", json={"messages": history})
    assert response.status_code == 200, response.text
    assert "x-caudal-ignored" not in response.headers
    assert "deep thought" in bytes(response.json()["tokens"]).decode()


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
)
def test_the_usage_of_every_chunk(hello: RunningServer, path: str, body: dict[str, Any]):
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = hello.http.post(path, json=body | {"stream": True, "stream_options": options})
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    usages = [json.loads(line)["usage"] for line in lines]
    counts = [usage["completion_tokens"] for usage in usages]
    assert len(counts) > 3
    assert counts == sorted(counts)
    assert counts[-1] == 13
    assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}
