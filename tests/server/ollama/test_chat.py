"""`/api/chat`, as Ollama's official client asks and reads it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import ollama
import pytest

from caudal.server.ollama.messages import OllamaMessage, read_messages
from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

HI = [{"role": "user", "content": "Hi"}]

THOUGHT = "<think>hm</think>Well."
CALLS = (
    '<think>hm</think><tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
)

Converse = Callable[..., RunningServer]


def add(a: int, b: int | str) -> int:
    """Add.

    Args:
        a: A number
        b: Another
    """
    return a + int(b)


def chat(server: RunningServer, messages: Any = HI, **fields: Any) -> ollama.ChatResponse:
    return ollama.Client(server.url).chat("fake", messages, **fields)


def streamed(server: RunningServer, messages: Any = HI, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "fake", "messages": messages} | fields
    response = server.http.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_whole_and_by_both_clients(hello: RunningServer):
    answer = chat(hello)
    assert (answer.message.role, answer.message.content) == ("assistant", "Hello, día!")
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.prompt_eval_count == len("user:Hi\nassistant:")

    async def read() -> str:
        stream = await ollama.AsyncClient(hello.url).chat("fake", HI, stream=True)
        return "".join([part.message.content or "" async for part in stream])

    assert asyncio.run(read()) == "Hello, día!"


def test_lines_in_order(hello: RunningServer):
    *lines, last = streamed(hello)
    assert all(
        line["message"] == {"role": "assistant", "content": line["message"]["content"]}
        and line["done"] is False
        for line in lines
    )
    assert last["message"] == {"role": "assistant", "content": ""}
    assert list(last)[:5] == ["model", "created_at", "message", "done", "done_reason"]


def test_thinking(converse: Converse):
    server = converse(THOUGHT)
    answer = chat(server)
    assert (answer.message.thinking, answer.message.content) == ("hm", "Well.")
    lines = [line["message"] for line in streamed(server)]
    assert [line["thinking"] for line in lines if "thinking" in line] == ["h", "m"]
    assert "".join(line["content"] for line in lines) == "Well."
    # The template has a switch, which is turned on as at Ollama unless the request turns it off.
    counts = {think: chat(server, think=think).prompt_eval_count for think in (None, True, False)}
    assert counts[None] == counts[True]
    assert counts[False] == (counts[True] or 0) + len("False") - len("True")


def test_calls_are_whole_and_their_arguments_objects(converse: Converse):
    server = converse(CALLS)
    answer = chat(server, tools=[add])
    assert answer.message.tool_calls is not None
    assert [call.function.arguments for call in answer.message.tool_calls] == [
        {"a": 1, "b": "x"},
        {"a": 2},
    ]
    assert answer.done_reason == "stop"
    lines = streamed(
        server,
        tools=[
            {"type": "function", "function": {"name": "add", "parameters": {"properties": None}}}
        ],
    )
    calls = [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]]
    assert [[call["function"]["index"] for call in each] for each in calls] == [[0], [1]]
    assert calls[0][0]["id"].startswith("call_")
    assert calls[0][0]["function"] | {"index": 0} == {
        "index": 0,
        "name": "add",
        "arguments": {"a": 1, "b": "x"},
    }


def test_results_find_their_calls():
    calls = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("f", "g", "f")]
    messages = [
        {"role": "Assistant", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "tool_name": "g", "content": "of g"},
        {"role": "tool", "tool_name": "f", "content": "of f"},
        {"role": "tool", "content": "of the other f"},
        {"role": "tool", "content": "of nothing"},
    ]
    called, *results = read_messages([OllamaMessage.model_validate(each) for each in messages])
    first, second, third = (call.id for call in called.tool_calls)
    assert [result.tool_call_id for result in results] == [second, first, third, None]
    assert (called.reasoning, called.tool_calls[0].arguments) == ("hm", '{"n":1}')


def test_an_assistants_last_message_is_continued(hello: RunningServer):
    answer = chat(hello, [*HI, {"role": "assistant", "content": "Well"}])
    assert answer.prompt_eval_count == len("user:Hi\nassistant:Well")


def test_what_has_no_room_is_an_error_unless_it_may_be_cut(serve: Serve):
    server = serve(ScriptedExecutor(script=b"x" * 9))
    long = [
        {"role": "user", "content": "a" * 100},
        {"role": "assistant", "content": "b" * 100},
        {"role": "user", "content": "c" * 20},
        {"role": "assistant", "content": "d" * 20},
        {"role": "user", "content": "e" * 20},
    ]
    options = {"num_ctx": 120, "num_predict": 4}
    with pytest.raises(ollama.ResponseError, match=r"options.num_ctx is 120 tokens"):
        chat(server, long, options=options)
    body = {"model": "fake", "messages": long, "options": options, "stream": False}
    answer = server.http.post("/api/chat", json=body | {"truncate": True}).json()
    kept = "\n".join(f"{each['role']}:{each['content']}" for each in long[2:])
    assert answer["prompt_eval_count"] == len(kept + "\nassistant:")
    assert answer["done_reason"] == "length"
    # Nothing is left to leave out.
    options["num_ctx"] = 20
    assert server.http.post("/api/chat", json=body | {"truncate": True}).status_code == 400


def test_loading(hello: RunningServer):
    answer = chat(hello, [])
    assert (answer.message.content, answer.done_reason) == ("", "load")


def test_failures(hello: RunningServer, converse: Converse):
    for messages, says in (
        ([{"role": "user", "content": "x", "images": ["aGk="]}], "messages[0].images"),
        ([{"role": "nobody", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x" * 600}], "maximum context length is 512"),
    ):
        response = hello.http.post("/api/chat", json={"model": "fake", "messages": messages})
        assert response.status_code == 400
        assert says in response.json()["error"]
    refusing = converse("x")
    with pytest.raises(ollama.ResponseError, match="makes no sense"):
        chat(refusing, [{"role": "user", "content": "refuse me"}], stream=False)


def test_a_stream_that_fails_ends_in_an_error(serve: Serve):
    class Failing(ScriptedExecutor):
        def _sample(self, context: list[int], row: Any) -> Any:
            if row.step == 3:
                raise RuntimeError("out of order")
            return super()._sample(context, row)

    server = serve(Failing(script=b"abcdef"))
    stream = ollama.Client(server.url).chat("fake", HI, stream=True)
    with pytest.raises(ollama.ResponseError, match="out of order"):
        list(stream)


def test_whoever_goes_away_is_answered_no_more(serve: Serve):
    executor = ScriptedExecutor(
        script=b"x" * 8000, num_blocks=2048, fail=lambda _: time.sleep(0.01)
    )
    server = serve(executor, max_model_len=16000)
    body = {"model": "fake", "messages": HI}
    with server.http.stream("POST", "/api/chat", json=body) as response:
        assert json.loads(next(response.iter_lines()))["message"]["content"] == "x"
    server.wait_for_metric("caudal_requests_running", 0)
