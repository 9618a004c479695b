from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response

from caudal.server.openai.answer import OBFUSCATED_SIZE
from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "How it is outside.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Jaén"}}</tool_call>'
WHOLE = f"<think>I don't know.</think>Let me look.{CALL}{CALL.replace('Jaén', 'Úbeda')}"
LOGPROBS: Any = ["message.output_text.logprobs"]

Converse = Callable[..., RunningServer]


def comparable(response: Any) -> dict[str, Any]:
    """A response without what is different in every one."""
    data: dict[str, Any] = json.loads(response.to_json())
    for name in ("id", "created_at", "completed_at"):
        del data[name]
    del data["usage"]["input_tokens_details"]
    for item in data["output"]:
        del item["id"]
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return data


def both(server: RunningServer, **fields: Any) -> Response:
    """The response to a request, once it is clear that streaming gives the same one."""
    client = server.openai()
    fields = {"model": "fake", "input": "Hi"} | fields
    whole = client.responses.create(**fields)
    *_, last = client.responses.create(**fields, stream=True)
    assert last.type == f"response.{last.response.status}"
    assert comparable(last.response) == comparable(whole)
    if whole.status == "completed":
        with client.responses.stream(**fields) as stream:
            assert comparable(stream.get_final_response()) == comparable(whole)
    return whole


def events(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """A stream's events, as they are sent."""
    body = {"model": "fake", "input": "Hi", "stream": True} | fields
    response = server.http.post("/v1/responses", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_answers_as_the_official_client_expects(hello: RunningServer):
    response = both(hello, metadata={"trace": "7"}, user="ana", temperature=0, top_p=0.9)
    assert response.id.startswith("resp_")
    assert response.object == "response"
    assert response.status == "completed"
    assert response.output_text == "Hello, día!"
    [item] = response.output
    assert item.type == "message"
    assert (item.role, item.status) == ("assistant", "completed")
    assert response.error is None
    assert response.incomplete_details is None
    assert response.metadata == {"trace": "7"}
    assert (response.temperature, response.top_p) == (0, 0.9)
    assert (response.tool_choice, response.tools) == ("auto", [])
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens == len("user:Hi\nassistant:")
    assert usage.output_tokens == len("Hello, día!".encode()) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_cached_tokens_are_told(serve: Serve):
    client = serve(ScriptedExecutor(script=b"!")).openai()
    cached = []
    for _ in range(2):
        usage = client.responses.create(model="fake", input="Hi").usage
        assert usage is not None
        cached.append(usage.input_tokens_details.cached_tokens)
    assert cached == [0, len("user:Hi\nassistant:") - 1]


def test_the_order_of_a_streams_events(converse: Converse):
    found = events(converse("<think>Hm.</think>Yes." + CALL), tools=[WEATHER])
    kinds: list[str] = []
    for event in found:
        kind = event["type"].removeprefix("response.")
        if not kinds or kind != kinds[-1]:
            kinds.append(kind)
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert found[0]["response"]["status"] == "in_progress"
    assert found[0]["response"]["usage"] is None
    output = found[-1]["response"]["output"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == output
    for event in found:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]


def test_reasoning_text_and_calls(converse: Converse):
    response = both(converse(WHOLE), tools=[WEATHER])
    reasoning, message, *calls = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "I don't know."
    assert message.type == "message"
    assert response.output_text == "Let me look."
    assert [json.loads(call.arguments) for call in calls if call.type == "function_call"] == [
        {"city": "Jaén"},
        {"city": "Úbeda"},
    ]
    usage = response.usage
    assert usage is not None
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens


def test_no_call_where_none_is_wanted(converse: Converse):
    response = both(converse(CALL), tools=[WEATHER], tool_choice="none")
    assert response.output_text == CALL


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
    ],
)
def test_calls_that_are_wanted(converse: Converse, choice: Any):
    other = WEATHER | {"name": "tide"}
    response = both(
        converse(CALL), tools=[other, WEATHER], tool_choice=choice, parallel_tool_calls=False
    )
    [call] = response.output
    assert call.type == "function_call"
    assert call.name == "weather" or choice == "required"
    json.loads(call.arguments)


def test_a_call_that_is_cut_short(converse: Converse):
    response = both(
        converse(CALL), tools=[WEATHER], tool_choice="required", max_output_tokens=len(CALL) - 20
    )
    [call] = response.output
    assert call.type == "function_call"
    assert call.status == "incomplete"
    assert response.incomplete_details is not None


def test_max_output_tokens(hello: RunningServer):
    response = both(hello, max_output_tokens=5)
    assert response.output_text == "Hello"
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_an_answer_of_nothing(serve: Serve):
    response = both(serve(ScriptedExecutor(script=b"")))
    assert (response.status, response.output) == ("completed", [])


def test_logprobs_are_of_the_text_alone(converse: Converse):
    server = converse("<think>Hm.</think>Yes, día." + CALL)
    response = both(server, tools=[WEATHER], include=LOGPROBS, top_logprobs=2)
    part = response.output[1].content[0]
    assert "".join(entry.token for entry in part.logprobs[:5]) == "Yes, "
    assert bytes(byte for entry in part.logprobs for byte in entry.bytes) == "Yes, día.".encode()
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    deltas = [
        event
        for event in events(server, tools=[WEATHER], include=LOGPROBS)
        if event["type"] == "response.output_text.delta"
    ]
    assert sum(len(event["logprobs"]) for event in deltas) == len(part.logprobs)


class Answer(pydantic.BaseModel):
    a: int


def test_parsed_answers(converse: Converse):
    server = converse('{"a": 7}')
    parsed = server.openai().responses.parse(model="fake", input="Hi", text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)
    response = both(server, text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(response.output_text), dict)


def test_every_delta_can_be_padded(hello: RunningServer):
    body = {
        "model": "fake",
        "input": "Hi",
        "stream": True,
        "stream_options": {"include_obfuscation": True},
    }
    text = hello.http.post("/v1/responses", json=body).text
    padded = [event for event in text.split("\n\n") if "obfuscation" in event]
    assert len(padded) > 1
    for event in padded:
        data = event.split("\n")[1]
        assert len(f"{data}\n\n".encode()) % OBFUSCATED_SIZE == 0


def test_counting_input_tokens(hello: RunningServer):
    client = hello.openai()
    assert client.responses.input_tokens.count(model="fake", input="Hi").input_tokens == len(
        "user:Hi\nassistant:"
    )
    response = client.responses.create(model="fake", input="Hi")
    counted = client.responses.input_tokens.count(
        model="fake", input="More", previous_response_id=response.id
    )
    again = client.responses.create(model="fake", input="More", previous_response_id=response.id)
    assert again.usage is not None
    assert counted.input_tokens == again.usage.input_tokens


def test_a_model_that_fails_half_way(serve: Serve):
    count = 0

    def fail(_: object) -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise RuntimeError("the model broke")

    found = events(serve(ScriptedExecutor(script=b"x" * 50, fail=fail)))
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"]["code"] == "server_error"


def test_a_failure_before_the_first_byte_is_no_stream(hello: RunningServer):
    with pytest.raises(openai.BadRequestError) as caught:
        hello.openai().responses.create(model="fake", input="x" * 1000, stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input"
